"""Local and global layers in several groups: however KV is shared, moved and given back, the answers are the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from golden import memory_scenarios as scenarios
from golden.memory_scenarios import INT8, PLAIN, Format, Model
from golden.test_same_answers_speculation import LOOKUP, guessed_run
from support.core_runs import RealEngine
from support.mixed_windows import mixed_windows
from support.tiny_models import TinyLlama, write_tiny_llama

WINDOWS = (24, 40, 24, None, 24, 40)
DEPTHS = pytest.mark.parametrize("depth", [1, 2])


@pytest.fixture
def mixed(tmp_path: Path) -> Iterator[Model]:
    model = TinyLlama(num_layers=len(WINDOWS), tied=False, seed=9)
    with mixed_windows(WINDOWS):
        yield Model(write_tiny_llama(tmp_path, model), model.vocab_size, num_groups=len(WINDOWS))


def test_groups_of_several_windows(mixed: Model) -> None:
    with RealEngine.open(mixed.path, num_blocks=100, block_size=8) as engine:
        groups = engine.executor.kv_spec.groups
    assert sorted((group.window or 0, len(group.layers)) for group in groups) == [
        (0, 1),
        *[(24, 1)] * 3,
        *[(40, 1)] * 2,
    ]


@DEPTHS
@pytest.mark.parametrize("form", [PLAIN, INT8], ids=["bfloat16", "int8"])
def test_prefixes_are_shared(mixed: Model, form: Format, depth: int) -> None:
    seen = scenarios.shared_prefixes(form, model=mixed, block_size=8, depth=depth)
    assert seen.num_windows_left > 0 and seen.num_partial_hits > 0


@DEPTHS
@pytest.mark.parametrize("way", ["swap", "recompute"])
def test_everything_in_a_tiny_pool(mixed: Model, way: str, depth: int) -> None:
    seen = scenarios.tiny_pool(model=mixed, room=200, way=way, depth=depth, block_size=8)
    assert seen.num_windows_left > 0 and seen.num_copies > 0 and seen.num_forks > 0


@pytest.mark.parametrize("way", ["swap", "recompute"])
def test_preempted_at_every_step(mixed: Model, way: str) -> None:
    seen = scenarios.preempted_at_every_step(model=mixed, way=way, depth=1, block_size=8)
    assert seen.num_windows_left > 0


def test_drafts_are_verified(mixed: Model) -> None:
    seen = guessed_run(
        mixed, PLAIN, LOOKUP, small=True, num_groups=4, block_size=8, num_threads=1, max_num_batched_tokens=32
    )
    assert seen.num_windows_left > 0
