"""/v1/kv: where every KV block is, for clients and, with the admin key, for those who run the server."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.types import Receive, Scope, Send

from octavo.errors import RequestError
from octavo.messages import KVAccount, KVStats
from octavo.server.body import read_json_object
from octavo.server.context import ServerContext
from octavo.server.gate import IS_ADMIN, send_json
from octavo.server.openai.chat import render_messages
from octavo.server.openai.errors import problem
from octavo.server.openai.protocol import convert
from octavo.server.query import query_integer
from octavo.server.sse import json_bytes
from octavo.server.tenants import current_tenant

MAX_BLOCKS = 10_000
"""Blocks in one reply."""
DEFAULT_BLOCKS = 100

_COUNTS = [name for name in KVAccount.__struct_fields__ if name != "tenant"]


class KVStatsRoute:
    """GET /v1/kv/stats: totals for everybody, accounts of single tenants for the tenant itself and the admin."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        stats = await self._context.engine.kv_stats()
        tenant = None if scope[IS_ADMIN] else current_tenant()
        await send_json(send, 200, json_bytes(stats_body(stats, tenant)))


def stats_body(stats: KVStats, tenant: str | None) -> dict[str, Any]:
    """The reply: what the core counts, what follows from it, and the accounts of `tenant`, or of all for None."""
    body = msgspec.to_builtins(stats)
    accounts = body.pop("accounts")
    size = stats.bytes_per_block
    return {
        "object": "kv.stats",
        **body,
        "shared_ratio": stats.num_references / stats.num_held_blocks if stats.num_held_blocks else 0.0,
        "tail_waste": _share(stats.num_unfilled_slots, stats.num_held_blocks * stats.block_size),
        "bytes": {
            "device": {
                "total": stats.num_blocks * size,
                "held": stats.num_held_blocks * size,
                "pinned": stats.num_pinned_blocks * size,
                "cached": stats.num_cached_blocks * size,
                "free": stats.num_free_blocks * size,
            },
            "host": {"total": stats.num_host_blocks * size, "held": stats.num_host_held_blocks * size},
        },
        "totals": {name: sum(getattr(account, name) for account in stats.accounts) for name in _COUNTS},
        "accounts": [account for account in accounts if tenant in (None, account["tenant"])],
    }


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


class KVBlocksRoute:
    """GET /v1/kv/blocks?first=&count=: single blocks, a page at a time."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        first = query_integer(scope, "first", 1, 1, (1 << 31) - 1)
        count = query_integer(scope, "count", DEFAULT_BLOCKS, 1, MAX_BLOCKS)
        engine = self._context.engine
        blocks = await engine.kv_blocks(first, count)
        after = first + count
        body = {
            "object": "list",
            "data": [msgspec.to_builtins(block) for block in blocks],
            "next": after if after < engine.info.num_blocks else None,
        }
        await send_json(send, 200, json_bytes(body))


class AuditRequest(msgspec.Struct, forbid_unknown_fields=True):
    repair: bool = False


class KVAuditRoute:
    """GET, or POST {"repair": true} /v1/kv/audit: what is wrong with the block memory. It never stops the engine."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        repair = False
        if scope["method"] == "POST":
            limit = self._context.http.max_body_bytes
            repair = convert(await read_json_object(scope, receive, limit, may_be_empty=True), AuditRequest).repair
        broken = await self._context.engine.audit(repair)
        left = await self._context.engine.audit() if repair and broken else broken
        body = {
            "object": "kv.audit",
            "sound": not left,
            "broken": broken,
            "left": left,
            "repaired": len(left) < len(broken),
        }
        await send_json(send, 200, json_bytes(body))


class ResetRequest(msgspec.Struct, forbid_unknown_fields=True):
    tenant: str | None = None
    """Whose; everybody's without one."""


class KVResetRoute:
    """POST /v1/kv/reset: forget what is cached; what is held or published stays."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await read_json_object(scope, receive, self._context.http.max_body_bytes, may_be_empty=True)
        freed = await self._context.engine.reset_prefix_cache(convert(body, ResetRequest).tenant)
        await send_json(send, 200, json_bytes({"object": "kv.reset", "num_freed_blocks": freed}))


class PublishRequest(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    text: str | None = None
    token_ids: list[int] | None = None
    messages: list[dict[str, Any]] | None = None


class PublishedRoute:
    """/v1/kv/published: prefixes, system prompts say, that are computed once, kept, and shared by all tenants."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "POST":
            await self._publish(scope, receive, send)
        elif scope["method"] == "DELETE":
            await self._withdraw(scope["path_params"]["name"], send)
        else:
            data = [msgspec.to_builtins(prefix) for prefix in await self._context.engine.published()]
            await send_json(send, 200, json_bytes({"object": "list", "data": data}))

    async def _publish(self, scope: Scope, receive: Receive, send: Send) -> None:
        context = self._context
        context.lifecycle.check_open()
        request = convert(await read_json_object(scope, receive, context.http.max_body_bytes), PublishRequest)

        async def work() -> None:
            param, prompt = await _prompt_of(context, request)
            prefix = await context.engine.publish(request.name, prompt, param=param)
            await send_json(send, 200, json_bytes({"object": "kv.published", **msgspec.to_builtins(prefix)}))

        await context.lifecycle.run(work(), receive)

    async def _withdraw(self, name: str, send: Send) -> None:
        if not await self._context.engine.withdraw(name):
            raise problem(404, "nothing is published under this name", "not_found", param="name")
        await send_json(send, 200, json_bytes({"object": "kv.published", "name": name, "withdrawn": True}))


async def _prompt_of(context: ServerContext, request: PublishRequest) -> tuple[str, str | list[int]]:
    """What to publish, and the name of the field that it came in."""
    given = {name: value for name in ("text", "token_ids", "messages") if (value := getattr(request, name)) is not None}
    if len(given) != 1:
        raise RequestError("text", message="exactly one of text, token_ids and messages must be given")
    if request.messages is not None:
        return "messages", await render_messages(context, request.messages, open_answer=False)
    return next(iter(given.items()))
