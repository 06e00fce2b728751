"""Chunks of a stream, written with as little work per token as there is.

Everything but the text is the same from chunk to chunk, so the bytes around it are made once per choice.
"""

from __future__ import annotations

from typing import Any, Literal

from octavo.engine.outputs import TextDelta
from octavo.server.openai.generation import Generation
from octavo.server.openai.protocol import GenerationRequest
from octavo.server.sse import json_bytes


class ChunkWriter:
    """Writes the chunks of one stream.

    Args:
        head: The fields that every chunk carries.
        kind: "text" puts the text into the choice itself, "chat" into its delta.
    """

    def __init__(
        self, head: dict[str, Any], kind: Literal["text", "chat"], request: GenerationRequest, generation: Generation
    ) -> None:
        self._head = b"data: " + json_bytes(head)[:-1] + b',"choices":['
        self._chat = kind == "chat"
        self._generation = generation
        self._continuous = request.continuous_usage
        self._include_usage = request.include_usage
        # OpenAI: with include_usage the chunks before the last have a usage of null.
        self._tail = b'],"usage":null}\n\n' if request.include_usage else b"]}\n\n"
        self._openings: dict[int, bytes] = {}
        self._closing = (
            b'},"logprobs":null,"finish_reason":null}' if self._chat else b',"logprobs":null,"finish_reason":null}'
        )

    def role(self, index: int, role: str, content: str | None = "") -> bytes:
        """The first delta of a chat choice."""
        delta = json_bytes({"role": role, "content": content})
        choice = b'{"index":%d,"delta":%b,"logprobs":null,"finish_reason":null}' % (index, delta)
        return self._head + choice + self._end()

    def chunk(self, index: int, delta: TextDelta, text: str, logprobs: dict[str, Any] | None) -> bytes:
        """One piece of a choice; empty bytes when there is nothing to say.

        `text` is the delta's with whatever the endpoint puts before it, `logprobs` its logprobs in the endpoint's form.
        """
        if delta.finish_reason is None and logprobs is None:
            return self._opening(index) + json_bytes(text) + self._closing + self._end() if text else b""
        if self._chat and not text and logprobs is None:
            opening = self._opening(index).removesuffix(b'"content":')
        else:
            opening = self._opening(index) + json_bytes(text)
        rest = b'%b,"logprobs":%b,"finish_reason":%b,"stop_reason":%b%b}' % (
            b"}" if self._chat else b"",
            json_bytes(logprobs),
            json_bytes(delta.finish_reason),
            json_bytes(delta.stop_reason),
            b"" if delta.score is None else b',"score":' + json_bytes(delta.score),
        )
        return opening + rest + self._end()

    def message(
        self, index: int, fields: dict[str, Any], delta: TextDelta, logprobs: dict[str, Any] | None, reason: str | None
    ) -> bytes:
        """One piece of a chat choice whose delta has other fields than text; empty bytes when there is nothing to say.

        `reason` is why it ended, `logprobs` the delta's in the endpoint's form.
        """
        if reason is None and logprobs is None and not fields:
            return b""
        choice: dict[str, Any] = {"index": index, "delta": fields, "logprobs": logprobs, "finish_reason": reason}
        if reason is not None:
            choice["stop_reason"] = delta.stop_reason
            if delta.score is not None:
                choice["score"] = delta.score
        return self._head + json_bytes(choice) + self._end()

    def ending(self) -> bytes:
        """The chunk after the last choice's end; empty bytes where nobody asked for it."""
        if not self._include_usage:
            return b""
        return self._head + b'],"usage":' + json_bytes(self._generation.usage()) + b"}\n\n"

    def _opening(self, index: int) -> bytes:
        opening = self._openings.get(index)
        if opening is None:
            field = b'"delta":{"content":' if self._chat else b'"text":'
            opening = self._openings[index] = self._head + b'{"index":%d,' % index + field
        return opening

    def _end(self) -> bytes:
        if self._continuous:
            return b'],"usage":' + json_bytes(self._generation.usage()) + b"}\n\n"
        return self._tail
