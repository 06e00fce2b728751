"""GET /v1/models."""

from __future__ import annotations

from typing import Any

from starlette.types import Receive, Scope, Send

from octavo.server.context import ServerContext
from octavo.server.gate import send_json
from octavo.server.sse import json_bytes


class Models:
    """The list, or with a `model_id` in the path one of its entries."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        model_id = scope["path_params"].get("model_id")
        if model_id is None:
            body: Any = {"object": "list", "data": [self._entry(name) for name in self._context.model_names]}
        else:
            self._context.check_model(model_id)
            body = self._entry(model_id)
        await send_json(send, 200, json_bytes(body))

    def _entry(self, name: str) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": self._context.created,
            "owned_by": "octavo",
            "root": self._context.model_name,
            "parent": None,
            "max_model_len": self._context.engine.info.max_model_len,
        }
