"""docs/http-fields.md is what the script makes of the types, and holds every field there is."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from octavo.server.openai import fields
from octavo.server.openapi.operations import OPERATIONS

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "http-fields.md").read_text()
TYPES = {
    f"{method} {path}": operation.request
    for (method, path), operation in OPERATIONS.items()
    if operation.request is not None and path != "/v1/responses/input_tokens"
}


def rows(route: str) -> dict[str, str]:
    """The row of each field of a route."""
    section = PAGE.partition(f"## {route}\n")[2].partition("\n## ")[0].partition("| field of the reply")[0]
    return {match[1]: match[0] for match in re.finditer(r"^\| `([^`]+)` \|.*$", section, re.MULTILINE)}


def test_the_page_is_current() -> None:
    made = subprocess.run(
        [sys.executable, ROOT / "scripts" / "http_fields.py"], capture_output=True, text=True, check=True
    ).stdout
    assert made == PAGE, "run `make docs`"


@pytest.mark.parametrize("route", TYPES)
def test_every_field_of_the_type_has_a_row(route: str) -> None:
    kind: type[msgspec.Struct] = TYPES[route]
    assert set(kind.__struct_fields__) <= set(rows(route))


@pytest.mark.parametrize(
    ("route", "refused", "ignored"),
    [
        ("POST /v1/completions", fields.REFUSED_COMPLETION, fields.IGNORED),
        ("POST /v1/chat/completions", fields.REFUSED_CHAT, fields.IGNORED),
        ("POST /v1/responses", fields.REFUSED_RESPONSES, fields.IGNORED_RESPONSES),
        ("POST /v1/messages", fields.REFUSED_MESSAGES, fields.IGNORED_MESSAGES),
        ("POST /v1/messages/count_tokens", fields.REFUSED_COUNT, frozenset()),
        ("POST /tokenize", fields.REFUSED_TOKENIZE, frozenset()),
    ],
)
def test_what_is_refused_and_what_is_ignored_is_said(
    route: str, refused: fields.Refused, ignored: frozenset[str]
) -> None:
    said = rows(route)
    assert all("refused: " in said[name] for name in refused)
    assert all("taken, without effect" in said[name] for name in ignored)


def test_bounds_are_those_of_the_checks() -> None:
    chat = rows("POST /v1/chat/completions")
    assert "from 0.01 to 100" in chat["repetition_penalty"]
    assert "an integer from 1 to 128 (--max-n)" in chat["n"]
    assert "| required |" in rows("POST /v1/messages")["max_tokens"]
    assert "works" in rows("POST /v1/responses")["tools"] and "refused" not in rows("POST /v1/responses")["tools"]
    assert "logged once and ignored" in rows("POST /v1/responses")["request_id"]
