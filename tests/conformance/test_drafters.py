"""What every drafter promises, whatever it guesses: ids of the vocabulary, after what is known, as many as allowed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from octavo import registry
from octavo.config import EngineConfig
from octavo.core.step import RowFork, RowSetup
from octavo.errors import ConfigError
from octavo.messages import SamplingParams
from octavo.models.families import decoder_spec
from octavo.weights.sources import open_checkpoint, resolve
from octavo.worker.batch_state import BatchState
from octavo.worker.draft_model import DraftMemory, DraftModel, DraftModelSource
from octavo.worker.drafter import Drafter, DraftSettings, DraftSource, PromptLookup
from support.backends import Way
from support.paths import TINYSTORIES

NUM_ROWS, LIMIT, VOCAB = 5, 96, 512
EXTRA: dict[str, dict[str, Any]] = {"ngram": {"prompt_lookup_min": 1}, "draft_model": {"model": str(TINYSTORIES)}}


@pytest.fixture(scope="module")
def backend() -> Iterator[Any]:
    opened = Way("cpu", "float32").open(num_threads=1)
    yield opened
    opened.close()


def source_of(name: str, backend: Any, **changes: Any) -> DraftSource:
    config = EngineConfig.of(
        model=str(TINYSTORIES),
        max_num_seqs=NUM_ROWS,
        max_num_batched_tokens=changes.pop("budget", 32),
        erase_freed_blocks=True,
        speculative_config={"method": name, **EXTRA[name]},
    )
    checkpoint = open_checkpoint(resolve(str(TINYSTORIES)))
    spec = decoder_spec(checkpoint.config)
    checkpoint.close()
    drafting = config.speculation.drafting
    assert drafting is not None
    settings: dict[str, Any] = {"spec": spec, "dtype": "float32", "kv_dtype": "float32", "limit": LIMIT, **changes}
    made: DraftSource = registry.resolve("drafters", name)(
        DraftSettings(config=config, drafting=drafting, backend=backend, **settings)
    )
    return made


class Rows:
    """A state with sequences in it, and a drafter that watches it."""

    def __init__(self, name: str, backend: Any, **changes: Any) -> None:
        self.state = BatchState(NUM_ROWS, LIMIT)
        self.drafter: Drafter = source_of(name, backend, **changes).make(self.state)

    def set_up(self, row: int, tokens: list[int], temperature: float = 0.0) -> None:
        sampling = SamplingParams(temperature=temperature, max_tokens=40)
        self.state.set_up(RowSetup(row, tokens, len(tokens), 0, sampling, seed=3 + row, sequence_index=0))

    def propose(self, **most: int) -> dict[int, list[int]]:
        """By row, given as `r0=3`."""
        rows = np.array([int(name[1:]) for name in most], np.int32)
        before, lengths = self.state.tokens.copy(), self.state.num_tokens.copy()
        counts = self.drafter.propose(rows, np.array(list(most.values()), np.int32))
        assert np.array_equal(self.state.num_tokens, lengths), "guesses do not count as known"
        assert counts.dtype == np.int32 and counts.shape == rows.shape
        for row in range(NUM_ROWS):
            assert np.array_equal(self.state.tokens[row, : lengths[row]], before[row, : lengths[row]])
        found = {}
        for row, count, limit in zip(rows.tolist(), counts.tolist(), most.values(), strict=True):
            assert 0 <= count <= limit
            found[row] = self.state.tokens[row, lengths[row] : lengths[row] + count].tolist()
            assert all(0 <= token < VOCAB for token in found[row])
        return found

    def accept(self, row: int, tokens: list[int]) -> None:
        for token in tokens:
            self.state.append(np.array([row], np.int32), np.array([token], np.int32))


def text(seed: int, count: int = 20) -> list[int]:
    """Tokens that repeat themselves after ten."""
    rng = random.Random(seed)
    return ([rng.randrange(3, VOCAB) for _ in range(10)] * (count // 10 + 1))[:count]


@pytest.fixture(params=registry.names("drafters"))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_guesses_are_tokens_after_the_known_ones(name: str, backend: Any) -> None:
    rows = Rows(name, backend)
    for row in range(4):
        rows.set_up(row, text(row))
    for _ in range(2):
        rows.propose(r0=1, r1=4, r3=8)  # a drafter may have to read what is known first
    for _ in range(2):
        found = rows.propose(r0=1, r1=4, r3=8)
        assert [len(found[row]) for row in (0, 1, 3)] == [1, 4, 8]


def test_neighbours_and_repetition_change_nothing(name: str, backend: Any) -> None:
    alone = []
    for row in range(3):
        rows = Rows(name, backend)
        rows.set_up(row, text(row, 25), temperature=0.5 * row)
        alone.append(rows.propose(**{f"r{row}": 5})[row])
    rows = Rows(name, backend, budget=128)
    for row in range(3):
        rows.set_up(row, text(row, 25), temperature=0.5 * row)
    assert [rows.propose(r2=5, r0=5, r1=5)[row] for row in range(3)] == alone
    assert rows.propose(r1=5)[1] == alone[1]


def test_rows_that_took_other_tokens_than_guessed(name: str, backend: Any) -> None:
    """Rejected drafts leave nothing behind, and accepted ones are what they were."""
    rng = random.Random(1)
    rows = Rows(name, backend)
    rows.set_up(0, text(0))
    for _ in range(8):
        [found] = rows.propose(r0=4).values()
        rows.accept(0, [*found[: rng.randrange(len(found) + 1)], rng.randrange(3, VOCAB)])
    fresh = Rows(name, backend, budget=128)
    fresh.set_up(0, rows.state.tokens[0, : rows.state.num_tokens[0]].tolist())
    fresh.state.num_prompt[0] = 20
    assert rows.propose(r0=4) == fresh.propose(r0=4)


def test_a_row_that_is_released_forked_and_used_again(name: str, backend: Any) -> None:
    rows = Rows(name, backend)
    rows.set_up(0, text(0))
    rows.propose(r0=4)
    rows.state.fork(RowFork(0, 1, 1))
    assert rows.propose(r1=4)[1] == rows.propose(r0=4)[0], "greedy twins say the same"
    rows.state.release(0)
    rows.drafter.forget(0)
    rows.drafter.forget(0)
    rows.drafter.forget(4)
    rows.set_up(0, text(7))
    other = Rows(name, backend)
    other.set_up(0, text(7))
    assert rows.propose(r0=4) == other.propose(r0=4)


def test_a_single_token_and_the_end_of_the_context(name: str, backend: Any) -> None:
    rows = Rows(name, backend)
    rows.set_up(0, [7])
    rows.set_up(1, text(1, LIMIT - 3))
    found = rows.propose(r0=3, r1=2)
    assert len(found[0]) in (0, 3) and len(found[1]) in (0, 2)


# ---- each by itself


def test_lookup_prefers_the_longest_then_the_latest_run() -> None:
    state = BatchState(1, LIMIT)
    lookup = PromptLookup(state, shortest=2, longest=3)

    def guess(tokens: list[int], count: int = 4) -> list[int]:
        state.set_up(RowSetup(0, tokens, len(tokens), 0, SamplingParams(), seed=0, sequence_index=0))
        found = int(lookup.propose(np.array([0], np.int32), np.array([count], np.int32))[0])
        return [int(token) for token in state.tokens[0, len(tokens) : len(tokens) + found]]

    assert guess([1, 2, 3, 9, 9, 9, 9, 2, 3, 8, 8, 8, 8, 1, 2, 3]) == [9, 9, 9, 9], "three tokens before two"
    assert guess([2, 3, 9, 9, 9, 9, 2, 3, 8, 7, 6, 5, 2, 3]) == [8, 7, 6, 5], "the latest"
    assert guess([3, 9, 9, 9, 9, 3]) == [], "one token is too little"
    assert guess([4, 5, 4, 5]) == [4, 5, 4, 5], "a repetition goes on"
    assert guess([6, 6, 6]) == [6, 6, 6, 6]
    assert guess([1, 2, 3, 4]) == [] and guess([1]) == []
    assert guess([5, 4, 5, 4, 5]) == [4, 5, 4, 5], "a run may reach the row's beginning, not beyond"


def test_catching_up_takes_as_many_steps_as_it_needs(backend: Any) -> None:
    rows = Rows("draft_model", backend, budget=8)
    rows.set_up(0, text(0))
    rows.set_up(1, text(1, 5))
    found = [rows.propose(r0=3, r1=3) for _ in range(4)]
    # 8 tokens a step: 8 of row 0; 8 more; its last 4 and 4 of row 1; then the rest.
    assert [[len(f[row]) for row in (0, 1)] for f in found] == [[0, 0], [0, 0], [3, 0], [3, 3]]


def memory(num_blocks: int, backend: Any) -> DraftMemory:
    source = source_of("draft_model", backend)
    assert isinstance(source, DraftModelSource)
    shape = source._shape()
    fields = {name: getattr(shape, name) for name in shape.__struct_fields__} | {"num_blocks": num_blocks}
    return DraftMemory(backend.allocate_kv(type(shape)(**fields)), erase=True)


def test_who_was_asked_for_longest_ago_makes_room(backend: Any) -> None:
    blocks = memory(1 + 3, backend)
    assert all(blocks.grow(row, 20, {row}) for row in (0, 1, 2))
    assert blocks.grow(0, 32, {0}) and blocks.grow(3, 1, {3})
    assert [row in blocks for row in range(4)] == [True, False, True, True]
    assert not blocks.grow(0, 96, {0, 2, 3}) and 0 in blocks, "all the others are needed"
    assert not blocks.grow(1, 1, {0, 1, 2, 3}) and 1 not in blocks
    assert blocks.grow(0, 96, {0}) and 2 not in blocks and 3 not in blocks


def test_what_is_forgotten_is_erased(backend: Any) -> None:
    rows = Rows("draft_model", backend)
    assert isinstance(rows.drafter, DraftModel)
    kv = rows.drafter.memory.kv
    rows.set_up(0, text(0, 40))
    while not rows.propose(r0=3)[0]:
        pass
    used = kv.block_tables[0, 0, :2].tolist()
    assert all(any(kv.export_block(block)) for block in used)
    rows.drafter.forget(0)
    assert not any(any(kv.export_block(block)) for block in used)


def test_a_row_past_the_draft_models_context_is_not_followed(backend: Any) -> None:
    rows = Rows("draft_model", backend, limit=32, budget=64)
    rows.set_up(0, text(0, 30))
    rows.set_up(1, text(1, 31))
    assert [len(f) for f in rows.propose(r0=3, r1=3).values()] == [3, 0]


def test_another_vocabulary_is_refused(backend: Any) -> None:
    checkpoint = open_checkpoint(resolve(str(TINYSTORIES)))
    config = {**checkpoint.config, "vocab_size": 513}
    checkpoint.close()
    with pytest.raises(ConfigError, match=r"speculative_config\.model = .* must be a model of 513 tokens"):
        source_of("draft_model", backend, spec=decoder_spec(config))
