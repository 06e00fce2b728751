"""POST /v1/chat/completions."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.types import Scope, Send

from octavo.engine.chat_budget import OutOfPatienceError, patience_s
from octavo.engine.outputs import TextDelta
from octavo.engine.parsers.pieces import Piece, Text
from octavo.messages import SamplingParams
from octavo.server.context import ServerContext
from octavo.server.endpoint import Endpoint
from octavo.server.gate import send_json
from octavo.server.keep_alive import frames_to
from octavo.server.openai.chat_reply import ChatReply, ParsedChatReply
from octavo.server.openai.generation import LONG_PROMPT_CHARS, Generation, prepare
from octavo.server.openai.messages import plain_messages
from octavo.server.openai.protocol import ChatRequest, parse_chat, sampling_params
from octavo.server.openai.tools import tool_use
from octavo.server.parsing import Parsing
from octavo.server.sampling_defaults import NO_DEFAULTS, SamplingDefaults
from octavo.server.sse import json_bytes, send_events
from octavo.server.tool_use import ToolUse

PATIENCE_S = 0.02
"""For which other streams can wait while a conversation is rendered on the server's loop."""


class ChatCompletions(Endpoint[ChatRequest]):
    """The endpoint, as an ASGI application."""

    def parse(self, body: dict[str, Any]) -> tuple[ChatRequest, list[str]]:
        return parse_chat(body, self.context.http)

    async def answer(self, request: ChatRequest, scope: Scope, send: Send, arrival_s: float) -> None:
        context = self.context
        chat = await open_chat(context, request, arrival_s)
        if chat.parsing is None:
            reply = ChatReply(context, request, chat.generation)
        else:
            reply = ParsedChatReply(context, request, chat.generation, chat.parsing)
        if request.stream:
            await send_events(send, frames_to(context, scope, reply.frames), context.lifecycle)
        else:
            await send_json(send, 200, json_bytes(reply.whole(await chat.generation.collect())))


@dataclass(frozen=True, slots=True)
class OpenChat:
    """A chat that is ready to be answered: its prompt is checked and tokenized, and nothing runs yet."""

    generation: Generation
    parsing: Parsing | None
    """None where answers are text and nothing else."""
    tools: ToolUse | None

    def pieces(self, delta: TextDelta) -> list[Piece]:
        """What a delta adds to the first answer."""
        if self.parsing is not None:
            return self.parsing.pieces(0, delta)
        return [Text(delta.text)] if delta.text else []


async def open_chat(
    context: ServerContext, request: ChatRequest, arrival_s: float, *, param: str = "messages", fill: bool = False
) -> OpenChat:
    """Everything before the first token of a chat, whatever API it came through.

    Args:
        arrival_s: `time.perf_counter()` when the request came.
        param: The field that holds the conversation, for messages.
        fill: Whether a limit beyond the room after the prompt means that room, and is no error.

    Raises:
        RequestError, OverloadedError, ShuttingDownError: If it cannot be answered as asked.
    """
    context.check_model(request.model)
    params = chat_params(request, context.defaults)
    tools = tool_use(context, request)
    token_ids = await render(context, request, tools)
    fill = fill or asked_limit(request) is None
    if fill and params.max_tokens is not None and len(token_ids) + params.max_tokens > context.engine.max_tokens:
        params = msgspec.structs.replace(params, max_tokens=None)
    begin = _answer_begin(request)
    params, parsing = context.answer_format.parsing(token_ids, params, tools, answer_begin=begin)
    shown = frozenset[int]() if parsing is None else parsing.shown_special_ids
    prompts = await prepare(context, [(param, token_ids)], params, request, shown)
    reasoning = None if parsing is None else parsing.reasoning
    return OpenChat(Generation(context, prompts, params.n, arrival_s, reasoning), parsing, tools)


def chat_params(request: ChatRequest, defaults: SamplingDefaults = NO_DEFAULTS) -> SamplingParams:
    """The request's sampling parameters. Without a limit an answer may fill the context."""
    limit = defaults.limit(asked_limit(request))
    logprobs = (request.top_logprobs or 0) if request.logprobs else None
    return sampling_params(request, defaults, max_tokens=limit, logprobs=logprobs)


def asked_limit(request: ChatRequest) -> int | None:
    """How many tokens the request lets its answer have at most, if it says."""
    return request.max_completion_tokens if request.max_completion_tokens is not None else request.max_tokens


async def render(context: ServerContext, request: ChatRequest, tools: ToolUse | None = None) -> list[int]:
    """The conversation as token ids, through the model's chat template."""
    kwargs = {**context.template_kwargs, **(request.chat_template_kwargs or {})}
    if request.reasoning_effort is not None and "reasoning_effort" not in (request.chat_template_kwargs or {}):
        kwargs["reasoning_effort"] = request.reasoning_effort
    continued = bool(request.continue_final_message)
    return await render_messages(
        context,
        request.messages,
        open_answer=request.add_generation_prompt is not False and not continued,
        continued=continued,
        tools=None if tools is None else tools.tools,
        **kwargs,
    )


async def render_messages(
    context: ServerContext,
    messages: list[dict[str, Any]] | None,
    *,
    open_answer: bool,
    continued: bool = False,
    tools: list[dict[str, Any]] | None = None,
    **template_kwargs: Any,
) -> list[int]:
    """Messages as token ids; with `open_answer` they end where the answer begins, and when `continued` where the last
    message ends."""

    def work() -> list[int]:
        plain = plain_messages(messages)
        context.engine.check_length(sum(len(str(message.get("content") or "")) for message in plain), "messages")
        return context.engine.render_chat(
            plain,
            add_generation_prompt=open_answer,
            continue_final_message=continued,
            tools=tools,
            **template_kwargs,
        )

    if _is_long(messages) or tools:
        return await asyncio.to_thread(work)
    before = patience_s.set(PATIENCE_S)
    try:
        return work()
    except OutOfPatienceError:  # a template may take seconds for a short conversation
        pass
    finally:
        patience_s.reset(before)
    return await asyncio.to_thread(work)


def _answer_begin(request: ChatRequest) -> str:
    """What the prompt already holds of the answer."""
    content = (request.messages or [{}])[-1].get("content") if request.continue_final_message else None
    return content if isinstance(content, str) else ""


def _is_long(messages: list[dict[str, Any]] | None) -> bool:
    """Whether rendering may take long enough for other streams to notice. Looks at a few messages only."""
    if messages is None or len(messages) > 64:
        return messages is not None
    texts = [message.get("content") for message in messages]
    num_chars = sum(len(text) for text in texts if isinstance(text, str))
    return num_chars > LONG_PROMPT_CHARS or any(isinstance(text, list) for text in texts)
