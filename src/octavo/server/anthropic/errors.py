"""Anthropic's error envelope."""

from __future__ import annotations

from typing import Literal

import msgspec

from octavo.server.openai.errors import ErrorReply

PREFIX = "/v1/messages"
"""Of the paths whose errors have this envelope."""

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class AnthropicErrorBody(msgspec.Struct, kw_only=True):
    type: str
    message: str


class AnthropicError(msgspec.Struct, kw_only=True):
    """Every refusal of /v1/messages."""

    type: Literal["error"] = "error"
    error: AnthropicErrorBody


def anthropic_error(reply: ErrorReply) -> AnthropicError:
    """The envelope of an error."""
    other = "invalid_request_error" if reply.status < 500 else "api_error"
    return AnthropicError(error=AnthropicErrorBody(type=_TYPES.get(reply.status, other), message=reply.message))


def is_anthropic(path: str) -> bool:
    """Whether a path's errors have this envelope."""
    return path == PREFIX or path.startswith(PREFIX + "/")
