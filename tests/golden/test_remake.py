"""Make the expectations again and compare them with the committed ones. Needs torch and transformers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from golden import beams, cases, compare
from octavo.weights.sources import resolve

pytestmark = [pytest.mark.torch, pytest.mark.timeout(900)]

REMADE_PROMPTS = 3
REMADE_TOKENS = 12


def make(name: str, **how: Any) -> Mapping[str, Any]:
    from golden import make_goldens  # not at the top: collecting the tests must not need torch

    made: Mapping[str, Any] = make_goldens.make(name, **how)
    return made


def assert_agrees(made: Mapping[str, Any], expected: Sequence[compare.Expectation]) -> None:
    """Tokens up to a near tie. Another machine rounds transformers' own sums in another way."""
    for i, expectation in enumerate(expected):
        for step, token in enumerate(made[f"tokens{i}"].tolist()):
            if token != expectation.tokens[step]:
                assert expectation.gaps[step] < compare.NEAR_TIE, f"prompt {i}, token {step}"
                break


@pytest.mark.parametrize("name", [*cases.TINY, *cases.FAMILIES, "tinystories"])
def test_the_committed_expectation_is_what_transformers_says(name: str) -> None:
    made, expected = make(name), compare.load(name)
    assert_agrees(made, expected)
    for i, expectation in enumerate(expected):
        assert np.abs(made[f"logits{i}"] - expectation.logits).max() < 1e-4 * expectation.scale.max()


@pytest.mark.model
def test_the_default_model() -> None:
    """A few tokens of a few prompts: the whole takes transformers several minutes."""
    gguf = resolve("smollm2-135m").path
    made = make("smollm2", gguf=gguf, prompts=slice(REMADE_PROMPTS), num_tokens=REMADE_TOKENS)
    assert_agrees(made, compare.load("smollm2")[:REMADE_PROMPTS])


def remade_beams(name: str, chosen: tuple[int, ...], **how: Any) -> None:
    """The chosen cases again. Answers may differ from the committed ones only at a near tie."""
    from golden import make_beams

    made = beams.read(make_beams.make(name, chosen=chosen, **how), chosen)
    committed = beams.load(name)
    for c, found in zip(chosen, made, strict=True):
        for p, each in enumerate(found):
            beams.same(each, committed[c][p], f"case {c}, prompt {p}")


@pytest.mark.parametrize("name", [*cases.TINY, "tinystories"])
def test_the_committed_beams(name: str) -> None:
    remade_beams(name, (0, 5, 10, 12, 13, 14))


@pytest.mark.model
def test_the_beams_of_the_default_model() -> None:
    remade_beams("smollm2", (5,), gguf=resolve("smollm2-135m").path)
