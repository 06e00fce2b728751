"""Small routes for probes, scrapers and people: /health, /ready, /ping, /load, /version, /metrics."""

from __future__ import annotations

import asyncio

import msgspec
from starlette.types import Receive, Scope, Send

from octavo import __version__
from octavo.errors import EngineDeadError, OverloadedError
from octavo.server.context import ServerContext
from octavo.server.gate import send_json
from octavo.server.metrics import CONTENT_TYPE, render
from octavo.server.openai.errors import UNAVAILABLE, problem
from octavo.server.sse import json_bytes

STATS_TIMEOUT_S = 5.0
"""An engine that takes longer to answer is reported as down; the rest of the metrics still come."""


class StatusReply(msgspec.Struct):
    status: str = "ok"


class VersionReply(msgspec.Struct):
    version: str


class LoadReply(msgspec.Struct, kw_only=True):
    server_load: int
    """Requests under way over HTTP; vLLM's name."""
    num_running: int
    """Sequences in the running batch."""
    num_waiting: int
    """Sequences waiting to be admitted."""


class Health:
    """200 while requests are served; 503 when the engine is dead, has requests and makes no step for too long, or the
    server drains and wants no more traffic."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.check()
        await send_json(send, 200, json_bytes(StatusReply()))

    def check(self) -> None:
        """Raises HTTPProblem or ShuttingDownError when requests are not served."""
        self._context.lifecycle.check_open()
        try:
            self._context.engine.check_health()
        except EngineDeadError:
            raise problem(503, "the engine has stopped", "engine_dead", type=UNAVAILABLE) from None
        stalled_s = self._context.engine.stalled_s()
        if stalled_s > self._context.http.stall_timeout:
            message = f"requests wait, and no step was made for {stalled_s:.1f} s"
            raise problem(503, message, "engine_stalled", type=UNAVAILABLE)


class Ready:
    """200 while new requests are welcome: as /health, and 503 with Retry-After while the queue is full too."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context
        self._health = Health(context)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._health.check()
        self._context.engine.check_room()
        await send_json(send, 200, json_bytes(StatusReply()))


class Ping:
    """200 while the process answers at all."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_json(send, 200, json_bytes(StatusReply()))


class Load:
    """How much there is to do at the moment of asking; of an engine too busy to say, at its last report."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        engine = self._context.engine
        try:
            stats = await engine.stats_now()
        except OverloadedError:
            stats = await engine.stats()
        under_way = self._context.lifecycle.num_running
        reply = LoadReply(server_load=under_way, num_running=stats.num_running, num_waiting=stats.num_waiting)
        await send_json(send, 200, json_bytes(reply))


class Version:
    """The version of Octavo."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_json(send, 200, json_bytes(VersionReply(__version__)))


class Metrics:
    """Prometheus text."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context = self._context
        try:
            context.engine.check_health()
            stats = await asyncio.wait_for(context.engine.stats(), STATS_TIMEOUT_S)
        except (EngineDeadError, TimeoutError):
            stats = None
        text = render(
            context.metrics,
            context.engine.info,
            stats,
            context.model_name,
            vllm_names=context.http.vllm_metric_names,
        )
        headers = (("content-type", CONTENT_TYPE),)
        await send_json(send, 200, text, headers)
