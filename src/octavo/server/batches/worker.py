"""Runs batches: those of a tenant one after another, those of different tenants side by side."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Coroutine, Iterator, Mapping
from typing import Any

from starlette.types import ASGIApp

from octavo.errors import EngineDeadError, ShuttingDownError
from octavo.server.batches.check import check_input
from octavo.server.batches.files import FileStore
from octavo.server.batches.lines import BatchLine, LineResult, expired, parse_line
from octavo.server.batches.progress import Progress
from octavo.server.batches.records import BatchError, BatchErrors, RequestCounts, StoredBatch
from octavo.server.batches.run import as_they_end, run_line
from octavo.server.batches.store import BatchStore
from octavo.server.context import ServerContext
from octavo.server.openai.errors import answer_to
from octavo.server.tenants import in_name_of


class Worker:
    """Answers the lines of batches, and keeps their records.

    At most half of the engine's sequences at once are a batch's, so that there is always room for requests that
    somebody waits for.
    """

    def __init__(
        self, context: ServerContext, routes: Mapping[str, ASGIApp], files: FileStore, batches: BatchStore
    ) -> None:
        self._context = context
        self._routes = routes
        self._files = files
        self._batches = batches
        self._places = max(1, context.engine.info.max_num_seqs // 2)
        self._free = asyncio.Semaphore(self._places)
        self._queues: dict[str, list[StoredBatch]] = {}
        self._tenants: dict[str, asyncio.Task[None]] = {}
        self._running: dict[str, asyncio.Task[bool]] = {}
        """Of each batch whose lines are being run, by its id."""
        self._stopped = False

    def add(self, stored: StoredBatch) -> None:
        """Run a batch when its turn comes. Call it in the event loop."""
        tenant = stored.tenant
        self._queues.setdefault(tenant, []).append(stored)
        if tenant not in self._tenants or self._tenants[tenant].done():
            self._tenants[tenant] = asyncio.ensure_future(self._serve(tenant))

    def cancel(self, stored: StoredBatch) -> None:
        """End a batch early; what is finished stays."""
        running = self._running.get(stored.batch.id)
        if running is not None:
            running.cancel()
        elif stored in (queue := self._queues.get(stored.tenant, [])):
            queue.remove(stored)
            self._finish(stored)

    async def stop(self) -> None:
        """End at once; unfinished batches are gone on with by the next server."""
        self._stopped = True
        tasks = [*self._tenants.values(), *self._running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, tenant: str) -> None:
        with in_name_of(tenant):
            queue = self._queues[tenant]
            while queue and not self._stopped:
                stored = queue.pop(0)
                try:
                    await self._run(stored)
                except Exception as error:
                    self._fail(stored, error)

    async def _run(self, stored: StoredBatch) -> None:
        if stored.batch.status == "validating" and not await self._validate(stored):
            return
        with Progress(self._files.path(stored.output_id), self._files.path(stored.error_id)) as progress:
            self._count(stored, progress)
            if stored.batch.status == "in_progress" and not await self._run_lines(stored, progress):
                return
            await asyncio.to_thread(progress.sync)
        self._finish(stored)

    async def _validate(self, stored: StoredBatch) -> bool:
        batch = stored.batch
        path, limit = self._files.path(batch.input_file_id), self._context.http.max_body_bytes
        total, errors = await asyncio.to_thread(check_input, path, batch.endpoint, limit)
        if stored.batch.status == "cancelling":
            return True
        if errors:
            batch.errors = BatchErrors(data=errors)
            self._end(stored, "failed")
            return False
        batch.status, batch.in_progress_at = "in_progress", _now()
        batch.request_counts = RequestCounts(total=total)
        self._batches.save(stored)
        return True

    async def _run_lines(self, stored: StoredBatch, progress: Progress) -> bool:
        """Whether the batch has come to its end, and not the server."""
        batch = stored.batch
        task = self._running[batch.id] = asyncio.ensure_future(self._answer_lines(stored, progress))
        try:
            ended = await asyncio.wait_for(task, max(0.0, batch.expires_at - time.time()))
        except TimeoutError:
            await asyncio.to_thread(self._expire_lines, stored, progress)
            self._count(stored, progress)
            self._end(stored, "expired", close=True)
            return False
        except asyncio.CancelledError:
            if batch.status != "cancelling" or self._stopped:
                raise
            return True
        finally:
            del self._running[batch.id]
        return ended

    async def _answer_lines(self, stored: StoredBatch, progress: Progress) -> bool:
        interrupted = False

        async def answer(line: BatchLine) -> LineResult | None:
            nonlocal interrupted
            async with self._free:
                try:
                    return None if interrupted else await run_line(self._routes, line)
                except (ShuttingDownError, EngineDeadError):
                    interrupted = True  # others may still come to their end; nothing new is begun
                    return None

        def work() -> Iterator[tuple[None, Coroutine[Any, Any, LineResult | None]]]:
            for line in self._unfinished_lines(stored, progress):
                if interrupted:
                    return
                yield None, answer(line)

        async with contextlib.aclosing(as_they_end(work(), self._places)) as results:
            async for _, result in results:
                if result is not None:
                    progress.add(result)
                    self._count(stored, progress)
        return not interrupted

    def _unfinished_lines(self, stored: StoredBatch, progress: Progress) -> Iterator[BatchLine]:
        with self._files.path(stored.batch.input_file_id).open("rb") as lines:
            for raw in lines:
                if raw.strip():
                    line = parse_line(raw, (stored.batch.endpoint,))
                    if line.custom_id not in progress.done:
                        yield line

    def _expire_lines(self, stored: StoredBatch, progress: Progress) -> None:
        for line in self._unfinished_lines(stored, progress):
            progress.add(expired(line))

    def _count(self, stored: StoredBatch, progress: Progress) -> None:
        counts = stored.batch.request_counts
        counts.completed, counts.failed = progress.num_completed, progress.num_failed

    def _finish(self, stored: StoredBatch) -> None:
        batch = stored.batch
        if batch.status == "cancelling":
            self._end(stored, "cancelled", close=True)
            return
        if batch.status == "in_progress":
            batch.status, batch.finalizing_at = "finalizing", _now()
            self._batches.save(stored)
        self._end(stored, "completed", close=True)

    def _fail(self, stored: StoredBatch, error: Exception) -> None:
        """End a batch that cannot go on, for a full disk say. What is finished stays."""
        said = answer_to(error)
        stored.batch.errors = BatchErrors(
            data=[BatchError(code=said.code, message=said.message, param=None, line=None)]
        )
        with contextlib.suppress(OSError):
            self._end(stored, "failed", close=True)

    def _end(self, stored: StoredBatch, status: Any, *, close: bool = False) -> None:
        """Write the last record. With `close` what was written becomes files; doing so twice changes nothing."""
        batch = stored.batch
        for kind, file_id in (("output", stored.output_id), ("error", stored.error_id)):
            path = self._files.path(file_id)
            if close and path.exists() and path.stat().st_size:
                self._files.adopt(file_id, stored.tenant, f"{batch.id}_{kind}.jsonl", stored.output_life_s)
                setattr(batch, f"{kind}_file_id", file_id)
            else:
                path.unlink(missing_ok=True)
        batch.status = status
        setattr(batch, f"{status}_at", _now())
        self._batches.save(stored)
        self._files.in_use[batch.input_file_id] -= 1


def _now() -> int:
    return int(time.time())
