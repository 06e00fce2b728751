"""The answer to one request of /v1/messages, streamed or whole. Both are made of the same pieces, so they agree."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncGenerator
from typing import Any

from octavo.engine.outputs import TextDelta
from octavo.engine.parsers.pieces import CallArguments, CallStart, ParsedAnswer, Piece, Reasoning, Text, ToolCall
from octavo.messages import FINISH_LENGTH, FINISH_STOP
from octavo.server.anthropic.errors import anthropic_error
from octavo.server.anthropic.protocol import (
    MessageReply,
    MessagesRequest,
    TextContent,
    ThinkingContent,
    ToolUseContent,
    Usage,
)
from octavo.server.line import Line
from octavo.server.openai.chat import OpenChat
from octavo.server.openai.errors import answer_to
from octavo.server.openai.event_tap import event_frames
from octavo.server.parsing import FINISH_TOOL_CALLS
from octavo.server.sse import Closing, json_bytes, named_frame

STOPPED = named_frame("message_stop", {"type": "message_stop"})


class MessageWriter:
    """Writes an answer.

    Args:
        model: What the request calls the model.
        max_tokens: The answer's limit.
    """

    def __init__(self, request: MessagesRequest, chat: OpenChat, model: str, max_tokens: int | None) -> None:
        self._chat = chat
        self._model = model
        self._max_tokens = request.max_tokens if max_tokens is None else max_tokens
        self._shows_thinking = request.thinking is not None and request.thinking.type != "disabled"
        self._id = f"msg_{uuid.uuid4().hex}"
        self._started = False
        self._num_calls = 0
        self._block: type[Text] | type[Reasoning] | int | None = None
        """The open block: text, reasoning, or the call of that index."""
        self._index = -1
        self._opening = b""
        """What comes before the text of a delta of the open block."""

    async def whole(self) -> MessageReply:
        """The answer, collected."""
        [answer] = await self._chat.generation.collect()
        parsed = ParsedAnswer()
        text = "".join(answer.text)
        last = TextDelta(index=0, text=text, token_ids=[], finish_reason=answer.finish_reason)
        parsed.add(self._shown(self._chat.pieces(last)))
        self._num_calls = len(parsed.tool_calls)
        reason, sequence = self._why(answer.finish_reason, answer.stop_reason)
        return self._message([_content(part) for part in parsed.parts], reason, sequence)

    def frames(self, line: Line | None) -> AsyncGenerator[bytes, None]:
        """The stream, to `message_stop`."""
        return event_frames(self._chat.generation, line, self._frames_of)

    def _frames_of(self, choice: int, delta: TextDelta) -> bytes:
        frames: list[bytes] = []
        if not self._started:
            self._started = True
            start = {"type": "message_start", "message": self._message([], None, None)}
            frames.append(named_frame("message_start", start))
        for piece in self._shown(self._chat.pieces(delta)):
            self._add(piece, frames)
        if delta.finish_reason is not None:
            self._close(frames)
            reason, sequence = self._why(delta.finish_reason, delta.stop_reason)
            why = {"stop_reason": reason, "stop_sequence": sequence}
            end = {"type": "message_delta", "delta": why, "usage": self._usage()}
            frames += (named_frame("message_delta", end), STOPPED)
        return b"".join(frames)

    def _shown(self, pieces: list[Piece]) -> list[Piece]:
        if self._shows_thinking:
            return pieces
        return [piece for piece in pieces if not isinstance(piece, Reasoning)]

    def _add(self, piece: Piece, frames: list[bytes]) -> None:
        match piece:
            case CallStart(index, call_id, name):
                self._num_calls += 1
                self._open(index, ToolUseContent(id=call_id, name=name, input={}), "input_json_delta", frames)
                return
            case CallArguments():
                pass
            case Text() if self._block is not Text:
                self._open(Text, TextContent(text=""), "text_delta", frames)
            case Reasoning() if self._block is not Reasoning:
                self._open(Reasoning, ThinkingContent(thinking=""), "thinking_delta", frames)
        frames.append(self._opening + json_bytes(piece.text) + b"}}\n\n")

    def _open(self, block: Any, content: Any, kind: str, frames: list[bytes]) -> None:
        self._close(frames)
        self._block = block
        self._index += 1
        start = {"type": "content_block_start", "index": self._index, "content_block": content}
        frames.append(named_frame("content_block_start", start))
        field = {"text_delta": "text", "thinking_delta": "thinking"}.get(kind, "partial_json")
        head = {"type": "content_block_delta", "index": self._index}
        delta = b',"delta":{"type":%b,"%b":' % (json_bytes(kind), field.encode())
        self._opening = b"event: content_block_delta\ndata: " + json_bytes(head)[:-1] + delta

    def _close(self, frames: list[bytes]) -> None:
        if self._block is not None:
            stop = {"type": "content_block_stop", "index": self._index}
            frames.append(named_frame("content_block_stop", stop))
            self._block = None

    def _message(self, content: list[Any], reason: str | None, sequence: str | None) -> MessageReply:
        return MessageReply(
            id=self._id,
            model=self._model,
            content=content,
            stop_reason=reason,
            stop_sequence=sequence,
            usage=self._usage(),
        )

    def _usage(self) -> Usage:
        generation = self._chat.generation
        cached = generation.num_cached_tokens
        return Usage(
            input_tokens=generation.num_prompt_tokens - cached,
            cache_read_input_tokens=cached,
            output_tokens=sum(generation.num_tokens),
        )

    def _why(self, reason: str | None, stopped_by: int | str | None) -> tuple[str | None, str | None]:
        """Why the answer ended, in the API's words, and the stop sequence that ended it."""
        if reason == FINISH_LENGTH:
            filled = sum(self._chat.generation.num_tokens) < self._max_tokens
            return ("model_context_window_exceeded" if filled else "max_tokens"), None
        if reason != FINISH_STOP:
            return reason, None
        if isinstance(stopped_by, str):
            return "stop_sequence", stopped_by
        parsing, tools = self._chat.parsing, self._chat.tools
        called = parsing is not None and parsing.finish_reason(0, reason) == FINISH_TOOL_CALLS
        if called or (self._num_calls and tools is not None and tools.choice == "named"):
            return "tool_use", None
        return "end_turn", None


CLOSING = Closing(b"", lambda error: named_frame("error", anthropic_error(answer_to(error))))


def _content(part: Text | Reasoning | ToolCall) -> TextContent | ThinkingContent | ToolUseContent:
    match part:
        case Text(text):
            return TextContent(text=text)
        case Reasoning(text):
            return ThinkingContent(thinking=text)
        case ToolCall():
            return ToolUseContent(id=part.id, name=part.name, input=_input(part.arguments))


def _input(arguments: str) -> dict[str, Any]:
    """The arguments as an object; an empty one when the answer was cut off before they were whole."""
    try:
        value = json.loads(arguments) if arguments.strip() else {}
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
