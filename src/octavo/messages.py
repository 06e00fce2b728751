"""Values that cross a boundary: between threads, processes, and the rooms of the engine.

msgspec structs, so that they are checked when decoded, cheap to make, and never pickled.
Token ids are plain ints; times are seconds; logprobs are natural logarithms.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

from octavo.errors import RequestError
from octavo.structured import Grammar, StructuredOutputsParams

GREEDY_TEMPERATURE = 1e-5
"""At or below this temperature sampling is greedy: dividing by it would overflow float32."""

DEFAULT_TENANT = "default"

PUBLIC_TENANT = "(public)"
"""The account of published prefixes, and the tenant of the requests that publish them. No key maps to it."""


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How to choose tokens and when to stop. Names and defaults follow vLLM's and OpenAI's.

    Raises:
        RequestError: When a field is out of range. Checks that need the model (vocabulary, context)
            are made by the input processor.
    """

    n: int = 1
    """Answers to return for the prompt."""
    best_of: int | None = None
    """Answers to draw; the n with the largest mean logprob per token are returned. None draws n."""
    beam_width: int | None = None
    """Search with this many beams instead of sampling; the n best are returned. Temperature, top_p, top_k, min_p and
    seed play no part."""
    length_penalty: float = 1.0
    """A beam's score is the sum of its logprobs divided by its number of tokens to this power."""
    early_stopping: bool | str = False
    """When a beam search ends, as in transformers: True when `beam_width` answers are finished, False when no
    running beam can beat them at its present length, "never" when none could at any length."""
    temperature: float = 1.0
    """0 is greedy. Divides the logits."""
    top_p: float = 1.0
    """Keep the smallest set of most likely tokens whose probabilities reach this sum."""
    top_k: int = 0
    """Keep the k most likely tokens; 0 or -1 keeps all."""
    min_p: float = 0.0
    """Drop tokens less likely than this times the likeliest."""
    presence_penalty: float = 0.0
    """Subtracted from the logit of every token already in the answer."""
    frequency_penalty: float = 0.0
    """Subtracted once for each time a token already stands in the answer."""
    repetition_penalty: float = 1.0
    """Divides positive, multiplies negative logits of tokens in the prompt or answer (CTRL, arXiv:1909.05858)."""
    seed: int | None = None
    """Fixes the noise. Without one the front end draws one, so that every request can be replayed."""
    stop: tuple[str, ...] = ()
    """The answer ends before the first of these strings."""
    stop_token_ids: tuple[int, ...] = ()
    """The answer ends after any of these tokens."""
    ignore_eos: bool = False
    """Go on after the model's end-of-sequence tokens; `stop_token_ids` still stop."""
    max_tokens: int | None = 16
    """Tokens to generate at most; None means as many as the context holds."""
    min_tokens: int = 0
    """End-of-sequence and stop tokens cannot be chosen before this many tokens."""
    logprobs: int | None = None
    """Report the chosen token's logprob and this many of the likeliest; None reports nothing."""
    prompt_logprobs: int | None = None
    """The same for each prompt token."""
    logit_bias: dict[int, float] | None = None
    """Added to the logits of these token ids."""
    allowed_token_ids: tuple[int, ...] | None = None
    """No other token can be chosen."""
    bad_words: tuple[str, ...] = ()
    """The token that would complete one of these texts cannot be chosen."""
    structured_outputs: StructuredOutputsParams | None = None
    """What the answer must be. It then ends where that is complete, whatever `ignore_eos` and `min_tokens` say."""
    detokenize: bool = True
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False

    def __post_init__(self) -> None:
        for name in ("stop", "stop_token_ids", "bad_words"):
            value = getattr(self, name)
            if isinstance(value, str):
                value = (value,)
            msgspec.structs.force_setattr(self, name, tuple(value) if value else ())
        if self.allowed_token_ids is not None:
            msgspec.structs.force_setattr(self, "allowed_token_ids", tuple(self.allowed_token_ids))
        if self.top_k == -1:
            msgspec.structs.force_setattr(self, "top_k", 0)
        _check_sampling_params(self)

    @property
    def greedy(self) -> bool:
        return self.temperature <= GREEDY_TEMPERATURE


_RANGES: tuple[tuple[str, float, float, str], ...] = (
    ("temperature", 0.0, 1e4, "a finite number from 0 to 10000"),
    ("min_p", 0.0, 1.0, "from 0 to 1"),
    ("presence_penalty", -2.0, 2.0, "from -2 to 2"),
    ("frequency_penalty", -2.0, 2.0, "from -2 to 2"),
    ("length_penalty", -100.0, 100.0, "from -100 to 100"),
)

_INTEGERS: tuple[tuple[str, int, int, str], ...] = (
    ("n", 1, 1 << 14, "an integer from 1 to 16384"),
    ("best_of", 1, 1 << 14, "an integer from 1 to 16384, or null"),
    ("beam_width", 1, 1 << 10, "an integer from 1 to 1024, or null"),
    ("top_k", 0, (1 << 63) - 1, "an integer of at least 0, or -1 for no limit"),
    ("min_tokens", 0, (1 << 31) - 1, "an integer from 0 to 2147483647"),
    ("max_tokens", 0, (1 << 31) - 1, "an integer from 0 to 2147483647, or null"),
    ("logprobs", 0, (1 << 31) - 1, "an integer of at least 0"),
    ("prompt_logprobs", 0, (1 << 31) - 1, "an integer of at least 0"),
    ("seed", -(1 << 63), (1 << 63) - 1, "an integer from -2^63 to 2^63 - 1"),
)


_OPTIONAL = ("best_of", "beam_width", "max_tokens", "logprobs", "prompt_logprobs", "seed")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _check_sampling_params(p: SamplingParams) -> None:
    for name, low, high, allowed in _RANGES:
        value = getattr(p, name)
        if not _is_number(value) or not low <= value <= high:
            raise RequestError(name, value, allowed)
    for name, first, last, allowed in _INTEGERS:
        value = getattr(p, name)
        if value is None and name in _OPTIONAL:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or not first <= value <= last:
            raise RequestError(name, value, allowed)
    # Sampling is done in float32, where anything smaller would be 0; this small it keeps the likeliest token anyway.
    if not _is_number(p.top_p) or not 1e-30 <= p.top_p <= 1.0:
        raise RequestError("top_p", p.top_p, "above 0 (at least 1e-30) and at most 1")
    if not _is_number(p.repetition_penalty) or not 0.01 <= p.repetition_penalty <= 100.0:
        raise RequestError("repetition_penalty", p.repetition_penalty, "from 0.01 to 100")
    if p.max_tokens is not None and p.min_tokens > p.max_tokens:
        raise RequestError("min_tokens", p.min_tokens, f"at most max_tokens ({p.max_tokens})")
    if p.best_of is not None and p.best_of < p.n:
        raise RequestError("best_of", p.best_of, f"at least n ({p.n})")
    if not isinstance(p.early_stopping, bool) and p.early_stopping != "never":
        raise RequestError("early_stopping", p.early_stopping, 'true, false or "never"')
    if p.beam_width is not None:
        _check_beam_params(p, p.beam_width)
    for name in ("stop", "bad_words"):
        for text in getattr(p, name):
            if not isinstance(text, str) or not text:
                raise RequestError(name, text, "a non-empty string")
    for token in p.stop_token_ids:
        if not isinstance(token, int) or isinstance(token, bool) or token < 0:
            raise RequestError("stop_token_ids", token, "an integer of at least 0")
    if p.allowed_token_ids is not None:
        if not p.allowed_token_ids:
            raise RequestError("allowed_token_ids", [], "a list of token ids, at least one")
        for token in p.allowed_token_ids:
            if not isinstance(token, int) or isinstance(token, bool) or token < 0:
                raise RequestError("allowed_token_ids", token, "an integer of at least 0")
    for token, bias in (p.logit_bias or {}).items():
        if not isinstance(token, int) or isinstance(token, bool) or token < 0:
            raise RequestError("logit_bias", token, "a map from token ids (integers of at least 0) to numbers")
        if not _is_number(bias) or not -100.0 <= bias <= 100.0:
            raise RequestError(f"logit_bias[{token}]", bias, "a number from -100 to 100")


def _check_beam_params(p: SamplingParams, beam_width: int) -> None:
    if p.n > beam_width:
        raise RequestError("n", p.n, f"at most beam_width ({beam_width})")
    if p.best_of is not None:
        raise RequestError("best_of", p.best_of, "left out with beam_width")
    if p.stop:
        raise RequestError("stop", p.stop, "left out with beam_width; stop_token_ids end beams")
    if p.prompt_logprobs is not None:
        raise RequestError("prompt_logprobs", p.prompt_logprobs, "left out with beam_width")
    if p.structured_outputs is not None:
        param = p.structured_outputs.param
        raise RequestError(param, message=f"{param}: must be left out with beam_width: a search obeys no grammar")
    if p.bad_words:
        raise RequestError("bad_words", p.bad_words, "left out with beam_width")


class EngineRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request as the core sees it: tokens only.

    The front end keeps it until the answer is complete; after an engine's death it sends the same request
    again with the tokens received so far appended to `token_ids`.
    """

    request_id: int
    """Unique in the process, made by the front end; a client's id never gets here."""
    token_ids: list[int]
    """The prompt, followed, on a resume, by the answer so far."""
    num_prompt_tokens: int
    """Where the prompt ends in `token_ids`; penalties, logprobs and limits count from here."""
    sampling: SamplingParams
    seed: int
    """The noise's seed, always set; child i of the request draws from (seed, i)."""
    max_tokens: int
    """Resolved limit on generated tokens, within the context."""
    eos_token_ids: tuple[int, ...] = ()
    tenant: str = DEFAULT_TENANT
    first_index: int = 0
    """Index of the first of the `sampling.n` sequences; above 0 only on a resume of a single child."""
    priority: int = 0
    arrival_s: float = 0.0
    adapter: str | None = None
    grammar: Grammar | None = None
    """What the answer must obey; the engine compiles it before the request is queued."""
    grammar_id: int | None = None
    """Names the compiled grammar to the worker; never set by a front end."""
    bad_token_ids: tuple[tuple[int, ...], ...] = ()
    """Runs of tokens whose last one cannot be chosen after the others."""
    cache_salt: str | None = None
    """Only requests of the same tenant with the same salt share cached blocks."""
    publish: str | None = None
    """Compute the prompt and keep its whole blocks, under this name and for every tenant, until they are withdrawn."""


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Log-probabilities at one position, from the model's raw scores (before penalties and temperature)."""

    token_id: int
    logprob: float
    rank: int
    """1 for the likeliest token of the vocabulary."""
    top: list[tuple[int, float]]
    """The likeliest tokens with their logprobs, best first, as many as asked for."""


FINISH_STOP = "stop"
FINISH_LENGTH = "length"
FINISH_ABORT = "abort"
FINISH_ERROR = "error"

REFUSED_LENGTH = "length"
"""The request can never fit, whatever else runs."""
REFUSED_REQUEST = "request"
"""The request asks for something that cannot be done."""
REFUSED_GRAMMAR = "grammar"
"""Its grammar cannot be compiled or followed, or what it wishes leaves no token to choose."""


class TokenDelta(msgspec.Struct, array_like=True):
    """What one step made known about one sequence."""

    request_id: int
    index: int
    """Which of the request's n sequences."""
    token_ids: list[int]
    """New tokens of the answer, the stopping token included."""
    finish_reason: str | None = None
    """FINISH_STOP, FINISH_LENGTH, FINISH_ABORT or FINISH_ERROR with the last delta of the sequence, else None."""
    stop_reason: int | str | None = None
    """The stop token id that ended it, None for an end-of-sequence token."""
    logprobs: list[TokenLogprobs] | None = None
    """One per new token, when asked for."""
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    """For prompt positions that became known, in order; the first position of a prompt is None."""
    num_cached_tokens: int = 0
    """Prompt tokens whose KV was found in the prefix cache at the first admission; in the first delta of a sequence
    that has tokens."""
    error: str | None = None
    """Why the sequence failed, with FINISH_ERROR."""
    score: float | None = None
    """Of a beam, length penalty included, with its last (and only) delta."""
    refusal: str | None = None
    """REFUSED_LENGTH, REFUSED_REQUEST or REFUSED_GRAMMAR with FINISH_ERROR when the request itself is at fault, not the
    engine."""


class EngineStats(msgspec.Struct, kw_only=True):
    """A snapshot of the engine. Counters only grow; the rest are gauges."""

    num_blocks: int = 0
    block_size: int = 0
    num_held_blocks: int = 0
    num_promised_blocks: int = 0
    num_cached_blocks: int = 0
    num_free_blocks: int = 0
    num_running: int = 0
    num_waiting: int = 0
    num_steps: int = 0
    num_preemptions: int = 0
    num_prompt_tokens: int = 0
    num_generated_tokens: int = 0
    num_recomputed_tokens: int = 0
    num_allocation_faults: int = 0
    num_recompute_faults: int = 0
    num_wasted_slots: int = 0
    num_errors: int = 0
    num_pinned_blocks: int = 0
    num_copy_faults: int = 0
    num_swap_faults: int = 0
    num_swapped: int = 0
    """Sequences that wait on the host tier."""
    num_swap_preemptions: int = 0
    """Of `num_preemptions`, those that swapped."""
    num_prefix_query_tokens: int = 0
    num_prefix_hit_tokens: int = 0
    num_evictions: int = 0
    """Cached blocks that made room."""
    num_takeovers: int = 0
    """Times that whoever computed a prefix for others was gone before it was done, so that one of them took over."""
    num_shared_waits: int = 0
    """Requests that waited for another to compute a prefix they share."""
    num_drafts: int = 0
    """Times that tokens were guessed for a sequence."""
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    """Of `num_draft_tokens`, those that became part of an answer."""


class KVAccount(msgspec.Struct, kw_only=True):
    """One tenant's KV memory: gauges in blocks, then counters by cause. A block is charged to whoever made it."""

    tenant: str
    num_held_blocks: int = 0
    num_promised_blocks: int = 0
    """Reserved for admitted prompts, not yet bound to them."""
    num_cached_blocks: int = 0
    num_host_blocks: int = 0
    """Slots of the host tier."""
    num_allocation_faults: int = 0
    num_copy_faults: int = 0
    num_swap_faults: int = 0
    num_recompute_faults: int = 0
    num_prefix_query_tokens: int = 0
    """Prompt tokens that were looked up."""
    num_prefix_hit_tokens: int = 0
    num_quota_refusals: int = 0


class KVStats(msgspec.Struct, kw_only=True):
    """Where every KV block is.

    `num_blocks` = held + pinned + cached + free; promised ones are part of free and cached.
    """

    block_size: int
    bytes_per_block: int
    num_blocks: int
    """Without the null block."""
    num_held_blocks: int
    num_pinned_blocks: int
    """A transfer is in flight, or a plan in flight names them after their owner left."""
    num_cached_blocks: int
    num_free_blocks: int
    num_promised_blocks: int
    num_published_blocks: int
    """Part of held: kept for a published prefix."""
    num_references: int
    """Block-table entries that name held blocks. Divided by the held blocks it says how often a block is shared."""
    num_unfilled_slots: int
    """Token slots of held blocks that hold no token: the tails."""
    num_host_blocks: int
    num_host_held_blocks: int
    num_evictions: int
    erases_freed_blocks: bool
    accounts: list[KVAccount]


class KVBlock(msgspec.Struct, kw_only=True):
    """One block, for `/v1/kv/blocks`."""

    block_id: int
    state: str
    """"held", "cached", "free" or "pinned"."""
    owner: str | None
    references: int
    age_s: float
    """Seconds since it took this state."""
    key: str | None
    """First 16 hex digits of its content key."""
    num_tokens: int
    """Tokens of the content that its key names."""
    num_hits: int


class PublishedPrefix(msgspec.Struct, kw_only=True):
    name: str
    num_tokens: int
    num_blocks: int


class EngineInfo(msgspec.Struct, kw_only=True, frozen=True):
    """What the engine settled on at start, for the front end and for people."""

    model: str
    max_model_len: int
    vocab_size: int
    block_size: int
    num_blocks: int
    num_threads: int
    kernel_path: str
    weight_dtype: str
    kv_dtype: str
    weight_bytes: int
    weights_unused: str = ""
    """What of the checkpoint the model does without, in words."""
    kv_bytes: int
    kv_bytes_per_token: int
    max_num_seqs: int
    max_num_batched_tokens: int
    kv_reason: str
    """The sizing arithmetic, in a sentence."""
    block_size_reason: str = ""
    kv_groups: str = ""
    """How layers that keep KV differently share pages, in words; empty where all keep it alike."""
    num_host_blocks: int = 0
    host_reason: str = ""
    """How `num_host_blocks` came about, in a sentence."""
    bytes_per_block: int = 0
    load_s: float = 0.0
    eos_token_ids: tuple[int, ...] = ()
    """Every end-of-sequence token that the model's own files name; the front end adds the tokenizer's."""
    extras: dict[str, Any] = {}
