"""Lists, a part at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Generic, Literal, TypeVar

import msgspec
from starlette.types import Scope

from octavo.errors import RequestError
from octavo.server.query import query_integer, query_text

O = TypeVar("O", bound=Any)  # noqa: E741
P = TypeVar("P")


class Page(msgspec.Struct, Generic[O], kw_only=True):
    """A part of a list."""

    object: Literal["list"] = "list"
    data: list[O]
    first_id: str | None
    last_id: str | None
    has_more: bool


def page_of(
    scope: Scope,
    items: Sequence[O],
    kind: Callable[..., P],
    default: int,
    most: int,
    id_of: Callable[[O], str] = attrgetter("id"),
) -> P:
    """The part of a list that `after` and `limit` ask for.

    Raises:
        RequestError: If one of them is wrong.
    """
    limit = query_integer(scope, "limit", default, 1, most)
    after = query_text(scope, "after")
    if after is not None:
        place = next((i for i, item in enumerate(items) if id_of(item) == after), None)
        if place is None:
            raise RequestError("after", after, "the id of something in this list")
        items = items[place + 1 :]
    data = list(items[:limit])
    first, last = (id_of(data[0]), id_of(data[-1])) if data else (None, None)
    return kind(data=data, first_id=first, last_id=last, has_more=len(items) > limit)
