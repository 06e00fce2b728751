"""What stands behind the `?` of a request's target."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import parse_qs

from starlette.types import Scope

from octavo.errors import RequestError


def query_text(scope: Scope, name: str) -> str | None:
    """The last value of a parameter; None without one."""
    values = parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True).get(name)
    return None if values is None else values[-1]


def query_integer(scope: Scope, name: str, default: int, low: int, high: int) -> int:
    """An integer within bounds.

    Raises:
        RequestError: Naming the parameter.
    """
    text = query_text(scope, name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and low <= int(text) <= high):
        raise RequestError(name, text, f"an integer from {low} to {high}")
    return int(text)


def query_choice(scope: Scope, name: str, choices: Sequence[str]) -> str:
    """One of some words; the first without any.

    Raises:
        RequestError: Naming the parameter.
    """
    text = query_text(scope, name)
    if text is None:
        return choices[0]
    if text not in choices:
        raise RequestError(name, text, "one of " + ", ".join(choices))
    return text
