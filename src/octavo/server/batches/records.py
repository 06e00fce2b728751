"""Batches as they are kept and as clients see them."""

from __future__ import annotations

from typing import Literal

import msgspec

UNFINISHED = ("validating", "in_progress", "finalizing", "cancelling")

WINDOW = "24h"
WINDOW_S = 24 * 3600


class BatchError(msgspec.Struct, kw_only=True):
    code: str | None
    message: str
    param: str | None
    line: int | None


class BatchErrors(msgspec.Struct, kw_only=True):
    object: Literal["list"] = "list"
    data: list[BatchError]


class RequestCounts(msgspec.Struct, kw_only=True):
    total: int = 0
    completed: int = 0
    failed: int = 0


class Batch(msgspec.Struct, kw_only=True):
    """A batch as clients see it. Times are seconds since the epoch."""

    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    input_file_id: str
    completion_window: str = WINDOW
    status: Literal[
        "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
    ] = "validating"
    errors: BatchErrors | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    created_at: int
    expires_at: int
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: RequestCounts = msgspec.field(default_factory=RequestCounts)
    metadata: dict[str, str] | None = None


class StoredBatch(msgspec.Struct):
    """A record."""

    tenant: str
    batch: Batch
    output_id: str
    """The file of answers, which clients see once the batch has ended."""
    error_id: str
    """The file of what went wrong, likewise."""
    output_life_s: int | None = None
    """Seconds that both are kept; None for ever."""

    @property
    def unfinished(self) -> bool:
        return self.batch.status in UNFINISHED
