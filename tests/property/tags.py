"""A model without arithmetic: what each slot would hold and which token follows, by hashing.

A *tag* stands for the keys and values of one position. It is a hash of the scope (tenant, salt and adapter, or the
public scope), of every token up to and including its own, and of the position, so two tags are equal only where one
could stand in for the other. The next token is a function of tag, seed, sequence index and position; candidates of a
beam are one of the tag alone. So every answer is known beforehand, whatever the schedule.
"""

from __future__ import annotations

from collections.abc import Iterable

from octavo.messages import PUBLIC_TENANT, EngineRequest, SamplingParams, TokenLogprobs

VOCAB = 23
EOS = 0
STOP = 1
FAILS_ONE_IN = 97
"""Samples whose scores are not numbers."""
BEAM_FAILS_ONE_IN = 1999


def mix(*values: int) -> int:
    """A hash that is the same in every process, as Python's own is for ints."""
    return hash(values) & 0xFFFFFFFFFFFF


def scope_tag(tenant: str, salt: str | None, adapter: str | None) -> int:
    """What the chain of a scope's tags begins with."""
    parts = (tenant, "-" if salt is None else f"salt {salt}", "-" if adapter is None else f"adapter {adapter}")
    return mix(*(mix(*part.encode()) for part in parts))


def own_scope(request: EngineRequest) -> int:
    return scope_tag(request.tenant, request.cache_salt, request.adapter)


PUBLIC_SCOPE = scope_tag(PUBLIC_TENANT, None, None)


def chain(start: int, token_ids: Iterable[int], first_position: int = 0) -> list[int]:
    """The tags of `token_ids`, which follow whatever `start` stands for."""
    tags = []
    for position, token in enumerate(token_ids, first_position):
        start = mix(start, token, position)
        tags.append(start)
    return tags


def next_token(
    tag: int, seed: int, index: int, num_answer: int, sampling: SamplingParams, eos_token_ids: tuple[int, ...]
) -> int:
    """The token that follows the one with `tag`, the last of `num_answer` of the answer; -1 for no numbers."""
    draw = mix(tag, seed, index)
    if draw % FAILS_ONE_IN == 13:
        return -1
    token = draw // FAILS_ONE_IN % VOCAB
    masked = _masked(num_answer, sampling, eos_token_ids)
    while token in masked:
        token += 1
    return token


def logprob(tag: int, token: int) -> float:
    """Of `token` after the token with `tag`. Exact in float32."""
    return -float(mix(tag, token, 7) % 4096 + 1) / 256.0


def candidates(
    tag: int, count: int, num_answer: int, sampling: SamplingParams, eos_token_ids: tuple[int, ...]
) -> list[tuple[int, float]] | None:
    """The `count` likeliest tokens after the one with `tag`, best first. None: its scores are no numbers."""
    if mix(tag, 11) % BEAM_FAILS_ONE_IN == 13:
        return None
    masked = _masked(num_answer, sampling, eos_token_ids)
    scored = [(token, logprob(tag, token)) for token in range(VOCAB) if token not in masked]
    scored.sort(key=lambda candidate: (-candidate[1], candidate[0]))
    return scored[:count]


def _masked(num_answer: int, sampling: SamplingParams, eos_token_ids: tuple[int, ...]) -> tuple[int, ...]:
    if num_answer >= sampling.min_tokens:
        return ()
    return (*(() if sampling.ignore_eos else eos_token_ids), *sampling.stop_token_ids)


def reported(tag: int, token: int, top: list[tuple[int, float]] | None = None) -> TokenLogprobs:
    """What is reported of `token` after the token with `tag`."""
    return TokenLogprobs(token, logprob(tag, token), 1, top or [])
