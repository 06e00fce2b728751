"""What an idle core still remembers of requests that are over: nothing, but for accounts and counters."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Iterator
from typing import Any

from octavo.core.accounts import Account
from octavo.core.request import Request, Sequence

_CONTAINERS = (dict, OrderedDict, set, frozenset, deque, Counter)
_KEPT = ("accounts", "_executor")
"""Accounts live as long as the core, and the executor is not the core's."""
_ROWS_AND_BLOCKS = ("free", "_free", "_chunks", "ref_count", "owner", "content", "since_s", "num_hits")
"""Lists with what is free or has an entry per row, block or slot."""


def leftovers(core: Any) -> list[str]:
    """Every map, set and queue reachable from `core` that is not empty, and every request, one sentence each."""
    return list(_walk(core, "core", set()))


def _walk(value: Any, path: str, known: set[int]) -> Iterator[str]:
    if id(value) in known or isinstance(value, type | Account):
        return
    known.add(id(value))
    if isinstance(value, Request | Sequence):
        yield f"{path} is {value!r}"
    elif isinstance(value, _CONTAINERS):
        if value:
            yield f"{path} holds {len(value)} entries: {list(value)[:3]}"
    elif type(value).__module__.startswith("octavo."):
        for name in _attributes(value):
            if name not in _KEPT:
                yield from _walk(getattr(value, name, None), f"{path}.{name}", known)
    elif isinstance(value, list) and path.rsplit(".", 1)[-1] not in _ROWS_AND_BLOCKS:
        for i, item in enumerate(value):
            yield from _walk(item, f"{path}[{i}]", known)


def _attributes(value: Any) -> list[str]:
    names = list(getattr(value, "__dict__", ()))
    for kind in type(value).__mro__:
        names += [name for name in getattr(kind, "__slots__", ()) if name != "__weakref__"]
    return names
