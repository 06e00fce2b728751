"""POST /v1/completions."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from starlette.types import Scope, Send

from octavo.engine.infill import infill_prompt
from octavo.engine.input_processor import check_text
from octavo.engine.outputs import TextDelta
from octavo.errors import RequestError
from octavo.messages import SamplingParams, TokenLogprobs
from octavo.server.context import ServerContext
from octavo.server.endpoint import Endpoint
from octavo.server.gate import send_json
from octavo.server.keep_alive import frames_to
from octavo.server.line import Line
from octavo.server.openai.chunks import ChunkWriter
from octavo.server.openai.errors import UnsupportedFieldError
from octavo.server.openai.event_tap import event_frames
from octavo.server.openai.generation import Answer, Generation, prepare
from octavo.server.openai.logprobs import TextOffsets, completion_logprobs, prompt_logprobs, prompt_offsets
from octavo.server.openai.protocol import CompletionRequest, parse_completion, sampling_params
from octavo.server.sampling_defaults import NO_DEFAULTS, SamplingDefaults
from octavo.server.sse import json_bytes, send_events

if TYPE_CHECKING:
    from octavo.engine.input_processor import Prepared

MAX_INFILL_CHARS = 1 << 18
"""Of a prompt and its suffix."""

DEFAULT_MAX_TOKENS = 16
"""OpenAI's own default for this endpoint."""


class Completions(Endpoint[CompletionRequest]):
    """The endpoint, as an ASGI application."""

    def parse(self, body: dict[str, Any]) -> tuple[CompletionRequest, list[str]]:
        return parse_completion(body, self.context.http)

    async def answer(self, request: CompletionRequest, scope: Scope, send: Send, arrival_s: float) -> None:
        context = self.context
        context.check_model(request.model)
        prompts = await prepare_prompts(context, request)
        generation = Generation(context, prompts, request.n or 1, arrival_s)
        reply = CompletionReply(context, request, generation)
        if request.stream:
            await send_events(send, frames_to(context, scope, reply.frames), context.lifecycle)
        else:
            await send_json(send, 200, json_bytes(reply.whole(await generation.collect())))


def split_prompts(prompt: str | list[Any] | None, max_prompts: int) -> list[tuple[str, str | list[int]]]:
    """The prompts with the names they have in errors: a text, texts, ids, or lists of ids.

    Raises:
        RequestError: If there is none, there are too many, or kinds are mixed.
    """
    if prompt is None or prompt == []:
        raise RequestError("prompt", message="prompt: must hold at least one prompt")
    if isinstance(prompt, str):
        return [("prompt", prompt)]
    if all(isinstance(item, int) for item in prompt):
        return [("prompt", prompt)]
    if len(prompt) > max_prompts:
        why = f"holds {len(prompt)} prompts; at most {max_prompts} are allowed (--max-prompts)"
        raise RequestError("prompt", message=f"prompt: {why}")
    kind = type(prompt[0])
    for i, item in enumerate(prompt):
        if type(item) is not kind:
            raise RequestError(f"prompt[{i}]", item, "of the same kind as the prompts before it: all texts or all ids")
    return [(f"prompt[{i}]", item) for i, item in enumerate(prompt)]


def completion_params(request: CompletionRequest, defaults: SamplingDefaults = NO_DEFAULTS) -> SamplingParams:
    """The request's sampling parameters. Echoed logprobs are the prompt's logprobs."""
    limit = request.max_tokens
    if limit is None:
        limit = min(DEFAULT_MAX_TOKENS, defaults.max_tokens or DEFAULT_MAX_TOKENS)
    own: dict[str, Any] = {
        "max_tokens": defaults.limit(limit),
        "logprobs": request.logprobs,
    }
    if request.echo and request.logprobs is not None:
        own["prompt_logprobs"] = max(request.logprobs, request.prompt_logprobs or 0)
    return sampling_params(request, defaults, **own)


async def prepare_prompts(context: ServerContext, request: CompletionRequest) -> list[Prepared]:
    """All prompts of the request, validated and tokenized."""
    named = split_prompts(request.prompt, context.http.max_prompts)
    if request.suffix:
        named = [(name, _with_suffix(context, prompt, request.suffix)) for name, prompt in named]
    params = completion_params(request, context.defaults)
    most = max(context.http.max_prompts, context.http.max_n)
    sizes = {"n": params.n, "best_of": params.best_of or 0, "beam_width": params.beam_width or 0}
    name = max(sizes, key=sizes.__getitem__)
    if len(named) * sizes[name] > most:
        raise RequestError(name, sizes[name], f"at most {most // len(named)} with {len(named)} prompts")
    return await prepare(context, named, params, request)


def _with_suffix(context: ServerContext, prompt: str | list[int], suffix: str) -> list[int]:
    if len(prompt) + len(suffix) > MAX_INFILL_CHARS:
        raise RequestError("suffix", message=f"suffix: with the prompt, longer than {MAX_INFILL_CHARS} characters")
    for name, text in (("prompt", prompt), ("suffix", suffix)):
        if isinstance(text, str):
            check_text(text, name)
    token_ids = infill_prompt(context.engine.tokenizer, prompt, suffix)
    if token_ids is None:
        why = "suffix: this model has no tokens for filling in what stands before a suffix"
        raise UnsupportedFieldError("suffix", why)
    return token_ids


@dataclass
class _Choice:
    """What a growing choice remembers between deltas."""

    offsets: TextOffsets | None = None
    started: bool = False


class CompletionReply:
    """Writes the answer to one request, streamed or whole. Both go through the same functions, so they agree."""

    def __init__(self, context: ServerContext, request: CompletionRequest, generation: Generation) -> None:
        self._request = request
        self._generation = generation
        self._tokenizer = context.engine.tokenizer
        self._choices = [_Choice() for _ in generation.num_tokens]
        self._held: list[tuple[int, TextDelta]] = []
        self._echo = bool(request.echo)
        self._skip_special = request.skip_special_tokens is not False
        self._prompt_texts = [self._text_of(prompt) for prompt in generation.prompts] if self._echo else []
        self._head = {
            "id": f"cmpl-{request.request_id or uuid.uuid4().hex}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": request.model or context.model_name,
            "system_fingerprint": context.fingerprint,
        }
        self._writer = ChunkWriter(self._head, "text", request, generation)

    def frames(self, line: Line | None = None) -> AsyncGenerator[bytes, None]:
        """The stream's frames, usage included, without the last `[DONE]`; see `event_frames`."""
        return event_frames(self._generation, line, self._frames_of, self._writer.ending)

    def _frames_of(self, choice: int, delta: TextDelta) -> bytes:
        """What a delta adds to the stream."""
        self._held.append((choice, delta))
        if self._lacks_prompt_logprobs(choice):
            return b""
        held, self._held = self._held, []
        return b"".join([self._chunk(index, piece) for index, piece in held])

    def _chunk(self, index: int, piece: TextDelta) -> bytes:
        text, logprobs = self._advance(index, piece.text, piece.token_ids, piece.logprobs)
        return self._writer.chunk(index, piece, text, logprobs)

    def whole(self, answers: list[Answer]) -> dict[str, Any]:
        """The body of a reply that is not streamed."""
        return {
            **self._head,
            "choices": [self._whole_choice(answer) for answer in answers],
            "usage": self._generation.usage(),
        }

    def _whole_choice(self, answer: Answer) -> dict[str, Any]:
        text, logprobs = self._advance(answer.index, "".join(answer.text), answer.token_ids, answer.logprobs)
        choice = {
            "index": answer.index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": answer.finish_reason,
            "stop_reason": answer.stop_reason,
        }
        if answer.score is not None:
            choice["score"] = answer.score
        prompt = self._generation.prompt_logprobs[answer.index // self._generation.n]
        if self._request.prompt_logprobs is not None and prompt is not None:
            choice["prompt_logprobs"] = prompt_logprobs(self._tokenizer, prompt)
        return choice

    def _text_of(self, prompt: Prepared) -> str:
        if prompt.prompt_text is not None:
            return prompt.prompt_text
        return self._tokenizer.decode(prompt.prompt_token_ids, skip_special_tokens=self._skip_special)

    def _lacks_prompt_logprobs(self, choice: int) -> bool:
        """Whether the echo must wait: the prompt's logprobs come with the first choice of its prompt."""
        wanted = self._echo and self._request.logprobs is not None
        return wanted and self._generation.prompt_logprobs[choice // self._generation.n] is None

    def _advance(
        self, index: int, text: str, token_ids: list[int], logprobs: list[TokenLogprobs] | None
    ) -> tuple[str, dict[str, Any] | None]:
        """Text and logprobs of the next piece of a choice; the first piece brings the echoed prompt."""
        choice = self._choices[index]
        which = index // self._generation.n
        prompt_text = self._prompt_texts[which] if self._echo else ""
        first = not choice.started
        choice.started = True
        if first:
            choice.offsets = TextOffsets(self._tokenizer, len(prompt_text), skip_special_tokens=self._skip_special)
        if self._request.logprobs is None:
            return (prompt_text + text if first else text), None
        entries: list[TokenLogprobs | None] = list(logprobs or ())
        assert choice.offsets is not None
        offsets = [choice.offsets.next(token_id) for token_id in token_ids]
        if first and self._echo:
            prompt_ids = self._generation.prompts[which].prompt_token_ids
            entries = [*(self._generation.prompt_logprobs[which] or ()), *entries]
            offsets = prompt_offsets(self._tokenizer, prompt_text, prompt_ids) + offsets
            token_ids = prompt_ids + token_ids
            text = prompt_text + text
        if not token_ids:
            return text, None
        return text, completion_logprobs(self._tokenizer, entries, token_ids, offsets, self._request.logprobs)
