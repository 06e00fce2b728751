"""API keys."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable


class KeyRing:
    """The keys a server accepts. An empty ring means an open server.

    Keys are compared as SHA-256 digests and all of them every time, so that the time taken says nothing about how much
    of a guess was right, nor which key it was near to.
    """

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = [_digest(key.encode()) for key in keys]

    @property
    def open(self) -> bool:
        return not self._digests

    def admits(self, authorization: bytes | None) -> bool:
        """Whether the value of an Authorization header holds an accepted key."""
        if self.open:
            return True
        scheme, _, key = (authorization or b"").partition(b" ")
        given = _digest(key.strip())
        found = False
        for digest in self._digests:
            found |= hmac.compare_digest(given, digest)
        return found and scheme.lower() == b"bearer"


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
