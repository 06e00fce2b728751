"""From what a caller asks to what the core computes: checked, tokenised, with every open choice settled."""

from __future__ import annotations

import itertools
import os
import random
import re
import threading
import unicodedata
from collections.abc import Sequence
from typing import Any

import msgspec

from octavo.engine.tokenizer import Tokenizer
from octavo.errors import ContextLengthError, RequestError
from octavo.messages import DEFAULT_TENANT, PUBLIC_TENANT, EngineInfo, EngineRequest, SamplingParams

MAX_SALT_CHARS = 256

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """A request that can be run: nothing in it is left open."""

    request: EngineRequest
    prompt_text: str | None
    """The prompt as text, when it came as text."""
    params: SamplingParams
    """The caller's, with `max_tokens` and `seed` settled. `request.sampling` is what the engine draws for them."""
    shown_special_ids: frozenset[int] = frozenset()
    """Control tokens that are part of the answer's text, because a parser of answers looks for them."""

    @property
    def request_id(self) -> int:
        return self.request.request_id

    @property
    def prompt_token_ids(self) -> list[int]:
        return self.request.token_ids

    @property
    def seed(self) -> int:
        return self.request.seed


class InputProcessor:
    """Makes requests for one engine. Safe to use from several threads.

    Args:
        info: What the engine settled on.
        tokenizer: The model's.
        seed: Fixes the seeds that requests without one are given, in the order in which they come; None draws them
            from the operating system's randomness.
        takes_priorities: Whether requests may name one: where the engine does not look at it, it would do nothing.
    """

    def __init__(
        self, info: EngineInfo, tokenizer: Tokenizer, *, seed: int | None = None, takes_priorities: bool = True
    ) -> None:
        self._info = info
        self._takes_priorities = takes_priorities
        self._tokenizer = tokenizer
        self._random = random.Random(os.urandom(32) if seed is None else seed)
        self._request_ids = itertools.count(1)
        self._lock = threading.Lock()
        own_eos = () if tokenizer.eos_id is None else (tokenizer.eos_id,)
        self._eos_token_ids = tuple(dict.fromkeys((*info.eos_token_ids, *own_eos)))
        self.max_tokens = info.max_model_len

    def prepare(
        self,
        prompt: str | Sequence[int],
        params: SamplingParams,
        *,
        param: str = "prompt",
        tenant: str = DEFAULT_TENANT,
        priority: int = 0,
        cache_salt: str | None = None,
        max_logprobs: int = 20,
        shown_special_ids: frozenset[int] = frozenset(),
        bad_token_ids: tuple[tuple[int, ...], ...] | None = None,
    ) -> Prepared:
        """Check a request against the model and settle its open choices.

        Args:
            prompt: Text, or token ids.
            params: How to sample.
            param: The request's field that holds the prompt, for messages.
            tenant: Who pays.
            priority: Lower runs earlier.
            cache_salt: Share cached KV only with requests of the same tenant that bring the same text.
            max_logprobs: The largest `logprobs` allowed.
            shown_special_ids: Control tokens that are part of the answer's text even so.
            bad_token_ids: What `params.bad_words` are, as another request of the same `params` has it; None finds out.

        Raises:
            RequestError: Naming the field that cannot be served.
            ContextLengthError: If prompt and answer fit neither the model's context nor the KV pool.
        """
        self._check_params(params, max_logprobs)
        check_cache_salt(cache_salt)
        if priority and not self._takes_priorities:
            raise RequestError("priority", priority, "0 or left out, or the engine started with admission = priority")
        token_ids = self._encode(prompt, param) if isinstance(prompt, str) else self._checked_ids(prompt, param)
        max_tokens = self._limit(len(token_ids), params, param)
        with self._lock:
            request_id = next(self._request_ids)
            seed = self._random.getrandbits(63) if params.seed is None else params.seed
        request = EngineRequest(
            request_id=request_id,
            token_ids=token_ids,
            num_prompt_tokens=len(token_ids),
            sampling=_drawn(params),
            seed=seed,
            max_tokens=max_tokens,
            eos_token_ids=self._eos_token_ids,
            tenant=tenant,
            priority=priority,
            cache_salt=cache_salt,
            grammar=None if params.structured_outputs is None else params.structured_outputs.to_grammar(),
            bad_token_ids=self._bad_token_ids(params.bad_words) if bad_token_ids is None else bad_token_ids,
        )
        settled = msgspec.structs.replace(params, max_tokens=max_tokens, seed=seed)
        prompt_text = prompt if isinstance(prompt, str) else None
        return Prepared(request=request, prompt_text=prompt_text, params=settled, shown_special_ids=shown_special_ids)

    def prepare_publication(self, name: str, prompt: str | Sequence[int], *, param: str = "prompt") -> Prepared:
        """A request that computes `prompt` and publishes its whole blocks under `name`.

        Raises:
            RequestError: If the name cannot be one, or the prompt does not fill one block.
            ContextLengthError: If the prompt does not fit.
        """
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise RequestError("name", name, "1 to 128 characters of A-Z a-z 0-9 . _ -, the first a letter or digit")
        prepared = self.prepare(prompt, SamplingParams(max_tokens=0), param=param, tenant=PUBLIC_TENANT)
        num_tokens, block_size = len(prepared.prompt_token_ids), self._info.block_size
        if num_tokens < block_size:
            why = f"{param} has {num_tokens} tokens, which fill no block of {block_size}: there is nothing to share"
            raise RequestError(param, message=why)
        return msgspec.structs.replace(prepared, request=msgspec.structs.replace(prepared.request, publish=name))

    def check_length(self, num_chars: int, param: str) -> None:
        """Refuse far too long a text before the work of tokenising it: no token spells so many characters.

        Raises:
            ContextLengthError: If tokens for so many characters fit neither the model's context nor the KV pool.
        """
        if num_chars > self.max_tokens * self._tokenizer.max_token_chars:
            raise self._too_long(param, f"{param} has {num_chars} characters")

    def _encode(self, text: str, param: str) -> list[int]:
        if not text:
            raise RequestError(param, message=f"{param} is empty: give at least one token")
        check_text(text, param)
        self.check_length(len(text), param)
        token_ids = self._tokenizer.encode(text)
        if not token_ids:
            raise RequestError(param, message=f"{param} holds no token")
        width = self._info.vocab_size
        if max(token_ids) >= width:
            why = f"the tokenizer has the token {max(token_ids)} for it, the model only those below {width}"
            raise RequestError(param, message=f"{param}: {why}")
        return token_ids

    def _checked_ids(self, token_ids: Sequence[int], param: str) -> list[int]:
        width = self._info.vocab_size
        if not isinstance(token_ids, list | tuple):
            raise RequestError(param, token_ids, "a string or a list of token ids")
        if not token_ids:
            raise RequestError(param, message=f"{param} is empty: give at least one token")
        if set(map(type, token_ids)) != {int} or min(token_ids) < 0 or max(token_ids) >= width:
            for i, token_id in enumerate(token_ids):
                if type(token_id) is not int or not 0 <= token_id < width:
                    raise RequestError(f"{param}[{i}]", token_id, f"a token id from 0 to {width - 1}")
        return list(token_ids)

    def _limit(self, num_prompt: int, params: SamplingParams, param: str) -> int:
        """Tokens to generate at most."""
        room = self.max_tokens - num_prompt
        has = f"{param} has {num_prompt} token{'s' if num_prompt != 1 else ''}"
        if room < 0:
            raise self._too_long(param, has)
        if params.max_tokens is None:
            if room == 0:
                raise self._too_long(param, f"{has}, which leaves no room for an answer")
            if params.min_tokens > room:
                raise RequestError("min_tokens", params.min_tokens, f"at most {room}, the room left after the prompt")
            return room
        if params.max_tokens > room:
            raise self._too_long("max_tokens", f"{has} and max_tokens is {params.max_tokens}")
        return params.max_tokens

    def _too_long(self, field: str, why: str) -> ContextLengthError:
        return ContextLengthError(field, message=f"{why}: the context holds {self.max_tokens} tokens")

    def _check_params(self, params: SamplingParams, max_logprobs: int) -> None:
        width = self._info.vocab_size
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(params, name)
            if value is not None and value > min(max_logprobs, width):
                raise RequestError(name, value, f"at most {min(max_logprobs, width)}")
        for token_id in params.stop_token_ids:
            if token_id >= width:
                raise RequestError("stop_token_ids", token_id, f"a token id from 0 to {width - 1}")
        for token_id in params.allowed_token_ids or ():
            if token_id >= width:
                raise RequestError("allowed_token_ids", token_id, f"a token id from 0 to {width - 1}")
        for text in params.bad_words:
            check_text(text, "bad_words")
        for token_id in params.logit_bias or ():
            if token_id >= width:
                why = f"logit_bias: {token_id} is no token of this model: their ids go from 0 to {width - 1}"
                raise RequestError("logit_bias", message=why)
        if params.stop and not params.detokenize:
            raise RequestError("stop", params.stop, "left out when detokenize is false")
        for text in params.stop:
            check_text(text, "stop")
        if params.beam_width is not None:
            self._check_beams(params, params.beam_width)

    def _bad_token_ids(self, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """The tokens of each word, at the beginning of a text and after a space."""
        runs: dict[tuple[int, ...], None] = {}
        for word in words:
            for text in (word, " " + word.lstrip()):
                if run := tuple(self._tokenizer.encode(text, add_special_tokens=False)):
                    runs[run] = None
        return tuple(runs)

    def _check_beams(self, params: SamplingParams, width: int) -> None:
        rows = self._info.max_num_seqs
        if width > rows:
            why = f"the search runs {width} sequences at once, but this engine runs at most {rows} (max_num_seqs)"
            raise RequestError("beam_width", message=f"beam_width = {width}: {why}")
        if 2 * width > self._info.vocab_size:  # a step chooses among twice as many tokens per beam
            raise RequestError("beam_width", width, f"at most half the vocabulary ({self._info.vocab_size // 2})")
        if params.max_tokens == 0:
            raise RequestError("max_tokens", 0, "at least 1 with beam_width")


def _drawn(params: SamplingParams) -> SamplingParams:
    """What the engine draws for `params`: best_of sequences in place of n, with the logprobs that a choice needs.

    What has become tokens or a grammar of the request need not travel a second time.
    """
    changes: dict[str, Any] = {}
    if params.best_of is not None:
        changes["best_of"] = None
        if params.best_of > params.n:
            changes.update(n=params.best_of, logprobs=params.logprobs or 0)
    if params.beam_width is not None:
        changes["logprobs"] = params.logprobs or 0
    if params.structured_outputs is not None:
        changes["structured_outputs"] = None
    if params.bad_words:
        changes["bad_words"] = ()
    return msgspec.structs.replace(params, **changes) if changes else params


def check_cache_salt(salt: str | None) -> None:
    """Refuse a salt that is empty, too long, or holds control characters. The message does not repeat it.

    Raises:
        RequestError: Naming `cache_salt`.
    """
    if salt is None:
        return
    allowed = f"cache_salt: must be 1 to {MAX_SALT_CHARS} characters without control characters"
    if not isinstance(salt, str) or not 0 < len(salt) <= MAX_SALT_CHARS:
        raise RequestError("cache_salt", message=allowed)
    if any(unicodedata.category(char) == "Cc" for char in salt):
        raise RequestError("cache_salt", message=allowed)
    check_text(salt, "cache_salt")


def check_text(text: str, param: str) -> None:
    """Refuse a string that no UTF-8 can spell: JSON lets half of a surrogate pair through.

    Raises:
        RequestError: Naming `param`.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        why = f"holds half of a surrogate pair at character {error.start}, which is no text"
        raise RequestError(param, message=f"{param} {why}") from None
