"""Our answers against the expectations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from golden import cases
from octavo.backends.protocol import StepBatch
from octavo.config import EngineConfig
from octavo.executor.local import LocalExecutor
from octavo.messages import EngineRequest, SamplingParams
from octavo.weights.sources import find
from support.core_runs import Answers

NEAR_TIE = 1e-4
"""Gap between transformers' two best logits below which another choice is no error."""
LOGITS_TOLERANCE = 1e-3
"""Largest difference of a logit, relative to the largest logit of its position."""


class Expectation(msgspec.Struct, frozen=True):
    """What transformers gave for one prompt."""

    tokens: list[int]
    gaps: list[float]
    logits: Any
    """[kept positions, kept ids]"""
    scale: Any
    """[kept positions], the largest absolute logit of each position."""


def load(name: str) -> list[Expectation]:
    with np.load(cases.EXPECTED / f"{name}.npz") as stored:
        count = sum(key.startswith("tokens") for key in stored)
        return [
            Expectation(
                stored[f"tokens{i}"].tolist(), stored[f"gaps{i}"].tolist(), stored[f"logits{i}"], stored[f"scale{i}"]
            )
            for i in range(count)
        ]


def greedy_requests(prompts: Sequence[Sequence[int]], num_tokens: int) -> list[EngineRequest]:
    sampling = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
    return [
        EngineRequest(
            request_id=i,
            token_ids=list(prompt),
            num_prompt_tokens=len(prompt),
            sampling=sampling,
            seed=0,
            max_tokens=num_tokens,
        )
        for i, prompt in enumerate(prompts)
    ]


def near_ties(answers: Answers, expected: Sequence[Expectation], margin: float = NEAR_TIE) -> int:
    """Check greedy tokens. Returns how many prompts went another way at a near tie, after which nothing compares.

    Args:
        margin: Gap below which a choice is a near tie.

    Raises:
        AssertionError: If a token differs where transformers' own choice was clear.
    """
    ties = 0
    for i, expectation in enumerate(expected):
        found = answers[i, 0].token_ids
        assert len(found) <= len(expectation.tokens)
        for step, token in enumerate(found):
            if token != expectation.tokens[step]:
                gap = expectation.gaps[step]
                assert gap < margin, f"prompt {i}, token {step}: {token}, not {expectation.tokens[step]} (gap {gap})"
                ties += 1
                break
    return ties


def worst_logits(
    model: Path | str,
    prompts: Sequence[Sequence[int]],
    expected: Sequence[Expectation],
    *,
    chunk: int = 512,
    ids: Any = None,
    **settings: Any,
) -> float:
    """Teacher-forced logits: the largest difference, relative to the largest logit of its position.

    Weights are expanded to float32, as transformers has them, unless `quantization` says otherwise.
    """
    longest = max(len(prompt) + len(e.tokens) for prompt, e in zip(prompts, expected, strict=True))
    executor = _executor(model, longest, **{"quantization": "none", "max_num_batched_tokens": chunk, **settings})
    worst = 0.0
    try:
        for prompt, expectation in zip(prompts, expected, strict=True):
            found = _teacher_forced(executor, [*prompt, *expectation.tokens[:-1]], chunk)
            kept = found if ids is None else found[:, ids]
            difference = np.abs(kept - expectation.logits).max(axis=-1) / expectation.scale
            worst = max(worst, float(difference.max()))
    finally:
        executor.close()
    return worst


def prompt_logits(model: Path, prompt: Sequence[int], **settings: Any) -> Any:
    """Logits at the kept positions of a prompt."""
    with opened(model, len(prompt), **settings) as executor:
        return _teacher_forced(executor, prompt, 512)


@contextmanager
def opened(model: Path, longest: int = 256, **settings: Any) -> Iterator[LocalExecutor]:
    """An executor that computes in float32, for one sequence of at most `longest` tokens."""
    executor = _executor(model, longest, max_num_batched_tokens=512, **settings)
    try:
        yield executor
    finally:
        executor.close()


def _executor(model: Path | str, longest: int, **settings: Any) -> LocalExecutor:
    """With blocks for a sequence of that many tokens, in eight groups of KV where a block has eight tokens."""
    config = EngineConfig.of(
        model=str(model), max_num_seqs=1, dtype="float32", num_blocks=max(200, longest + 1), **settings
    )
    return LocalExecutor.load(config, find(config.model))


def greedy(executor: LocalExecutor, prompt: Sequence[int], num_tokens: int) -> list[int]:
    """The tokens that follow the prompt, by computing everything anew for each."""
    tokens = list(prompt)
    for _ in range(num_tokens):
        tokens.append(int(all_logits(executor, tokens)[-1].argmax()))
    return tokens[len(prompt) :]


def all_logits(executor: LocalExecutor, tokens: Sequence[int]) -> Any:
    """Teacher-forced logits at every position."""
    return _teacher_forced(executor, tokens, 512, range(len(tokens)))


def _teacher_forced(
    executor: LocalExecutor, tokens: Sequence[int], chunk: int, positions: Sequence[int] | None = None
) -> Any:
    """Logits at the kept positions, or others, computed in chunks on row 0."""
    runner = executor._runner
    columns = -(-len(tokens) // executor.kv_spec.block_size)
    assert columns < executor.num_blocks
    for group in range(executor.kv_spec.num_groups):
        # The same blocks for every group would overwrite each other: each takes every num_groups-th.
        own = 1 + group + executor.kv_spec.num_groups * np.arange(columns)
        runner._kv.block_tables[group, 0, :columns] = own
    wanted = np.array(cases.kept_positions(len(tokens)) if positions is None else positions)
    found = []
    for begin in range(0, len(tokens), chunk):
        end = min(begin + chunk, len(tokens))
        here = wanted[(wanted >= begin) & (wanted < end)] - begin
        batch = StepBatch(
            token_ids=np.array(tokens[begin:end], np.int32),
            positions=np.arange(begin, end, dtype=np.int32),
            batch_rows=np.zeros(1, np.int32),
            query_start_loc=np.array([0, end - begin], np.int32),
            seq_lens=np.array([end], np.int32),
            logits_tokens=here.astype(np.int32),
        )
        found.append(np.array(runner._program.run(batch)))
    return np.concatenate(found)


def same_weights(found: Any, wanted: Any, at: str) -> None:
    """Assert that two trees of a decoder's weights are equal, number by number.

    Args:
        at: What to call them where they are not.
    """
    assert type(found) is type(wanted), at
    if isinstance(wanted, list):
        assert len(found) == len(wanted), at
        for i, part in enumerate(wanted):
            same_weights(found[i], part, f"{at}[{i}]")
    elif isinstance(wanted, msgspec.Struct):
        for field in wanted.__struct_fields__:
            same_weights(getattr(found, field), getattr(wanted, field), f"{at}.{field}")
    elif isinstance(wanted, np.ndarray):
        np.testing.assert_array_equal(found, wanted, at)
    else:
        assert found == wanted, at
