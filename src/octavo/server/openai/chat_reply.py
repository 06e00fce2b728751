"""Answers to chats, streamed or whole."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator
from typing import Any

from octavo.engine.outputs import TextDelta
from octavo.engine.parsers.pieces import Text
from octavo.messages import TokenLogprobs
from octavo.server.context import ServerContext
from octavo.server.line import Line
from octavo.server.openai.chunks import ChunkWriter
from octavo.server.openai.event_tap import event_frames
from octavo.server.openai.generation import Answer, Generation
from octavo.server.openai.logprobs import chat_logprobs, prompt_logprobs
from octavo.server.openai.parsed import delta_fields, message_fields, one_call_each
from octavo.server.openai.protocol import ChatRequest
from octavo.server.parsing import Parsing

ANSWER_ROLE = "assistant"


class ChatReply:
    """Writes the answer to one request, streamed or whole."""

    def __init__(self, context: ServerContext, request: ChatRequest, generation: Generation) -> None:
        self._request = request
        self._generation = generation
        self._tokenizer = context.engine.tokenizer
        self._head = {
            "id": f"chatcmpl-{request.request_id or uuid.uuid4().hex}",
            "object": "chat.completion.chunk" if request.stream else "chat.completion",
            "created": int(time.time()),
            "model": request.model or context.model_name,
            "system_fingerprint": context.fingerprint,
        }
        self._writer = ChunkWriter(self._head, "chat", request, generation)
        self._started: set[int] = set()

    def frames(self, line: Line | None = None) -> AsyncGenerator[bytes, None]:
        """The stream's frames, usage included, without the last `[DONE]`; see `event_frames`."""
        return event_frames(self._generation, line, self._frames_of, self._writer.ending)

    def _frames_of(self, index: int, delta: TextDelta) -> bytes:
        """What a delta adds to the stream."""
        chunk = self._writer.chunk(index, delta, delta.text, self._logprobs(delta.logprobs))
        return chunk if index in self._started else self._begin(index, "") + chunk

    def _begin(self, index: int, content: str | None) -> bytes:
        """The first delta of a choice."""
        self._started.add(index)
        return self._writer.role(index, ANSWER_ROLE, content)

    def whole(self, answers: list[Answer]) -> dict[str, Any]:
        """The body of a reply that is not streamed."""
        body: dict[str, Any] = {
            **self._head,
            "choices": [self._whole_choice(answer) for answer in answers],
            "usage": self._generation.usage(),
        }
        prompt = self._generation.prompt_logprobs[0]
        if self._request.prompt_logprobs is not None and prompt is not None:
            body["prompt_logprobs"] = prompt_logprobs(self._tokenizer, prompt)
        return body

    def _whole_choice(self, answer: Answer) -> dict[str, Any]:
        message, reason = self._message(answer)
        choice = {
            "index": answer.index,
            "message": message,
            "logprobs": self._logprobs(answer.logprobs) if self._request.logprobs else None,
            "finish_reason": reason,
            "stop_reason": answer.stop_reason,
        }
        return choice if answer.score is None else {**choice, "score": answer.score}

    def _message(self, answer: Answer) -> tuple[dict[str, Any], str | None]:
        """The message, and why it ended."""
        message = {"role": ANSWER_ROLE, "content": "".join(answer.text), "refusal": None}
        return message, answer.finish_reason

    def _logprobs(self, entries: list[TokenLogprobs] | None) -> dict[str, Any] | None:
        if not self._request.logprobs or not entries:
            return None
        return chat_logprobs(self._tokenizer, entries, self._request.top_logprobs or 0)


class ParsedChatReply(ChatReply):
    """A reply whose answers hold more than text."""

    def __init__(self, context: ServerContext, request: ChatRequest, generation: Generation, parsing: Parsing) -> None:
        super().__init__(context, request, generation)
        self._parsing = parsing
        self._with_reasoning = request.include_reasoning is not False

    def _frames_of(self, index: int, delta: TextDelta) -> bytes:
        chunk = self._chunk(index, delta)
        return chunk if index in self._started else self._begin(index, None) + chunk

    def _chunk(self, index: int, delta: TextDelta) -> bytes:
        pieces = self._parsing.pieces(index, delta)
        if len(pieces) == 1 and delta.finish_reason is None and isinstance(text := pieces[0], Text):
            return self._writer.chunk(index, delta, text.text, self._logprobs(delta.logprobs))
        logprobs, chunks = self._logprobs(delta.logprobs), []
        for group in one_call_each(pieces):
            fields = delta_fields(group, with_reasoning=self._with_reasoning)
            if fields:
                chunks.append(self._writer.message(index, fields, delta, logprobs, None))
                logprobs = None  # they are said once
        reason = self._parsing.finish_reason(index, delta.finish_reason)
        return b"".join([*chunks, self._writer.message(index, {}, delta, logprobs, reason)])

    def _message(self, answer: Answer) -> tuple[dict[str, Any], str | None]:
        parsed = self._parsing.whole(answer.index, "".join(answer.text), answer.finish_reason)
        reason = self._parsing.finish_reason(answer.index, answer.finish_reason)
        return {"role": ANSWER_ROLE, **message_fields(parsed, with_reasoning=self._with_reasoning)}, reason
