"""POST /v1/responses and its input_tokens; GET and DELETE /v1/responses/{response_id}, and GET its input_items."""

from __future__ import annotations

from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import msgspec
from starlette.types import Receive, Scope, Send

from octavo.server.context import ServerContext
from octavo.server.endpoint import Endpoint
from octavo.server.gate import send_json
from octavo.server.keep_alive import frames_to
from octavo.server.openai.chat import open_chat, render
from octavo.server.openai.errors import UnsupportedFieldError
from octavo.server.openai.fields import IGNORED_RESPONSES, REFUSED_RESPONSES, check_other_fields
from octavo.server.openai.protocol import ChatRequest, convert, parse_chat
from octavo.server.openai.tools import tool_use
from octavo.server.pages import page_of
from octavo.server.query import query_choice
from octavo.server.responses.items import Conversation, as_items, told_items
from octavo.server.responses.protocol import DeletedResponse, InputTokens, ItemPage, Response, ResponsesRequest
from octavo.server.responses.reply import ResponseWriter
from octavo.server.responses.store import ResponseStore
from octavo.server.responses.translate import chat_body, check_request, namer
from octavo.server.sse import json_bytes, send_events
from octavo.server.tenants import current_tenant
from octavo.server.translated import renamed


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request, and the chat that it is."""

    request: ResponsesRequest
    conversation: Conversation
    items: list[dict[str, Any]]
    chat: ChatRequest


class Responses(Endpoint[_Asked]):
    """POST /v1/responses."""

    def __init__(self, context: ServerContext, store: ResponseStore) -> None:
        super().__init__(context)
        self._store = store

    def parse(self, body: dict[str, Any]) -> tuple[_Asked, list[str]]:
        known = ResponsesRequest.__struct_fields__
        unknown = check_other_fields(body, known, REFUSED_RESPONSES, IGNORED_RESPONSES)
        request = convert(body, ResponsesRequest)
        check_request(request)
        conversation = Conversation()
        if request.instructions is not None:
            conversation.put({"role": "system", "content": request.instructions}, "instructions")
        items: list[dict[str, Any]] = []
        if request.previous_response_id is not None:
            items = self._store.items(current_tenant(), request.previous_response_id)
            for item in items:
                conversation.add(item, "previous_response_id")
        for i, item in enumerate(new := as_items(request.input)):
            conversation.add(item, f"input[{i}]" if isinstance(request.input, list) else "input")
        translated = chat_body(request, conversation)
        with renamed(namer(conversation)):
            chat, _ = parse_chat(translated, self.context.http)
        return _Asked(request, conversation, items + new, chat), unknown

    async def answer(self, request: _Asked, scope: Scope, send: Send, arrival_s: float) -> None:
        asked, context, tenant = request.request, self.context, current_tenant()
        with renamed(namer(request.conversation)):
            chat = await open_chat(context, request.chat, arrival_s, param="input", fill=True)
        if request.chat.logprobs and chat.parsing is not None:
            message = "top_logprobs: are not told where reasoning or tool calls are parsed; use chat completions"
            raise UnsupportedFieldError("top_logprobs", message)

        def keep(response: Response) -> None:
            if response.store:
                output = [msgspec.to_builtins(item) for item in response.output]
                self._store.put(response.id, tenant, json_bytes(response), request.items + output)

        writer = ResponseWriter(asked, chat, context.engine.tokenizer, asked.model or context.model_name, keep)
        if asked.stream:
            await send_events(send, frames_to(context, scope, writer.frames), context.lifecycle, writer.closing)
        else:
            await send_json(send, 200, json_bytes(await writer.whole()))


class InputTokensRoute(Responses):
    """POST /v1/responses/input_tokens: what the prompt of such a request would have."""

    async def answer(self, request: _Asked, scope: Scope, send: Send, arrival_s: float) -> None:
        context = self.context
        context.check_model(request.chat.model)
        with renamed(namer(request.conversation)):
            token_ids = await render(context, request.chat, tool_use(context, request.chat))
        await send_json(send, 200, json_bytes(InputTokens(input_tokens=len(token_ids))))


class InputItems:
    """GET /v1/responses/{response_id}/input_items: what the response went on from."""

    def __init__(self, store: ResponseStore) -> None:
        self._store = store

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response_id = scope["path_params"]["response_id"]
        items = told_items(self._store.input_items(current_tenant(), response_id), response_id)
        if query_choice(scope, "order", ("desc", "asc")) == "desc":
            items.reverse()
        page = page_of(scope, items, ItemPage, 20, 100, id_of=itemgetter("id"))
        await send_json(send, 200, json_bytes(page))


class OneResponse:
    """GET and DELETE /v1/responses/{response_id}."""

    def __init__(self, store: ResponseStore) -> None:
        self._store = store

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response_id, tenant = scope["path_params"]["response_id"], current_tenant()
        if scope["method"] == "DELETE":
            self._store.delete(tenant, response_id)
            await send_json(send, 200, json_bytes(DeletedResponse(id=response_id)))
        else:
            await send_json(send, 200, self._store.get(tenant, response_id).response)
