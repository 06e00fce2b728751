"""What a request must get, by the definition of its parameters, one token after another."""

from __future__ import annotations

from dataclasses import dataclass, field

from octavo.core.beam import BeamSearch
from octavo.messages import FINISH_ERROR, FINISH_LENGTH, FINISH_STOP, EngineRequest, TokenLogprobs
from property.tags import candidates, chain, mix, next_token, own_scope, reported


@dataclass
class Expected:
    token_ids: list[int]
    finish_reason: str
    stop_reason: int | str | None = None
    score: float | None = None
    logprobs: list[TokenLogprobs] = field(default_factory=list)


def expected_answers(request: EngineRequest) -> dict[int, Expected]:
    """By sequence index."""
    if request.sampling.beam_width is not None:
        return dict(enumerate(_beams(request)))
    return {
        i: expected_answer(request, i) for i in range(request.first_index, request.first_index + request.sampling.n)
    }


def expected_prompt_logprobs(request: EngineRequest) -> list[TokenLogprobs | None]:
    prompt = request.token_ids[: request.num_prompt_tokens]
    tags = chain(own_scope(request), prompt)
    return [None, *(reported(tags[i - 1], prompt[i]) for i in range(1, len(prompt)))]


def expected_answer(request: EngineRequest, index: int) -> Expected:
    """What sequence `index` draws."""
    sampling, num_tokens = request.sampling, len(request.token_ids)
    tag = chain(own_scope(request), request.token_ids)[-1]
    answer: list[int] = []
    logprobs: list[TokenLogprobs] = []
    limit = request.num_prompt_tokens + request.max_tokens
    while True:
        num_answer = num_tokens - request.num_prompt_tokens
        token = next_token(tag, request.seed, index, num_answer, sampling, request.eos_token_ids)
        if token == -1:
            return Expected(answer, FINISH_ERROR, logprobs=logprobs)
        if request.max_tokens == 0:
            return Expected([], FINISH_LENGTH)
        answer.append(token)
        logprobs.append(reported(tag, token))
        tag = mix(tag, token, num_tokens)
        num_tokens += 1
        if num_tokens - request.num_prompt_tokens > sampling.min_tokens:
            if token in request.eos_token_ids and not sampling.ignore_eos:
                return Expected(answer, FINISH_STOP, logprobs=logprobs)
            if token in sampling.stop_token_ids:
                return Expected(answer, FINISH_STOP, token, logprobs=logprobs)
        if num_tokens == limit:
            return Expected(answer, FINISH_LENGTH, logprobs=logprobs)


def _beams(request: EngineRequest) -> list[Expected]:
    """The best answers of a beam search that has all the memory in the world."""
    sampling = request.sampling
    stop_tokens: dict[int, int | None] = {token: token for token in sampling.stop_token_ids}
    if not sampling.ignore_eos:
        stop_tokens.update(dict.fromkeys(request.eos_token_ids))
    search = BeamSearch(
        sampling.beam_width or 1,
        max_tokens=request.max_tokens,
        stop_tokens=stop_tokens,
        length_penalty=sampling.length_penalty,
        early_stopping=sampling.early_stopping,
        num_logprobs=sampling.logprobs or 0,
    )
    tags = [chain(own_scope(request), request.token_ids)[-1]]
    position = len(request.token_ids)
    while not search.is_finished:
        found = [
            candidates(tag, search.num_candidates, position - len(request.token_ids), sampling, request.eos_token_ids)
            for tag in tags
        ]
        known = [top for top in found if top is not None]
        if len(known) < len(found):
            return [Expected([], FINISH_ERROR) for _ in range(sampling.n)]
        advance = search.advance(known)
        tags = [mix(tags[survivor.parent], survivor.token_id, position) for survivor in advance.survivors]
        position += 1
    return [
        Expected(found.token_ids, found.finish_reason, found.stop_reason, found.score, found.logprobs)
        for found in search.results()[: sampling.n]
    ]
