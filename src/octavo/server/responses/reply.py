"""The answer to one request of /v1/responses, streamed or whole. Both are made of the same pieces, so they agree."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Callable
from typing import Any

import msgspec

from octavo.engine.outputs import TextDelta
from octavo.engine.parsers.pieces import CallArguments, CallStart, ParsedAnswer, Piece, Text, ToolCall
from octavo.engine.parsers.pieces import Reasoning as Thought
from octavo.engine.tokenizer import Tokenizer
from octavo.messages import FINISH_LENGTH, SamplingParams, TokenLogprobs
from octavo.server.line import Line
from octavo.server.openai.chat import OpenChat
from octavo.server.openai.errors import answer_to
from octavo.server.openai.event_tap import event_frames
from octavo.server.openai.logprobs import chat_logprobs
from octavo.server.responses.protocol import (
    FunctionCall,
    IncompleteDetails,
    InputTokensDetails,
    OutputItem,
    OutputMessage,
    OutputText,
    OutputTokensDetails,
    Reasoning,
    ReasoningItem,
    ReasoningText,
    Response,
    ResponseError,
    ResponsesRequest,
    Status,
    TextConfig,
    TextFormat,
    Usage,
)
from octavo.server.sse import Closing, json_bytes, named_frame

Keep = Callable[[Response], None]
"""Called with a response that is complete, before its client has all of it."""


class ResponseWriter:
    """Writes a response.

    Args:
        model: What the answer calls the model.
        keep: Told of the whole response when it has ended.
    """

    def __init__(self, request: ResponsesRequest, chat: OpenChat, tokenizer: Tokenizer, model: str, keep: Keep) -> None:
        self._chat = chat
        self._keep = keep
        self._tokenizer = tokenizer
        self._num_top = request.top_logprobs or 0
        self.response = _begun(request, chat.generation.prompts[0].params, model)
        self._sequence = 0
        self._item: _OpenItem | None = None
        self._logprobs: list[dict[str, Any]] = []
        """Of tokens whose text is still to come."""
        self._started = False

    async def whole(self) -> Response:
        """The response, collected."""
        [answer] = await self._chat.generation.collect()
        text = "".join(answer.text)
        parsed = ParsedAnswer()
        last = TextDelta(index=0, text=text, token_ids=[], finish_reason=answer.finish_reason)
        parsed.add(self._chat.pieces(last))
        logprobs = self._read_logprobs(answer.logprobs)
        for part in parsed.parts or [Text("")]:
            item = _OpenItem(part, len(self.response.output))
            item.logprobs = logprobs
            self.response.output.append(item.close("completed"))
        self._end(answer.finish_reason)
        return self.response

    def frames(self, line: Line | None) -> AsyncGenerator[bytes, None]:
        """The stream, to `response.completed` or `response.incomplete`."""
        return event_frames(self._chat.generation, line, self._frames_of)

    @property
    def closing(self) -> Closing:
        """How the stream ends."""
        return Closing(b"", self._failed)

    def _frames_of(self, choice: int, delta: TextDelta) -> bytes:
        frames: list[bytes] = []
        if not self._started:
            self._started = True
            for kind in ("response.created", "response.in_progress"):
                frames.append(self._frame(kind, response=self.response))
        self._logprobs += self._read_logprobs(delta.logprobs)
        for piece in self._chat.pieces(delta):
            self._add(piece, frames)
        if delta.finish_reason is not None:
            if self._item is None and not self.response.output:
                self._open(Text(""), frames)
            self._close("incomplete" if delta.finish_reason == FINISH_LENGTH else "completed", frames)
            self._end(delta.finish_reason)
            frames.append(self._frame(f"response.{self.response.status}", response=self.response))
        return b"".join(frames)

    def _add(self, piece: Piece, frames: list[bytes]) -> None:
        if isinstance(piece, CallStart):
            self._open(ToolCall(piece.id, piece.name), frames)
            return
        if self._item is None or not self._item.takes(piece):
            self._open(type(piece)("") if isinstance(piece, Text | Thought) else ToolCall("", ""), frames)
        assert self._item is not None
        logprobs = b""
        if isinstance(piece, Text):
            taken, self._logprobs = self._logprobs, []
            self._item.logprobs += taken
            logprobs = b',"logprobs":' + json_bytes(taken)
        self._item.texts.append(piece.text)
        frames.append(b"%b%b%b%b}\n\n" % (self._item.opening, json_bytes(piece.text), logprobs, self._next_number()))

    def _open(self, part: Text | Thought | ToolCall, frames: list[bytes]) -> None:
        self._close("completed", frames)
        item = self._item = _OpenItem(part, len(self.response.output))
        frames.append(self._frame("response.output_item.added", output_index=item.index, item=item.begun()))
        if item.part is not None:
            frames.append(self._frame("response.content_part.added", **item.where, part=item.part("")))

    def _close(self, status: Status, frames: list[bytes]) -> None:
        item, self._item = self._item, None
        if item is None:
            return
        item.logprobs += self._logprobs
        self._logprobs = []
        closed = item.close(status)
        frames.append(self._frame(f"response.{item.kind}.done", **item.where, **item.done()))
        if isinstance(closed, OutputMessage | ReasoningItem):
            frames.append(self._frame("response.content_part.done", **item.where, part=closed.content[0]))
        frames.append(self._frame("response.output_item.done", output_index=item.index, item=closed))
        self.response.output.append(closed)

    def _end(self, reason: str | None) -> None:
        response = self.response
        if reason == FINISH_LENGTH:
            response.status = "incomplete"
            response.incomplete_details = IncompleteDetails(reason="max_output_tokens")
            response.output[-1].status = "incomplete"
        else:
            response.status = "completed"
        response.completed_at = int(time.time())
        response.usage = self._usage()
        self._keep(response)

    def _failed(self, error: BaseException) -> bytes:
        reply = answer_to(error)
        self.response.status = "failed"
        self.response.error = ResponseError(code="server_error", message=reply.message)
        said = self._frame("error", code=reply.code, message=reply.message, param=reply.param)
        return said + self._frame("response.failed", response=self.response)

    def _read_logprobs(self, entries: list[TokenLogprobs] | None) -> list[dict[str, Any]]:
        if not entries:
            return []
        content: list[dict[str, Any]] = chat_logprobs(self._tokenizer, entries, self._num_top)["content"]
        return content

    def _usage(self) -> Usage:
        usage = self._chat.generation.usage()
        thought = usage.get("completion_tokens_details", {}).get("reasoning_tokens", 0)
        return Usage(
            input_tokens=usage["prompt_tokens"],
            input_tokens_details=InputTokensDetails(usage["prompt_tokens_details"]["cached_tokens"]),
            output_tokens=usage["completion_tokens"],
            output_tokens_details=OutputTokensDetails(thought),
            total_tokens=usage["total_tokens"],
        )

    def _frame(self, kind: str, **fields: Any) -> bytes:
        frame = named_frame(kind, {"type": kind, "sequence_number": self._sequence, **fields})
        self._sequence += 1
        return frame

    def _next_number(self) -> bytes:
        number = b',"sequence_number":%d' % self._sequence
        self._sequence += 1
        return number


class _OpenItem:
    """An item of the output while it grows.

    Attributes:
        kind: Of its events: `response.KIND.delta` and `response.KIND.done`.
        part: Makes the one part that its content has; None for calls.
        opening: What comes before the text of a delta.
    """

    def __init__(self, part: Text | Thought | ToolCall, index: int) -> None:
        self.index = index
        self.logprobs: list[dict[str, Any]] = []
        self.call = part if isinstance(part, ToolCall) else None
        self.part: Callable[[str], Any] | None = None
        match part:
            case Text(text):
                self.kind, prefix, self.texts = "output_text", "msg", [text]
                self.part = lambda text: OutputText(text=text)
            case Thought(text):
                self.kind, prefix, self.texts = "reasoning_text", "rs", [text]
                self.part = lambda text: ReasoningText(text=text)
            case ToolCall():
                self.kind, prefix, self.texts = "function_call_arguments", "fc", [part.arguments]
        self.id = f"{prefix}_{uuid.uuid4().hex}"
        self.where: dict[str, Any] = {"item_id": self.id, "output_index": index}
        if self.part is not None:
            self.where["content_index"] = 0
        name = f"response.{self.kind}.delta"
        head = json_bytes({"type": name, **self.where})[:-1]
        self.opening = b'event: %b\ndata: %b,"delta":' % (name.encode(), head)

    def takes(self, piece: Piece) -> bool:
        """Whether a piece belongs to this item."""
        kinds = {"output_text": Text, "reasoning_text": Thought, "function_call_arguments": CallArguments}
        return isinstance(piece, kinds[self.kind])

    def begun(self) -> OutputItem:
        """As it is told of at first: without content."""
        if self.kind == "output_text":
            return OutputMessage(id=self.id, status="in_progress", content=[])
        if self.kind == "reasoning_text":
            return ReasoningItem(id=self.id, status="in_progress", content=[])
        return self.close("in_progress")

    def close(self, status: Status) -> OutputItem:
        """As it stands."""
        text = "".join(self.texts)
        if self.kind == "output_text":
            return OutputMessage(id=self.id, status=status, content=[OutputText(text=text, logprobs=self.logprobs)])
        if self.kind == "reasoning_text":
            return ReasoningItem(id=self.id, status=status, content=[ReasoningText(text=text)])
        assert self.call is not None
        return FunctionCall(id=self.id, call_id=self.call.id, name=self.call.name, arguments=text, status=status)

    def done(self) -> dict[str, Any]:
        """The fields of its `done` event."""
        text = "".join(self.texts)
        if self.call is not None:
            return {"name": self.call.name, "arguments": text}
        return {"text": text, "logprobs": self.logprobs} if self.kind == "output_text" else {"text": text}


def _begun(request: ResponsesRequest, params: SamplingParams, model: str) -> Response:
    """A response before its first token: what was asked for, defaults filled in."""
    text = request.text or TextConfig()
    return Response(
        id=f"resp_{uuid.uuid4().hex}",
        created_at=int(time.time()),
        status="in_progress",
        instructions=request.instructions,
        max_output_tokens=request.max_output_tokens,
        model=model,
        output=[],
        parallel_tool_calls=request.parallel_tool_calls is not False,
        previous_response_id=request.previous_response_id,
        reasoning=request.reasoning or Reasoning(),
        store=request.store is not False,
        temperature=params.temperature,
        text=msgspec.structs.replace(text, format=text.format or TextFormat(type="text")),
        tool_choice=request.tool_choice or "auto",
        tools=request.tools or [],
        top_logprobs=request.top_logprobs or 0,
        top_p=params.top_p,
        user=request.user,
        metadata=request.metadata or {},
    )
