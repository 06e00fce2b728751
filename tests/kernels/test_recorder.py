"""What the CPU back end refuses while it records, and what its programs keep, share and give back while they run."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo import _native
from octavo.backends.cpu import CpuBackend
from octavo.backends.protocol import KVShape, RopeParams, StepBatch
from octavo.errors import ConfigError

ROPE = RopeParams(inv_freq=(1.0, 0.1), max_position=100)


def small_kv(backend: CpuBackend, max_blocks_per_seq: int = 8) -> Any:
    kv = backend.allocate_kv(
        KVShape(
            layer_groups=(0,),
            num_kv_heads=1,
            head_dim=4,
            dtype="float32",
            block_size=256,
            num_blocks=4,
            max_num_seqs=2,
            max_blocks_per_seq=max_blocks_per_seq,
        )
    )
    kv.block_tables[:] = 1
    return kv


def prompt(num_tokens: int, num_selected: int) -> StepBatch:
    return StepBatch(
        token_ids=np.arange(num_tokens, dtype=np.int32) % 7,
        positions=np.arange(num_tokens, dtype=np.int32),
        batch_rows=np.zeros(1, np.int32),
        query_start_loc=np.array([0, num_tokens], np.int32),
        seq_lens=np.array([num_tokens], np.int32),
        logits_tokens=np.arange(num_tokens - num_selected, num_tokens, dtype=np.int32),
    )


# --- recording -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def backend() -> CpuBackend:
    return CpuBackend("float32", num_threads=2)


@pytest.fixture(scope="module")
def table(backend: CpuBackend) -> Any:
    return backend.matrix([np.random.default_rng(0).standard_normal((7, 12)).astype(np.float32)])


def compile_and_run(backend: CpuBackend, build: Callable[[Any], Any]) -> Any:
    return backend.compile(build, small_kv(backend), 16).run(prompt(5, 2))


@pytest.mark.parametrize("widths", [(4, 4), (4, 4, 4, 4), (12, 0), (-4, 16), ()])
def test_parts_must_add_up(backend: CpuBackend, table: Any, widths: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"^widths .*: must be positive and add up to 12"):
        compile_and_run(backend, lambda ops: ops.split(ops.embedding(table), widths)[0])


def uses_x_after_add(ops: Any, table: Any) -> Any:
    x = ops.embedding(table)
    ops.add(x, ops.embedding(table))
    return ops.gated(x, x, "silu")


def uses_the_whole_after_a_part_was_rotated(ops: Any, table: Any) -> Any:
    x = ops.embedding(table)
    ops.rotary(ops.split(x, (4, 8))[1], ROPE, 4)
    return ops.gated(x, x, "silu")


def uses_another_part_that_overlaps(ops: Any, table: Any) -> Any:
    x = ops.embedding(table)
    whole = ops.split(x, (4, 8))[1]
    ops.rotary(ops.split(x, (8, 4))[1], ROPE, 4)
    return ops.gated(whole, whole, "silu")


def returns_what_is_gone(ops: Any, table: Any) -> Any:
    x = ops.embedding(table)
    ops.add(x, ops.embedding(table))
    return x


IN_PLACE: dict[str, Callable[[Any, Any, Any], Any]] = {
    "add_positions": lambda ops, x, table: ops.add_positions(x, table, 0),
    "scale": lambda ops, x, table: ops.scale(x, 2.0),
    "activation": lambda ops, x, table: ops.activation(x, "gelu"),
    "soft_cap": lambda ops, x, table: ops.soft_cap(x, 2.0),
    "sigmoid_gate": lambda ops, x, table: ops.sigmoid_gate(x, ops.split(ops.embedding(table), (1, 11))[0]),
}


@pytest.mark.parametrize("op", IN_PLACE)
def test_ops_that_reuse_their_x_take_it(backend: CpuBackend, table: Any, op: str) -> None:
    def build(ops: Any) -> Any:
        x = ops.embedding(table)
        IN_PLACE[op](ops, x, table)
        return ops.gated(x, x, "silu")

    with pytest.raises(ValueError, match=rf"^a tensor was used after {op} worked on it in place"):
        compile_and_run(backend, build)


@pytest.mark.parametrize(
    ("build", "op"),
    [
        (uses_x_after_add, "add"),
        (uses_the_whole_after_a_part_was_rotated, "rotary"),
        (uses_another_part_that_overlaps, "rotary"),
        (returns_what_is_gone, "add"),
    ],
)
def test_a_tensor_is_gone_after_an_op_in_place(
    backend: CpuBackend, table: Any, build: Callable[[Any, Any], Any], op: str
) -> None:
    with pytest.raises(ValueError, match=rf"^a tensor was used after {op} worked on it in place"):
        compile_and_run(backend, lambda ops: build(ops, table))


def test_other_parts_stay(backend: CpuBackend, table: Any) -> None:
    def build(ops: Any) -> Any:
        first, second, third = ops.split(ops.embedding(table), (4, 4, 4))
        rotated = ops.rotary(second, ROPE, 4)
        return ops.add(ops.add(first, third), rotated)

    result = compile_and_run(backend, build)
    whole = compile_and_run(backend, lambda ops: ops.embedding(table))
    rotated = compile_and_run(backend, lambda ops: ops.rotary(ops.split(ops.embedding(table), (4, 4, 4))[1], ROPE, 4))
    assert np.array_equal(result, whole[:, :4] + whole[:, 8:] + rotated)


@pytest.mark.parametrize("num_threads", [0, -1, 1025])
def test_thread_counts_name_their_field(num_threads: int) -> None:
    with pytest.raises(ConfigError, match=rf"^num_threads = {num_threads}: must be from 1 to 1024"):
        CpuBackend("float32", num_threads=num_threads)


def test_closing_stops_the_threads_and_answers_stay() -> None:
    before = len(list(Path("/proc/self/task").iterdir()))
    backend = CpuBackend("float32", num_threads=6)
    assert len(list(Path("/proc/self/task").iterdir())) == before + 5
    table = backend.matrix([np.random.default_rng(0).standard_normal((500, 300)).astype(np.float32)])
    program = backend.compile(lambda ops: ops.linear(ops.embedding(table), table), small_kv(backend), 64)
    expected = program.run(prompt(64, 1)).copy()
    backend.close()
    backend.close()
    assert len(list(Path("/proc/self/task").iterdir())) < before + 5
    assert np.array_equal(program.run(prompt(64, 1)), expected)


# --- running ---------------------------------------------------------------------------------------------------------


def test_arrays_may_be_changed_while_a_step_runs(backend: CpuBackend) -> None:
    """A step works on what it checked. Without that, ids that another thread writes would be read out of bounds."""
    rng = np.random.default_rng(0)
    table = backend.matrix([rng.standard_normal((7, 512)).astype(np.float32)])

    def build(ops: Any) -> Any:
        x = ops.embedding(table)
        for _ in range(20):
            x = ops.add(x, ops.embedding(table))
        return ops.select(x)

    program = backend.compile(build, small_kv(backend), 512)
    batch, good = prompt(512, 4), prompt(512, 4)
    expected = program.run(good).copy()
    stop = threading.Event()

    def scribble() -> None:
        while not stop.is_set():
            batch.token_ids[:] = 2**30
            batch.logits_tokens[:] = 2**30
            batch.token_ids[:] = good.token_ids
            batch.logits_tokens[:] = good.logits_tokens

    other = threading.Thread(target=scribble)
    other.start()
    equal = refused = 0
    try:
        for _ in range(300):
            try:
                equal += np.array_equal(program.run(batch), expected)
            except ValueError:  # copied in the middle of a scribble, and found out
                refused += 1
    finally:
        stop.set()
        other.join()
    assert equal + refused == 300


def test_callers_of_one_program_wait_for_one_another(backend: CpuBackend, table: Any) -> None:
    program = backend.compile(lambda ops: ops.linear(ops.embedding(table), table), small_kv(backend), 64)
    expected = program.run(prompt(64, 1)).copy()
    results: list[bool] = []

    def run() -> None:
        results.extend(np.array_equal(program.run(prompt(64, 1)), expected) for _ in range(100))

    callers = [threading.Thread(target=run) for _ in range(3)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert results == [True] * 300


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_the_logits_of_a_prompt_are_given_back(backend: CpuBackend) -> None:
    vocab_size, num_tokens = 40_000, 512
    narrow = backend.matrix([np.ones((7, 4), np.float32)])
    head = backend.matrix([np.ones((vocab_size, 4), np.float32)])
    program = backend.compile(
        lambda ops: ops.linear(ops.select(ops.embedding(narrow)), head), small_kv(backend), num_tokens
    )
    program.run(prompt(num_tokens, 1))
    before, whole = resident_bytes(), vocab_size * 4 * num_tokens
    logits = program.run(prompt(num_tokens, num_tokens))
    assert logits.min() == logits.max() == 4
    assert resident_bytes() - before > 0.9 * whole
    few = program.run(prompt(num_tokens, 20))
    assert few.min() == few.max() == 4
    assert resident_bytes() - before < 0.2 * whole
    logits = program.run(prompt(num_tokens, num_tokens))
    assert logits.min() == logits.max() == 4


# --- kernel paths -----------------------------------------------------------------------------------------------------


def test_a_forced_path_decides_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    described = set()
    for isa in _native.supported_paths():
        monkeypatch.setenv("OCTAVO_ISA", isa)
        facts = CpuBackend("float32", num_threads=1).describe()
        assert facts["kernel_path"] == isa
        described.add(facts["kernels"])
    assert len(described) == len(_native.supported_paths())
    monkeypatch.setenv("OCTAVO_ISA", "sse9")
    with pytest.raises(ConfigError, match=r"^isa = 'sse9': must be one that this CPU has: .*portable"):
        CpuBackend("float32")
