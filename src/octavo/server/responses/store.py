"""Responses that clients may come back to, in memory and bounded."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import msgspec

from octavo.server.openai.errors import HTTPProblem, problem

MAX_RESPONSES = 10_000


class StoredResponse(msgspec.Struct):
    """One response."""

    tenant: str
    response: bytes
    """As it was sent."""
    items: bytes
    """The conversation with its answer, as JSON: what a next request goes on with."""

    @property
    def num_bytes(self) -> int:
        return len(self.response) + len(self.items)


class _Output(msgspec.Struct):
    output: list[msgspec.Raw]


class ResponseStore:
    """The latest responses of all tenants. Those that nobody asked for longest make room.

    Args:
        max_bytes: Of all together; with 0 nothing is kept.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._stored: OrderedDict[str, StoredResponse] = OrderedDict()
        self._bytes = 0

    def put(self, response_id: str, tenant: str, response: bytes, items: list[dict[str, Any]]) -> None:
        """Keep a response, unless it alone is too large."""
        stored = StoredResponse(tenant, response, msgspec.json.encode(items))
        if stored.num_bytes > self._max_bytes:
            return
        self._stored[response_id] = stored
        self._bytes += stored.num_bytes
        while self._bytes > self._max_bytes or len(self._stored) > MAX_RESPONSES:
            self._bytes -= self._stored.popitem(last=False)[1].num_bytes

    def get(self, tenant: str, response_id: str) -> StoredResponse:
        """A tenant's response.

        Raises:
            HTTPProblem: 404 if there is none, or none any more.
        """
        stored = self._stored.get(response_id)
        if stored is None or stored.tenant != tenant:
            raise _no_such_response(None)
        self._stored.move_to_end(response_id)
        return stored

    def items(self, tenant: str, response_id: str) -> list[dict[str, Any]]:
        """The conversation up to a response, itself included.

        Raises:
            HTTPProblem: 404, naming `previous_response_id`.
        """
        try:
            stored = self.get(tenant, response_id)
        except HTTPProblem:
            raise _no_such_response("previous_response_id") from None
        items: list[dict[str, Any]] = msgspec.json.decode(stored.items)
        return items

    def input_items(self, tenant: str, response_id: str) -> list[dict[str, Any]]:
        """The conversation up to a response, without it.

        Raises:
            HTTPProblem: 404 if there is none.
        """
        stored = self.get(tenant, response_id)
        num_output = len(msgspec.json.decode(stored.response, type=_Output).output)
        items: list[dict[str, Any]] = msgspec.json.decode(stored.items)
        return items[: len(items) - num_output]

    def delete(self, tenant: str, response_id: str) -> None:
        """Forget a response.

        Raises:
            HTTPProblem: 404 if there is none.
        """
        self._bytes -= self.get(tenant, response_id).num_bytes
        del self._stored[response_id]


def _no_such_response(param: str | None) -> HTTPProblem:
    return problem(404, "there is no such response, or it is no longer kept", "not_found", param=param)
