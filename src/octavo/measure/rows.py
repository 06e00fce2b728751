"""Kernels that work row by row on data in a cache: norms, rotary, KV writes, sampling and their like.

What is timed includes the call from Python, some microseconds; the case "call" is nothing else. The floor is that of
memory, which a cache beats: a share above 1 is no mistake.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from octavo import _native
from octavo.backends.protocol import Array
from octavo.measure.attention import Batch, make_memory
from octavo.measure.cases import Case, Clock
from octavo.measure.shapes import Shapes

_NUM_CALLS = 50
"""In one run, so that the clock's own steps do not matter."""

_MAX_SAMPLED = 64
"""More rows than a step samples at once."""


class RowKernels:
    """The kernels for M rows of one model."""

    def __init__(self, shapes: Shapes, num_rows: int, pool: _native.ThreadPool, isa: str) -> None:
        self._shapes, self._num_rows, self._pool, self._isa = shapes, num_rows, pool, isa
        self._rng = np.random.default_rng(2)

    def _random(self, width: int) -> Any:
        return self._rng.standard_normal((self._num_rows, width), np.float32)

    def cases(self) -> Iterator[Case]:
        yield self._case("call", self._call, 12)
        yield self._case("rms_norm", self._rms_norm, 8 * self._shapes.hidden_size)
        yield self._case("silu_mul", self._silu_mul, 12 * self._shapes.intermediate_size)
        yield self._case("add", self._add, 12 * self._shapes.hidden_size)
        yield self._case("rotary", self._rotary, 8 * self._shapes.query_width)
        yield self._case("write_kv, bfloat16", self._write_kv, 2 * (4 + 2) * self._shapes.kv_width)
        if self._num_rows <= _MAX_SAMPLED:
            logits = 4 * self._shapes.vocab_size
            yield self._case("sample, greedy", lambda: self._sample(0.0, 1.0), logits)
            yield self._case("sample, temperature 1", lambda: self._sample(1.0, 1.0), logits)
            yield self._case("sample, top_p 0.9", lambda: self._sample(1.0, 0.9), logits)

    def _case(self, kernel: str, make: Callable[[], Callable[[], Any]], bytes_per_row: int) -> Case:
        call = make()

        def run(clock: Clock) -> float:
            start = clock()
            for _ in range(_NUM_CALLS):
                call()
            return clock() - start

        return Case(
            kernel=kernel,
            form="float32",
            size=f"M = {self._num_rows}",
            run=run,
            num_bytes=float(_NUM_CALLS * self._num_rows * bytes_per_row),
            num_calls=_NUM_CALLS,
        )

    def _call(self) -> Callable[[], Any]:
        x = np.zeros((1, 1), np.float32)
        return lambda: _native.add(x, x, x, self._pool, self._isa)

    def _rms_norm(self) -> Callable[[], Any]:
        x = self._random(self._shapes.hidden_size)
        weight, out = np.ones(x.shape[1], np.float32), np.empty_like(x)
        return lambda: _native.rms_norm(x, weight, 1e-5, out, self._pool, self._isa)

    def _silu_mul(self) -> Callable[[], Any]:
        gate, up = self._random(self._shapes.intermediate_size), self._random(self._shapes.intermediate_size)
        out = np.empty_like(gate)
        return lambda: _native.gated(gate, up, out, self._pool, self._isa)

    def _add(self) -> Callable[[], Any]:
        x, y = self._random(self._shapes.hidden_size), self._random(self._shapes.hidden_size)
        out = np.empty_like(x)
        return lambda: _native.add(x, y, out, self._pool, self._isa)

    def _rotary(self) -> Callable[[], Any]:
        shapes = self._shapes
        x = self._random(shapes.query_width)
        half = shapes.head_dim // 2
        angle = np.arange(512)[:, None] * 10000.0 ** -(np.arange(half) / half)
        table = np.concatenate([np.cos(angle), np.sin(angle)], axis=1).astype(np.float32)
        positions = np.arange(self._num_rows, dtype=np.int32) % 512
        return lambda: _native.rotary(x, positions, table, shapes.head_dim, self._pool, self._isa)

    def _write_kv(self) -> Callable[[], Any]:
        kv = make_memory(self._shapes, Batch(1, self._num_rows), "bfloat16", 1, 16, scattered=True)
        key, value = self._random(self._shapes.kv_width), self._random(self._shapes.kv_width)
        positions = np.arange(self._num_rows, dtype=np.int32)
        rows = np.zeros_like(positions)
        return lambda: _native.write_kv(kv, 0, key, value, positions, rows, self._pool, self._isa)

    def _sample(self, temperature: float, top_p: float) -> Callable[[], Any]:
        logits = self._random(self._shapes.vocab_size)
        arguments = _sampling_arguments(self._num_rows, temperature, top_p)
        return lambda: _native.sample(logits, **arguments, pool=self._pool, isa=self._isa)


def _sampling_arguments(count: int, temperature: float, top_p: float) -> dict[str, Array]:
    """Rows without penalties, biases, bans, masks or logprobs."""
    floats = {"temperature": temperature, "top_p": top_p, "min_p": 0.0, "repetition_penalty": 1.0,
              "presence_penalty": 0.0, "frequency_penalty": 0.0}  # fmt: skip
    ints = {"top_k": 0, "sequence_index": 0, "num_prompt": 0, "mask_index": -1,
            "num_logprobs": -1}  # fmt: skip
    starts = {name: np.zeros(count + 1, np.int64) for name in ("history_start", "bias_start", "banned_start")}
    ids = {name: np.zeros(0, np.int32) for name in ("history", "bias_ids", "banned_ids")}
    return {
        **{name: np.full(count, value, np.float32) for name, value in floats.items()},
        **{name: np.full(count, value, np.int32) for name, value in ints.items()},
        **starts,
        **ids,
        "bias_values": np.zeros(0, np.float32),
        "masks": np.zeros((0, 0), np.uint32),
        "seed": np.arange(count, dtype=np.int64),
        "position": np.arange(count, dtype=np.int32),
    }


def row_cases(shapes: Shapes, rows: Sequence[int], pool: _native.ThreadPool, isa: str) -> Iterator[list[Case]]:
    """One case at a time: they have nothing in common to compare."""
    for num_rows in rows:
        yield from ([case] for case in RowKernels(shapes, num_rows, pool, isa).cases())
