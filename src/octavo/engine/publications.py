"""Published prefixes as the front end sees them: names, and what a new engine process must publish again."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable

import msgspec

from octavo.errors import OctavoError, RequestError
from octavo.messages import FINISH_ERROR, FINISH_LENGTH, FINISH_STOP, EngineRequest, PublishedPrefix, TokenDelta

_LOG = logging.getLogger("octavo.engine")


class Publications:
    """The requests that published something, by name. Not safe for several threads."""

    def __init__(self) -> None:
        self._requests: dict[str, EngineRequest] = {}
        self._again: dict[int, str] = {}
        """Ids in the present engine of those that are being published again."""

    def note(self, request: EngineRequest, delta: TokenDelta) -> None:
        """Remember a request that has just succeeded in publishing; any other may be passed too."""
        if request.publish is not None and delta.finish_reason in (FINISH_LENGTH, FINISH_STOP):
            self._requests[request.publish] = request

    def repeated(self, new_ids: itertools.count[int]) -> list[EngineRequest]:
        """What to ask a new engine for, under new ids."""
        requests = [msgspec.structs.replace(request, request_id=next(new_ids)) for request in self._requests.values()]
        self._again = {request.request_id: request.publish for request in requests if request.publish is not None}
        return requests

    def note_repeated(self, delta: TokenDelta) -> None:
        """Take in what came of a repeated request; deltas of others are let through."""
        name = self._again.get(delta.request_id)
        if name is None or delta.finish_reason is None:
            return
        del self._again[delta.request_id]
        if delta.finish_reason == FINISH_ERROR:
            _LOG.warning("%r could not be published again: %s", name, delta.error)
            self._requests.pop(name, None)

    def being_repeated(self, name: str) -> list[int]:
        """The ids under which `name` is just being published again."""
        return [request_id for request_id, other in self._again.items() if other == name]

    def forget(self, name: str) -> bool:
        """Publish `name` no more; whether it was known."""
        for request_id in self.being_repeated(name):
            del self._again[request_id]
        return self._requests.pop(name, None) is not None


def check_unpublished(name: str, published: Iterable[PublishedPrefix]) -> None:
    """Raises RequestError if `name` is taken: what it stands for must not change under those who use it."""
    if any(prefix.name == name for prefix in published):
        raise RequestError("name", name, "one that is not published yet; withdraw it first")


def find_published(name: str, published: Iterable[PublishedPrefix]) -> PublishedPrefix:
    """The prefix of this name, which has just been published."""
    for prefix in published:
        if prefix.name == name:
            return prefix
    raise OctavoError(f"{name!r} was withdrawn while it was being published")
