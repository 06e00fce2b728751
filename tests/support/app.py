"""The application's own route table, for tests that go through all of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from octavo.config import HTTPConfig
from octavo.server.app import create_app
from support.infos import tiny_info


def served_routes() -> list[Any]:
    """Every route of the application, as the router has them; no engine is asked for that."""
    tokenizer = SimpleNamespace(special_ids_of=lambda spellings: frozenset())
    engine: Any = SimpleNamespace(
        info=tiny_info(), tokenizer=tokenizer, chat_template_source=None, generation_config={}
    )
    return create_app(engine, HTTPConfig()).routes
