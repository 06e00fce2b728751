"""A greedy step gives the tokens that `sample` would take from its logits, on every back end."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from octavo.backends.protocol import Program
from support.paged_steps import kv_shape, scatter_blocks, step
from support.sampling import Row, make_batch


def program(backend: Any, x: Any, head: Any) -> Program:
    kv = backend.allocate_kv(kv_shape(max_tokens=512))
    scatter_blocks(kv, [len(x)])
    table, matrix = backend.matrix([x]), backend.matrix([head])
    screen = backend.screen(matrix)
    compiled: Program = backend.compile(
        lambda ops: ops.logits(ops.select(ops.embedding(table)), matrix, screen), kv, len(x)
    )
    return compiled


@pytest.mark.parametrize(("vocabulary", "width"), [(5, 3), (300, 64), (1000, 96)])
def test_what_sample_would_take(backend: Any, vocabulary: int, width: int) -> None:
    rng = np.random.default_rng([vocabulary, width])
    x = rng.standard_normal((12, width), np.float32)
    x[3, 1] = np.nan
    few = rng.standard_normal((-(-vocabulary // 2), width), np.float32)
    compiled = program(backend, x, np.concatenate([few, few])[:vocabulary])  # every logit twice
    for wanted in (np.arange(12), np.array([11]), np.array([0, 3, 4])):
        batch = step([np.arange(12)], [(0, 0, 12)])
        batch.logits_tokens = wanted.astype(np.int32)
        greedy = make_batch([Row(temperature=0.0)] * len(wanted))
        expected = backend.sample(np.array(compiled.run(batch)), greedy).token_ids
        assert compiled.run_greedy(batch).tolist() == expected.tolist()
        assert [token < 0 for token in expected] == (wanted == 3).tolist()


def test_logits_under_a_cap(backend: Any) -> None:
    """Many of them are at the cap exactly; then the first one wins."""
    rng = np.random.default_rng(1)
    x, head = 20 * rng.standard_normal((12, 64), np.float32), rng.standard_normal((300, 64), np.float32)
    kv = backend.allocate_kv(kv_shape(max_tokens=512))
    scatter_blocks(kv, [len(x)])
    table, matrix = backend.matrix([x]), backend.matrix([head])
    compiled = backend.compile(
        lambda ops: ops.soft_cap(ops.logits(ops.embedding(table), matrix, None), 2.0), kv, len(x)
    )
    batch = step([np.arange(12)], [(0, 0, 12)])
    logits = np.array(compiled.run(batch))
    assert (np.sum(logits == np.float32(2.0), axis=1) > 1).any()
    assert compiled.run_greedy(batch).tolist() == logits.argmax(axis=1).tolist()


def test_the_screen_takes_what_it_says(backend: Any) -> None:
    head = np.random.default_rng(0).standard_normal((300, 64), np.float32)
    screen = backend.screen(backend.matrix([head]))
    assert backend.screen_bytes([head]) == (0 if screen is None else backend.num_bytes(screen))
