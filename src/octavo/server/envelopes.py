"""Which envelope a path's errors come in."""

from __future__ import annotations

from octavo.server.anthropic.errors import anthropic_error, is_anthropic
from octavo.server.openai.errors import ErrorReply
from octavo.server.sse import json_bytes


def error_body(path: str, reply: ErrorReply) -> bytes:
    """An error as its client expects it."""
    return json_bytes(anthropic_error(reply)) if is_anthropic(path) else reply.body()
