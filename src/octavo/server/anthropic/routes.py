"""POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

from typing import Any

from starlette.types import Scope, Send

from octavo.errors import RequestError
from octavo.server.anthropic.protocol import CountReply, CountRequest, MessagesRequest
from octavo.server.anthropic.reply import CLOSING, MessageWriter
from octavo.server.anthropic.translate import chat_body, field_name
from octavo.server.endpoint import Endpoint
from octavo.server.gate import send_json
from octavo.server.keep_alive import frames_to
from octavo.server.openai.chat import open_chat, render
from octavo.server.openai.fields import IGNORED_MESSAGES, REFUSED_COUNT, REFUSED_MESSAGES, check_other_fields
from octavo.server.openai.protocol import ChatRequest, convert, parse_chat
from octavo.server.openai.tools import tool_use
from octavo.server.sse import json_bytes, send_events
from octavo.server.translated import renamed


class Messages(Endpoint[tuple[MessagesRequest, ChatRequest]]):
    """POST /v1/messages."""

    def parse(self, body: dict[str, Any]) -> tuple[tuple[MessagesRequest, ChatRequest], list[str]]:
        known = MessagesRequest.__struct_fields__
        unknown = check_other_fields(body, known, REFUSED_MESSAGES, IGNORED_MESSAGES)
        request = convert(body, MessagesRequest)
        budget = None if request.thinking is None else request.thinking.budget_tokens
        if budget is not None and budget >= request.max_tokens:
            raise RequestError("thinking.budget_tokens", budget, f"less than max_tokens ({request.max_tokens})")
        translated = chat_body(request)
        with renamed(field_name):
            chat, _ = parse_chat(translated, self.context.http)
        return (request, chat), unknown

    async def answer(
        self, request: tuple[MessagesRequest, ChatRequest], scope: Scope, send: Send, arrival_s: float
    ) -> None:
        asked, translated = request
        with renamed(field_name):
            chat = await open_chat(self.context, translated, arrival_s, fill=True)
        writer = MessageWriter(asked, chat, asked.model, self.context.defaults.limit(asked.max_tokens))
        if asked.stream:
            frames = frames_to(self.context, scope, writer.frames)
            await send_events(send, frames, self.context.lifecycle, CLOSING)
        else:
            await send_json(send, 200, json_bytes(await writer.whole()))


class CountTokens(Endpoint[ChatRequest]):
    """POST /v1/messages/count_tokens: what the prompt of such a request would have."""

    def parse(self, body: dict[str, Any]) -> tuple[ChatRequest, list[str]]:
        # Clients send what they will send to /v1/messages; what plays no part in the prompt is no mistake of theirs.
        known = {*CountRequest.__struct_fields__, *MessagesRequest.__struct_fields__}
        unknown = check_other_fields(body, known, REFUSED_COUNT, IGNORED_MESSAGES)
        request = convert(body, CountRequest)
        translated = chat_body(request)
        with renamed(field_name):
            chat, _ = parse_chat(translated, self.context.http)
        return chat, unknown

    async def answer(self, request: ChatRequest, scope: Scope, send: Send, arrival_s: float) -> None:
        self.context.check_model(request.model)
        with renamed(field_name):
            token_ids = await render(self.context, request, tool_use(self.context, request))
        await send_json(send, 200, json_bytes(CountReply(input_tokens=len(token_ids))))
