"""Our beam searches against transformers'. See make_beams.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from golden import cases
from octavo.messages import EngineRequest, SamplingParams
from support.core_runs import Answers

NEAR_TIE = 1e-4
"""Difference between two sums of logprobs below which another choice is no error."""
SCORE_TOLERANCE = 1e-3
RELATIVE_TOLERANCE = 3e-5
"""A negative length penalty multiplies a sum by the length, and so its error."""


class Expectation(msgspec.Struct, frozen=True):
    """What transformers gave for one case and prompt."""

    answers: list[list[int]]
    """Best first."""
    scores: list[float]
    margin: float
    """How far transformers' closest choice was from going another way."""


def load(name: str) -> list[list[Expectation]]:
    """Expectations by case and prompt."""
    with np.load(cases.EXPECTED / f"beams-{name}.npz") as stored:
        return read(stored, range(len(cases.BEAMS)))


def read(stored: Mapping[str, Any], chosen: Sequence[int]) -> list[list[Expectation]]:
    """Expectations by case and prompt, of the chosen cases only."""
    prompts = range(stored["margins"].shape[1])
    return [[_expectation(stored, i, p, cases.BEAMS[c].width) for p in prompts] for i, c in enumerate(chosen)]


def _expectation(stored: Mapping[str, Any], i: int, p: int, width: int) -> Expectation:
    answers = [row[row != cases.NO_TOKEN].tolist() for row in stored["tokens"][i, p, :width]]
    return Expectation(answers, stored["scores"][i, p, :width].tolist(), float(stored["margins"][i, p]))


def requests(name: str, chosen: Sequence[int]) -> list[EngineRequest]:
    """One request for each case and prompt."""
    prompts = cases.beam_prompts(name)
    ends = cases.beam_ends(name)
    return [
        _request(i * len(prompts) + p, prompt, cases.BEAMS[c], ends)
        for i, c in enumerate(chosen)
        for p, prompt in enumerate(prompts)
    ]


def _request(request_id: int, prompt: list[int], case: cases.BeamCase, ends: tuple[int, ...]) -> EngineRequest:
    sampling = SamplingParams(
        n=case.width,
        beam_width=case.width,
        length_penalty=case.length_penalty,
        early_stopping=case.early_stopping,
        repetition_penalty=case.repetition_penalty,
        min_tokens=case.min_tokens,
        max_tokens=cases.BEAM_TOKENS,
        logprobs=0,
    )
    return EngineRequest(
        request_id=request_id,
        token_ids=list(prompt),
        num_prompt_tokens=len(prompt),
        sampling=sampling,
        seed=0,
        max_tokens=cases.BEAM_TOKENS,
        eos_token_ids=ends[: case.num_ends],
    )


def found(answers: Answers, request: EngineRequest) -> Expectation:
    """What the engine answered, in the form of an expectation."""
    own = [answers[request.request_id, index] for index in range(request.sampling.n)]
    scores = [answer.score for answer in own if answer.score is not None]
    return Expectation([answer.token_ids for answer in own], scores, 0.0)


def same(found: Expectation, wanted: Expectation, what: str) -> bool:
    """Whether the answers are the same. They may differ only where transformers' choice was not clear.

    Raises:
        AssertionError: If an answer differs without that excuse, or a score does.
    """
    if found.answers == wanted.answers:
        np.testing.assert_allclose(
            found.scores, wanted.scores, rtol=RELATIVE_TOLERANCE, atol=SCORE_TOLERANCE, err_msg=what
        )
        return True
    assert wanted.margin < NEAR_TIE, f"{what}: another answer, and the margin was {wanted.margin}"
    return False
