"""The CPU back end: the decoder runs once to record a program, which native code replays in one call per step."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

import msgspec

import octavo._native as _native
from octavo.backends.cpu_weights import CpuWeight, Stack, as_stored, hollow, pack, pieces_of
from octavo.backends.fusion import Call, View, fuse, last_uses
from octavo.backends.protocol import (
    Activation,
    Array,
    Float32Array,
    Int32Array,
    KVShape,
    Ops,
    RopeParams,
    Routing,
    SampleBatch,
    SampleOutput,
    StepBatch,
    Tensor,
    Weight,
    WeightPart,
)
from octavo.errors import ConfigError

_ARITHMETIC = {
    ("avx512", "bfloat16"): "bfloat16 dot products (vdpbf16ps), float32 sums",
    ("avx512", "float32"): "float32 FMA, 16 lanes",
    ("avx2", "bfloat16"): "bfloat16 weights widened to float32, FMA, 8 lanes",
    ("avx2", "float32"): "float32 FMA, 8 lanes",
    ("portable", "bfloat16"): "bfloat16 weights widened to float32, multiply and add",
    ("portable", "float32"): "float32 multiply and add",
}
_ARITHMETIC_OF_GROUPS = {
    "avx512": "8-bit dot products (vpdpbusd), float32 over groups",
    "avx2": "8-bit products (vpmaddubsw, vpmaddwd), float32 over groups",
    "portable": "8-bit products, float32 over groups",
}
"""Of weights in groups, whatever the dtype."""


_MAX_THREADS = 1024


class _Value(msgspec.Struct):
    """Something an op produced: its width, and which rows it has."""

    width: int
    selected: bool
    overwritten: list[View] = []
    """What ops that work in place made of parts of it."""


class _Recorder:
    """Implements `Ops` by writing down what is to be done. What may reuse x's memory works in place."""

    def __init__(self) -> None:
        self.values: list[_Value] = []
        self.calls: list[Call] = []
        self.screen: _native.Screen | None = None

    def embedding(self, table: Weight) -> Tensor:
        if isinstance(table, Stack):
            raise ValueError("table: its rows are kept in several formats; must be one")
        return self._record("embedding", table.k, (table,))

    def rms_norm(self, x: Tensor, weight: Weight, eps: float) -> Tensor:
        if not weight or x.width % len(weight):
            raise ValueError(f"weight: x is {x.width} wide, which is not a multiple of its length {len(weight)}")
        return self._record("rms_norm", x.width, (x, weight, eps), like=x)

    def linear(self, x: Tensor, weight: Weight, bias: Weight | None = None) -> Tensor:
        return self._record("linear", weight.n, (x, weight, [] if bias is None else bias), like=x)

    def split(self, x: Tensor, widths: Sequence[int]) -> list[Tensor]:
        if min(widths, default=0) < 1 or sum(widths) != x.width:
            raise ValueError(f"widths {tuple(widths)}: must be positive and add up to {x.width}")
        starts = [x.offset, *(x.offset + end for end in itertools.accumulate(widths))]
        return [View(x.root, start, width, x.made) for start, width in zip(starts, widths, strict=False)]

    def rotary(self, x: Tensor, rope: RopeParams, head_dim: int) -> Tensor:
        self._record("rotary", None, (x, list(rope.inv_freq), rope.scale, head_dim, rope.max_position))
        return self._overwritten(x)

    def write_kv(self, layer: int, key: Tensor, value: Tensor) -> None:
        self._record("write_kv", None, (layer, key, value))

    def add_positions(self, x: Tensor, table: Weight, offset: int) -> Tensor:
        self._record("add_positions", None, (x, table, offset))
        return self._overwritten(x)

    def layer_norm(self, x: Tensor, weight: Weight, bias: Weight | None, eps: float) -> Tensor:
        return self._record("layer_norm", x.width, (x, weight, [] if bias is None else bias, eps), like=x)

    def scale(self, x: Tensor, factor: float) -> Tensor:
        self._record("scale", None, (x, factor))
        return self._overwritten(x)

    def paged_attention(
        self, layer: int, query: Tensor, *, scale: float, window: int | None = None, soft_cap: float | None = None
    ) -> Tensor:
        limits = (window or 0, 0.0 if soft_cap is None else soft_cap)
        return self._record("attention", query.width, (layer, query, scale, *limits), like=query)

    def activation(self, x: Tensor, kind: Activation) -> Tensor:
        self._record("activation", None, (x, kind))
        return self._overwritten(x)

    def gated(self, gate: Tensor, up: Tensor, kind: Activation) -> Tensor:
        return self._record("gated", gate.width, (gate, up, kind), like=gate)

    def experts(
        self,
        x: Tensor,
        router_logits: Tensor,
        gate_up: Sequence[Weight],
        down: Sequence[Weight],
        routing: Routing,
        kind: Activation,
    ) -> Tensor:
        weights = [[pieces_of(weight) for weight in each] for each in (gate_up, down)]
        chosen = (routing.top_k, routing.normalise, kind)
        return self._record("experts", x.width, (x, router_logits, *weights, *chosen), like=x)

    def sigmoid_gate(self, x: Tensor, gate: Tensor) -> Tensor:
        self._record("sigmoid_gate", None, (x, gate))
        return self._overwritten(x)

    def soft_cap(self, x: Tensor, cap: float) -> Tensor:
        self._record("soft_cap", None, (x, cap))
        return self._overwritten(x)

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        self._record("add", None, (x, y))
        return self._overwritten(x)

    def select(self, x: Tensor) -> Tensor:
        return self._record("select", x.width, (x,), selected=True)

    def logits(self, x: Tensor, head: Weight, screen: Weight | None) -> Tensor:
        self.screen = screen
        return self.linear(x, head)

    def use(self, x: View) -> None:
        """The next call, or whoever takes the result, reads `x`.

        Raises:
            ValueError: If an op has worked in place on a part of it since.
        """
        value = self.values[x.root]
        for other in value.overwritten:
            if other.made > x.made and other.offset < x.offset + x.width and x.offset < other.offset + other.width:
                raise ValueError(f"a tensor was used after {self.calls[other.made].method} worked on it in place")

    def _overwritten(self, x: View) -> View:
        """The tensor that the last call left in place of `x`."""
        view = View(x.root, x.offset, x.width, len(self.calls) - 1)
        self.values[x.root].overwritten.append(view)
        return view

    def _record(
        self,
        method: str,
        width: int | None,
        arguments: tuple[Any, ...],
        *,
        like: Tensor | None = None,
        selected: bool = False,
    ) -> Tensor:
        root = None if width is None else len(self.values)
        call = Call(method, root, arguments)
        for view in call.views():
            self.use(view)
        self.calls.append(call)
        if root is None or width is None:
            return None
        self.values.append(_Value(width, selected or (like is not None and self.values[like.root].selected)))
        return View(root, 0, width, len(self.calls) - 1)


class _Slots:
    """Gives values that are alive at different times the same memory."""

    def __init__(self, program: _native.Program) -> None:
        self._program = program
        self._free: dict[tuple[int, bool], list[int]] = {}

    def take(self, value: _Value) -> int:
        free = self._free.get((value.width, value.selected))
        return free.pop() if free else self._program.add_slot(value.width, value.selected)

    def give_back(self, value: _Value, slot: int) -> None:
        self._free.setdefault((value.width, value.selected), []).append(slot)


class CpuProgram:
    """See `protocol.Program`. One native call per step."""

    def __init__(self, native: _native.Program) -> None:
        self._native = native

    def run(self, batch: StepBatch) -> Float32Array:
        logits: Float32Array = self._native.run(*_arrays(batch))
        return logits

    def run_greedy(self, batch: StepBatch) -> Int32Array:
        tokens: Int32Array = self._native.run_greedy(*_arrays(batch))
        return tokens


def _arrays(batch: StepBatch) -> tuple[Int32Array, ...]:
    return (
        batch.token_ids,
        batch.positions,
        batch.batch_rows,
        batch.query_start_loc,
        batch.seq_lens,
        batch.logits_tokens,
    )


class CpuBackend:
    """See `protocol.Backend`.

    Args:
        dtype: "bfloat16" or "float32": weights as stored in memory, and the arithmetic of `linear`.
        num_threads: Compute threads; None takes the cores that affinity and cgroup allow.
        isa: "avx512", "avx2" or "portable"; None reads OCTAVO_ISA, else takes the best this CPU has.

    Raises:
        ConfigError: If the dtype is unknown or this CPU lacks the path asked for.
    """

    name = "cpu"
    keeps_groups = True

    def __init__(self, dtype: str, *, num_threads: int | None = None, isa: str | None = None) -> None:
        if dtype not in ("bfloat16", "float32"):
            raise ConfigError("dtype", dtype, "bfloat16 or float32")
        if num_threads is not None and not 1 <= num_threads <= _MAX_THREADS:
            raise ConfigError("num_threads", num_threads, f"from 1 to {_MAX_THREADS}")
        self.dtype = dtype
        self.isa = chosen_path(isa)
        self._pool = _native.ThreadPool(num_threads or 0)
        self._arena = _native.Arena()

    @staticmethod
    def default_dtype(isa: str | None = None) -> str:
        """bfloat16 where the kernel path multiplies it natively.

        Raises:
            ConfigError: If this CPU lacks the path asked for.
        """
        return "bfloat16" if chosen_path(isa) == "avx512" else "float32"

    def describe(self) -> dict[str, str]:
        return {
            "kernel_path": self.isa,
            "kv_layout_version": "2",  # of csrc/kernels/kv_layout.h
            "num_threads": str(self._pool.size),
            "dtype": self.dtype,
            "arithmetic": _ARITHMETIC[self.isa, self.dtype],
            "arithmetic_of_groups": _ARITHMETIC_OF_GROUPS[self.isa],
            "kernels": ", ".join(f"{self.isa}::{name}" for name in ("linear", "attention", "rms_norm", "sample")),
        }

    def matrix(self, parts: Sequence[WeightPart]) -> Weight:
        return pack(parts, self.dtype == "bfloat16", self._new_matrix(self._arena), self._pool)

    def num_bytes(self, weight: Weight) -> int:
        return int(weight.nbytes)

    def matrix_bytes(self, parts: Sequence[WeightPart]) -> int:
        return hollow(parts, self.dtype == "bfloat16", self._new_matrix(_native.Arena())).nbytes

    def screen(self, head: Weight) -> Weight | None:
        if not self._screened(head):
            return None
        screen = _native.Screen(head, self._arena, self._pool)
        return screen if screen.usable else None

    def screen_bytes(self, parts: Sequence[WeightPart]) -> int:
        head = hollow(parts, self.dtype == "bfloat16", self._new_matrix(_native.Arena()))
        return _native.Screen.bytes_for(head) if self._screened(head) else 0

    def _screened(self, head: CpuWeight) -> TypeGuard[_native.Matrix]:
        """A screen has half the bits of the head, 8 or 4: it does not pay for one of 4 bits, nor where products of
        integers are as slow as others."""
        return not isinstance(head, Stack) and _native.Screen.fits(head) and self.isa != "portable"

    def _new_matrix(self, arena: _native.Arena) -> Callable[[int, int, _native.WeightFormat], _native.Matrix]:
        return lambda rows, columns, kept: _native.Matrix(arena, rows, columns, kept, self.isa)

    def vector(self, data: Array) -> Weight:
        return as_stored(data, False).tolist()

    def allocate_kv(self, shape: KVShape) -> _native.KVMemory:
        kv = _native.KVMemory(
            layer_groups=list(shape.layer_groups),
            num_kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            dtype=shape.dtype,
            block_size=shape.block_size,
            num_blocks=shape.num_blocks,
            max_num_seqs=shape.max_num_seqs,
            max_blocks_per_seq=shape.max_blocks_per_seq,
        )
        kv.shape = shape
        return kv

    def compile(self, build: Callable[[Ops], Tensor], kv: _native.KVMemory, max_num_tokens: int) -> CpuProgram:
        recorder = _Recorder()
        result = build(recorder)
        recorder.use(result)
        native = _native.Program(self.isa, kv, self._pool, max_num_tokens)
        slots, place = _Slots(native), dict[int, int]()
        calls = fuse(recorder.calls, result)
        last_use = last_uses(calls, result)
        for step, call in enumerate(calls):
            if call.root is not None:
                place[call.root] = slots.take(recorder.values[call.root])
            placed = [(place[a.root], a.offset, a.width) if isinstance(a, View) else a for a in call.arguments]
            _add_op(native, call.method, [*placed, *([] if call.root is None else [place[call.root]])])
            for dead in [r for r in place if last_use[r] == step]:
                slots.give_back(recorder.values[dead], place.pop(dead))
        native.set_output((place[result.root], result.offset, result.width))
        if recorder.screen is not None:
            native.set_screen(recorder.screen)
        return CpuProgram(native)

    def sample(self, logits: Array, batch: SampleBatch) -> SampleOutput:
        token_ids, logprobs, ranks, top_ids, top_logprobs = _native.sample(
            logits,
            batch.temperature,
            batch.top_k,
            batch.top_p,
            batch.min_p,
            batch.repetition_penalty,
            batch.presence_penalty,
            batch.frequency_penalty,
            batch.seed,
            batch.sequence_index,
            batch.position,
            batch.history_start,
            batch.history,
            batch.num_prompt,
            batch.bias_start,
            batch.bias_ids,
            batch.bias_values,
            batch.banned_start,
            batch.banned_ids,
            batch.mask_index,
            batch.masks,
            batch.num_logprobs,
            pool=self._pool,
            isa=self.isa,
        )
        return SampleOutput(
            token_ids=token_ids, logprobs=logprobs, ranks=ranks, top_ids=top_ids, top_logprobs=top_logprobs
        )

    def close(self) -> None:
        """Stop the threads. Memory goes with the last weight, program or array that uses it."""
        self._pool.stop()


def _add_op(native: _native.Program, method: str, arguments: list[Any]) -> None:
    """Add one op; a product with a weight in several pieces is one op for each, side by side in the output."""
    add = getattr(native, method)
    if "linear" not in method or not isinstance(arguments[-3], Stack):
        add(*arguments)
        return
    *taken, weight, bias, out = arguments
    first = 0
    for piece in weight.pieces:
        end = first + piece.n
        to = [(out[0], out[1] + first, piece.n)] if method.endswith("_add") else [out, first]
        add(*taken, piece, bias[first:end], *to)
        first = end


def chosen_path(isa: str | None) -> str:
    """The kernel path for a wish, OCTAVO_ISA, or the best there is.

    Raises:
        ConfigError: If this CPU lacks the path asked for.
    """
    supported = _native.supported_paths()
    wanted = isa or os.environ.get("OCTAVO_ISA") or supported[0]
    if wanted not in supported:
        raise ConfigError("isa", wanted, f"one that this CPU has: {', '.join(supported)}")
    return wanted
