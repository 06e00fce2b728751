"""The records of batches."""

from __future__ import annotations

import time

from octavo.server.batches.folder import Folder, is_id, new_id
from octavo.server.batches.records import WINDOW_S, Batch, StoredBatch
from octavo.server.openai.errors import problem

MAX_BATCHES = 10_000
"""Records kept, of all tenants; the oldest finished ones make room."""

MAX_UNFINISHED = 100
"""Batches of one tenant that have not ended."""


class BatchStore:
    """All batches. Each belongs to a tenant, and for others there is no such batch."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._batches = {stored.batch.id: stored for stored in folder.records("batch_", StoredBatch)}

    @property
    def unfinished(self) -> list[StoredBatch]:
        """Those that have not ended, the oldest first."""
        return sorted((s for s in self._batches.values() if s.unfinished), key=_age)

    def create(
        self, tenant: str, endpoint: str, input_file_id: str, metadata: dict[str, str] | None, life_s: int | None
    ) -> StoredBatch:
        """Record a new batch.

        Raises:
            HTTPProblem: 429 if the tenant has too many that have not ended.
        """
        if sum(stored.unfinished and stored.tenant == tenant for stored in self._batches.values()) >= MAX_UNFINISHED:
            message = f"{MAX_UNFINISHED} batches have not ended; wait for one, or cancel one"
            raise problem(429, message, "too_many_batches", type="rate_limit_error", headers=(("retry-after", "60"),))
        self._make_room()
        now = int(time.time())
        batch = Batch(
            id=new_id("batch_"),
            endpoint=endpoint,
            input_file_id=input_file_id,
            created_at=now,
            expires_at=now + WINDOW_S,
            metadata=metadata,
        )
        stored = StoredBatch(tenant, batch, new_id("file-"), new_id("file-"), life_s)
        self._batches[batch.id] = stored
        self.save(stored)
        return stored

    def save(self, stored: StoredBatch) -> None:
        """Write a record that has changed."""
        self._folder.save(stored.batch.id, stored)

    def get(self, tenant: str, batch_id: str) -> StoredBatch:
        """A tenant's batch.

        Raises:
            HTTPProblem: 404 if there is none.
        """
        stored = self._batches.get(batch_id) if is_id(batch_id) else None
        if stored is None or stored.tenant != tenant:
            raise problem(404, "there is no such batch", "not_found")
        return stored

    def list(self, tenant: str) -> list[Batch]:
        """A tenant's batches, the newest first."""
        mine = sorted((s for s in self._batches.values() if s.tenant == tenant), key=_age, reverse=True)
        return [stored.batch for stored in mine]

    def _make_room(self) -> None:
        if len(self._batches) >= MAX_BATCHES:
            ended = min((s for s in self._batches.values() if not s.unfinished), key=_age, default=None)
            if ended is None:
                raise problem(429, "too many batches have not ended", "too_many_batches", type="rate_limit_error")
            del self._batches[ended.batch.id]
            self._folder.forget(ended.batch.id)


def _age(stored: StoredBatch) -> tuple[int, str]:
    return stored.batch.created_at, stored.batch.id
