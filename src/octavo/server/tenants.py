"""Whose request it is, and how many of one tenant's are under way."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from octavo.messages import DEFAULT_TENANT
from octavo.server.key_file import Caller
from octavo.server.openai.errors import problem

RETRY_AFTER_S = 1

_TENANT: ContextVar[str] = ContextVar("tenant", default=DEFAULT_TENANT)


def current_tenant() -> str:
    """Whose request is being handled. Holds in every task and thread that its handler starts."""
    return _TENANT.get()


@contextmanager
def in_name_of(tenant: str) -> Iterator[None]:
    """Work on a tenant's behalf when no request of its is being handled."""
    token = _TENANT.set(tenant)
    try:
        yield
    finally:
        _TENANT.reset(token)


class Traffic:
    """Counts each tenant's requests under way.

    Args:
        max_requests: At once, for tenants without a limit of their own; None for any number.
    """

    def __init__(self, max_requests: int | None) -> None:
        self._max_requests = max_requests
        self._counts: dict[str, int] = {}

    @contextmanager
    def request(self, caller: Caller, *, counts: bool) -> Iterator[None]:
        """A request of a caller's, from its beginning to its end. One that does not count is always let in.

        Raises:
            HTTPProblem: 429 when the tenant has as many as it may.
        """
        _TENANT.set(caller.tenant)
        if not counts:
            yield
            return
        before = self._counts.get(caller.tenant, 0)
        limit = self._max_requests if caller.max_requests is None else caller.max_requests
        if limit is not None and before >= limit:
            source = "--max-tenant-requests" if caller.max_requests is None else "max_requests in the key file"
            message = f"this key's tenant has {before} requests under way, as many as it may ({source})"
            headers = (("retry-after", str(RETRY_AFTER_S)),)
            raise problem(429, message, "too_many_requests", type="rate_limit_error", headers=headers)
        self._counts[caller.tenant] = before + 1
        try:
            yield
        finally:
            self._counts[caller.tenant] -= 1
            if not self._counts[caller.tenant]:
                del self._counts[caller.tenant]
