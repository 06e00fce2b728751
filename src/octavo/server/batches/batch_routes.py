"""/v1/batches."""

from __future__ import annotations

import time
from typing import Any

import msgspec
from starlette.types import Receive, Scope, Send

from octavo.errors import RequestError
from octavo.server.batches.files import MAX_LIFE_S, MIN_LIFE_S, no_such_file
from octavo.server.batches.records import WINDOW, Batch
from octavo.server.batches.service import Batching
from octavo.server.endpoint import Endpoint
from octavo.server.gate import send_json
from octavo.server.metadata import check_metadata
from octavo.server.openai.protocol import convert
from octavo.server.pages import Page, page_of
from octavo.server.sse import json_bytes
from octavo.server.tokens import unknown_fields

DEFAULT_PAGE, MAX_PAGE = 20, 100


class ExpiresAfter(msgspec.Struct, kw_only=True):
    anchor: str
    seconds: int


class BatchRequest(msgspec.Struct, kw_only=True):
    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: dict[str, str] | None = None
    output_expires_after: ExpiresAfter | None = None


class BatchPage(Page[Batch], kw_only=True):
    pass


class Batches:
    """GET and POST /v1/batches."""

    def __init__(self, batching: Batching) -> None:
        self._batching = batching
        self._create = CreateBatch(batching)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        batches = self._batching.batches  # or the server keeps none
        if scope["method"] == "POST":
            await self._create(scope, receive, send)
            return
        page = page_of(scope, batches.list(self._batching.tenant()), BatchPage, DEFAULT_PAGE, MAX_PAGE)
        await send_json(send, 200, json_bytes(page))


class CreateBatch(Endpoint[BatchRequest]):
    """POST /v1/batches."""

    def __init__(self, batching: Batching) -> None:
        super().__init__(batching.context)
        self._batching = batching

    def parse(self, body: dict[str, Any]) -> tuple[BatchRequest, list[str]]:
        request = convert(body, BatchRequest)
        routes = self._batching.routes
        if request.endpoint not in routes:
            raise RequestError("endpoint", request.endpoint, "one of " + ", ".join(routes))
        if request.completion_window != WINDOW:
            raise RequestError("completion_window", request.completion_window, WINDOW)
        check_metadata(request.metadata)
        _check_life(request.output_expires_after)
        return request, unknown_fields(body, BatchRequest)

    async def answer(self, request: BatchRequest, scope: Scope, send: Send, arrival_s: float) -> None:
        batching, tenant = self._batching, self._batching.tenant()
        file = batching.files.get(tenant, request.input_file_id, param="input_file_id")
        if file.purpose != "batch":
            raise no_such_file("input_file_id")
        life = request.output_expires_after
        stored = batching.batches.create(
            tenant, request.endpoint, file.id, request.metadata, None if life is None else life.seconds
        )
        batching.files.in_use[file.id] += 1
        batching.worker.add(stored)
        await send_json(send, 200, json_bytes(stored.batch))


def _check_life(life: ExpiresAfter | None) -> None:
    if life is None:
        return
    if life.anchor != "created_at":
        raise RequestError("output_expires_after.anchor", life.anchor, "created_at")
    if not MIN_LIFE_S <= life.seconds <= MAX_LIFE_S:
        allowed = f"an integer from {MIN_LIFE_S} to {MAX_LIFE_S}"
        raise RequestError("output_expires_after.seconds", life.seconds, allowed)


class OneBatch:
    """GET /v1/batches/{batch_id}."""

    def __init__(self, batching: Batching) -> None:
        self._batching = batching

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        stored = self._batching.batches.get(self._batching.tenant(), scope["path_params"]["batch_id"])
        await send_json(send, 200, json_bytes(stored.batch))


class CancelBatch:
    """POST /v1/batches/{batch_id}/cancel."""

    def __init__(self, batching: Batching) -> None:
        self._batching = batching

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        batching = self._batching
        stored = batching.batches.get(batching.tenant(), scope["path_params"]["batch_id"])
        batch = stored.batch
        if batch.status in ("validating", "in_progress"):
            batch.status, batch.cancelling_at = "cancelling", int(time.time())
            batching.batches.save(stored)
            batching.worker.cancel(stored)
        elif batch.status != "cancelling":
            raise RequestError("batch_id", message=f"batch_id: the batch is {batch.status} and cannot be cancelled")
        await send_json(send, 200, json_bytes(batch))
