"""API keys: who may call what."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping

from octavo.config import HTTPConfig
from octavo.server.key_file import Caller, read_key_file
from octavo.server.openai.errors import HTTPProblem, problem
from octavo.server.page_files import PAGE_FILES

OPEN_PATHS = frozenset({"/health", "/ready", "/ping"})
"""Routes that answer without a key; probes have none."""

KV_STATS_PATH = "/v1/kv/stats"

KV_PREFIX = "/v1/kv/"
RESET_PATH = "/reset_prefix_cache"
"""The name that other servers give to `/v1/kv/reset`."""


def needs_admin(path: str) -> bool:
    """Whether a path is for the admin key: all of KV memory but the figures, whether there is such a route or not."""
    return path == RESET_PATH or (path.startswith(KV_PREFIX) and path != KV_STATS_PATH)


DEFAULT_CALLER = Caller()

SEVERAL_KEYS = b"several"
"""In place of a header's value where there are several such headers: nobody's key."""


class KeyRing:
    """The keys a server accepts. An empty ring means an open server.

    Keys are compared as SHA-256 digests and all of them every time, so that the time taken says nothing about how much
    of a guess was right, nor which key it was near to.

    Args:
        keys: Those of the default tenant.
        callers: Further ones, by digest.
    """

    def __init__(self, keys: Iterable[str], callers: Mapping[bytes, Caller] | None = None) -> None:
        plain = {_digest(key.encode()): DEFAULT_CALLER for key in keys}
        self._callers = list({**plain, **(callers or {})}.items())

    @property
    def open(self) -> bool:
        return not self._callers

    def find(self, authorization: bytes | None) -> Caller | None:
        """Whose key the value of an Authorization header holds; None if nobody's."""
        if self.open:
            return DEFAULT_CALLER
        scheme, _, key = (authorization or b"").partition(b" ")
        given = _digest(key.strip())
        found: Caller | None = None
        for digest, caller in self._callers:
            if hmac.compare_digest(given, digest):
                found = caller
        return found if scheme.lower() == b"bearer" else None

    def admits(self, authorization: bytes | None) -> bool:
        """Whether the value of an Authorization header holds an accepted key."""
        return self.find(authorization) is not None


class Access:
    """Decides on the path that the router matches, and the Authorization header.

    Raises:
        ConfigError: If the key file cannot be read.
    """

    def __init__(self, http: HTTPConfig) -> None:
        self._open_paths = OPEN_PATHS | (PAGE_FILES.keys() if http.chat_page else frozenset())
        self._keys = KeyRing(http.api_key, read_key_file(http.api_key_file) if http.api_key_file else None)
        self._admin = None if http.admin_api_key is None else KeyRing([http.admin_api_key])

    def is_admin(self, authorization: bytes | None) -> bool:
        """Whether a request brings the admin key."""
        return self._admin is not None and self._admin.admits(authorization)

    def check(self, path: str, authorization: bytes | None) -> Caller:
        """Let a request in, and say whose it is.

        Raises:
            HTTPProblem: 401 without the key that the path needs; 403 where no admin key is configured.
        """
        if path in self._open_paths:
            return DEFAULT_CALLER
        if needs_admin(path):
            self._check_admin(authorization)
            return DEFAULT_CALLER
        caller = self._keys.find(authorization)
        if caller is not None:
            return caller
        if path == KV_STATS_PATH and self.is_admin(authorization):
            return DEFAULT_CALLER
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
    said = wrong if authorization else f"{needed}: Authorization: Bearer KEY, or x-api-key: KEY"
    if authorization is SEVERAL_KEYS:
        said = "the API key is ambiguous: give one Authorization header, or one x-api-key"
    challenge = (("www-authenticate", "Bearer"),)
    return problem(401, said, "invalid_api_key", type="authentication_error", headers=challenge)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
