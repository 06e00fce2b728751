"""API keys: who may call what."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable

from octavo.config import HTTPConfig
from octavo.server.openai.errors import HTTPProblem, problem

OPEN_PATHS = frozenset({"/health", "/ready", "/ping"})
"""Routes that answer without a key; probes have none."""

KV_STATS_PATH = "/v1/kv/stats"

KV_PREFIX = "/v1/kv/"
RESET_PATH = "/reset_prefix_cache"
"""The name that other servers give to `/v1/kv/reset`."""


def needs_admin(path: str) -> bool:
    """Whether a path is for the admin key: all of KV memory but the figures, whether there is such a route or not."""
    return path == RESET_PATH or (path.startswith(KV_PREFIX) and path != KV_STATS_PATH)


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


class Access:
    """Decides on the path that the router matches, and the Authorization header."""

    def __init__(self, http: HTTPConfig) -> None:
        self._keys = KeyRing(http.api_key)
        self._admin = None if http.admin_api_key is None else KeyRing([http.admin_api_key])

    def is_admin(self, authorization: bytes | None) -> bool:
        """Whether a request brings the admin key."""
        return self._admin is not None and self._admin.admits(authorization)

    def check(self, path: str, authorization: bytes | None) -> None:
        """Let a request in.

        Raises:
            HTTPProblem: 401 without the key that the path needs; 403 where no admin key is configured.
        """
        if path in OPEN_PATHS:
            return
        if needs_admin(path):
            self._check_admin(authorization)
        elif not (self._keys.admits(authorization) or (path == KV_STATS_PATH and self.is_admin(authorization))):
            raise _unknown_key("an API key is needed", "the API key is not valid", authorization)

    def _check_admin(self, authorization: bytes | None) -> None:
        if self._admin is None:
            if not self._keys.admits(authorization):
                raise _unknown_key("an API key is needed", "the API key is not valid", authorization)
            message = "this path needs an admin key, and the server has none: start it with --admin-api-key"
            raise problem(403, message, "admin_key_not_configured", type="permission_error")
        if not self.is_admin(authorization):
            raise _unknown_key("this path needs the admin key", "this path needs the admin key", authorization)


def _unknown_key(needed: str, wrong: str, authorization: bytes | None) -> HTTPProblem:
    said = wrong if authorization else f"{needed}: Authorization: Bearer KEY"
    challenge = (("www-authenticate", "Bearer"),)
    return problem(401, said, "invalid_api_key", type="authentication_error", headers=challenge)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
