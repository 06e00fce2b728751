"""A plain PyTorch back end: every op eager, no kernels of its own. The only file that imports torch.

It keeps the protocol honest (nothing in it is shaped by the CPU back end) and is the seed of one for GPUs. It does not
promise that a row's bits are the same in every batch: torch sums a product of matrices in an order that depends on its
shape. Tokens are sampled by the numpy reference on the host.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from octavo.backends import reference
from octavo.backends.greedy import greedy
from octavo.backends.grouped import expand
from octavo.backends.protocol import (
    Activation,
    Array,
    GroupedWeight,
    Int32Array,
    KVShape,
    Ops,
    Program,
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

_DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
_ACTIVATIONS: dict[Activation, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
    "relu": functional.relu,
}


def _tensor(data: Array) -> torch.Tensor:
    """A tensor from float32, int32 or the bits of bfloat16; numpy keeps nothing of it."""
    copied = torch.from_numpy(np.array(data))
    return copied.view(torch.bfloat16) if data.dtype == np.uint16 else copied


class TorchKVMemory:
    """Keys and values as `[num_blocks, layers_per_page, 2, num_kv_heads, block_size]` vectors of bytes.

    A vector is its elements; with int8, these and then its scale.
    """

    def __init__(self, shape: KVShape) -> None:
        self.shape = shape
        page = (shape.layers_per_page, 2, shape.num_kv_heads, shape.block_size, shape.bytes_per_vector)
        self.blocks = torch.zeros(shape.num_blocks, *page, dtype=torch.uint8)
        tables = (shape.num_groups, shape.max_num_seqs, shape.max_blocks_per_seq)
        self.block_tables: Int32Array = np.zeros(tables, np.int32)
        self.slots = [shape.layer_groups[:i].count(g) for i, g in enumerate(shape.layer_groups)]

    def expect(self, block: int) -> None:
        pass

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        for source, destination in pairs:
            self.blocks[destination] = self.blocks[source]

    def erase_blocks(self, blocks: Sequence[int]) -> None:
        self.blocks[list(blocks)] = 0

    def export_block(self, block: int) -> bytes:
        data: bytes = self.blocks[block].numpy().tobytes()
        return data

    def import_block(self, block: int, data: bytes) -> None:
        if len(data) != self.shape.bytes_per_block:
            raise ValueError(f"a block has {self.shape.bytes_per_block} bytes, not {len(data)}")
        read = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        self.blocks[block] = read.view(self.blocks.shape[1:])

    def swap_out(self, block: int, slot: Array) -> None:
        if slot.nbytes != self.shape.bytes_per_block:
            raise ValueError(f"a block has {self.shape.bytes_per_block} bytes, not {slot.nbytes}")
        torch.from_numpy(slot).copy_(self.blocks[block].flatten())

    def swap_in(self, slot: Array, block: int) -> None:
        self.import_block(block, slot.tobytes())

    def places(self, layer: int, rows: Array, positions: Array) -> tuple[torch.Tensor, torch.Tensor]:
        """Block and offset of each (row, position)."""
        size = self.shape.block_size
        blocks = self.block_tables[self.shape.layer_groups[layer], rows, positions // size]
        return _tensor(blocks), _tensor(positions % size)

    def as_bytes(self, x: torch.Tensor) -> torch.Tensor:
        """float32 vectors `[..., head_dim]` as the bytes kept of them, `[..., bytes_per_vector]`."""
        if self.shape.dtype != "int8":
            return x.to(_DTYPES[self.shape.dtype]).contiguous().view(torch.uint8)
        scale = x.abs().amax(-1, keepdim=True) / 127
        scale = torch.where(scale.isfinite(), scale, torch.nan)
        # A subnormal scale has few digits: quotients may then exceed 127.
        stored = torch.where(scale > 0, (x / scale).round().clamp(-127, 127), 0).to(torch.int8)
        return torch.cat([stored.view(torch.uint8), scale.view(torch.uint8)], -1)

    def from_bytes(self, data: torch.Tensor) -> torch.Tensor:
        """What `as_bytes` kept, in float32."""
        if self.shape.dtype != "int8":
            return data.view(_DTYPES[self.shape.dtype]).float()
        return data[..., :-4].view(torch.int8).float() * data[..., -4:].contiguous().view(torch.float32)


class _EagerOps:
    """The ops on torch tensors, for one step."""

    def __init__(self, kv: TorchKVMemory, batch: StepBatch) -> None:
        self._kv = kv
        self._batch = batch
        self._token_rows = np.repeat(batch.batch_rows, np.diff(batch.query_start_loc))
        self._positions = _tensor(batch.positions)

    def embedding(self, table: Weight) -> Tensor:
        return table[_tensor(self._batch.token_ids)].float()

    def add_positions(self, x: Tensor, table: Weight, offset: int) -> Tensor:
        return x + table[self._positions + offset].float()

    def rms_norm(self, x: Tensor, weight: Weight, eps: float) -> Tensor:
        runs = x.view(len(x), x.shape[1] // len(weight), len(weight))
        return (runs * torch.rsqrt(runs.square().mean(-1, keepdim=True) + eps) * weight).view(x.shape)

    def layer_norm(self, x: Tensor, weight: Weight, bias: Weight | None, eps: float) -> Tensor:
        return functional.layer_norm(x, (len(weight),), weight, bias, eps)

    def scale(self, x: Tensor, factor: float) -> Tensor:
        return x * factor

    def linear(self, x: Tensor, weight: Weight, bias: Weight | None = None) -> Tensor:
        return functional.linear(x, weight.float(), bias)

    def split(self, x: Tensor, widths: Sequence[int]) -> list[Tensor]:
        return list(x.split(list(widths), dim=1))

    def rotary(self, x: Tensor, rope: RopeParams, head_dim: int) -> Tensor:
        half = len(rope.inv_freq)
        angle = self._positions.double()[:, None] * torch.tensor(rope.inv_freq, dtype=torch.float64)
        cos, sin = ((f(angle) * rope.scale).float()[:, None, :] for f in (torch.cos, torch.sin))
        first, second, rest = x.view(len(x), -1, head_dim).split([half, half, head_dim - 2 * half], dim=2)
        rotated = torch.cat([first * cos - second * sin, second * cos + first * sin, rest], dim=2)
        return rotated.view(x.shape)

    def write_kv(self, layer: int, key: Tensor, value: Tensor) -> None:
        blocks, offsets = self._kv.places(layer, self._token_rows, self._batch.positions)
        pairs = torch.stack([key, value], dim=1).view(len(key), 2, self._kv.shape.num_kv_heads, -1)
        self._kv.blocks[blocks, self._kv.slots[layer], :, :, offsets] = self._kv.as_bytes(pairs)

    def paged_attention(
        self, layer: int, query: Tensor, *, scale: float, window: int | None = None, soft_cap: float | None = None
    ) -> Tensor:
        heads = query.view(len(query), self._kv.shape.num_kv_heads, -1, self._kv.shape.head_dim)
        output = torch.empty_like(heads)
        for i, (row, end) in enumerate(zip(self._token_rows, self._batch.positions + 1, strict=True)):
            start = 0 if window is None else max(0, int(end) - window)
            positions = np.arange(start, end, dtype=np.int32)
            blocks, offsets = self._kv.places(layer, np.full_like(positions, row), positions)
            pairs = self._kv.from_bytes(self._kv.blocks[blocks, self._kv.slots[layer], :, :, offsets])
            keys, values = pairs.permute(1, 2, 0, 3)  # each [num_kv_heads, tokens, head_dim]
            scores = heads[i] @ keys.transpose(1, 2) * scale
            if soft_cap is not None:
                scores = soft_cap * (scores / soft_cap).tanh()
            output[i] = scores.softmax(-1) @ values
        return output.view(query.shape)

    def activation(self, x: Tensor, kind: Activation) -> Tensor:
        return _ACTIVATIONS[kind](x)

    def gated(self, gate: Tensor, up: Tensor, kind: Activation) -> Tensor:
        return _ACTIVATIONS[kind](gate) * up

    def experts(
        self,
        x: Tensor,
        router_logits: Tensor,
        gate_up: Sequence[Weight],
        down: Sequence[Weight],
        routing: Routing,
        kind: Activation,
    ) -> Tensor:
        shares, chosen = router_logits.softmax(-1).sort(descending=True, stable=True)
        shares, chosen = shares[:, : routing.top_k], chosen[:, : routing.top_k]
        if routing.normalise:
            shares = shares / shares.sum(-1, keepdim=True)
        total = torch.zeros(len(x), len(down[0]))
        for expert in range(len(down)):
            tokens, rank = (chosen == expert).nonzero(as_tuple=True)
            if len(tokens):
                gate, up = self.linear(x[tokens], gate_up[expert]).chunk(2, dim=1)
                total[tokens] += shares[tokens, rank, None] * self.linear(self.gated(gate, up, kind), down[expert])
        return torch.where(router_logits.isnan().any(-1, keepdim=True), torch.nan, total)

    def sigmoid_gate(self, x: Tensor, gate: Tensor) -> Tensor:
        return x * gate.sigmoid()

    def soft_cap(self, x: Tensor, cap: float) -> Tensor:
        return cap * (x / cap).tanh()

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y

    def logits(self, x: Tensor, head: Weight, screen: Weight | None) -> Tensor:
        return self.linear(x, head)

    def select(self, x: Tensor) -> Tensor:
        return x[_tensor(self._batch.logits_tokens)]


class _EagerProgram:
    def __init__(self, build: Callable[[Ops], Tensor], kv: TorchKVMemory, max_num_tokens: int) -> None:
        self._build = build
        self._kv = kv
        self._max_num_tokens = max_num_tokens

    def run(self, batch: StepBatch) -> Array:
        if len(batch.token_ids) > self._max_num_tokens:
            raise ValueError(f"{len(batch.token_ids)} tokens in a program compiled for {self._max_num_tokens}")
        with torch.inference_mode():
            result: Array = self._build(_EagerOps(self._kv, batch)).contiguous().numpy()
        return result

    def run_greedy(self, batch: StepBatch) -> Int32Array:
        return greedy(self.run(batch))


class TorchBackend:
    """See `protocol.Backend`. bfloat16 is a way to keep weights here: arithmetic is float32 whatever the dtype.

    Args:
        dtype: "bfloat16" or "float32": weights in memory.
        num_threads: Of torch's own pool, which is the whole process's; None leaves it as it is.
        isa: Must be None: torch chooses its kernels itself.

    Raises:
        ConfigError: If the dtype is unknown or a kernel path is asked for.
    """

    name = "torch"
    keeps_groups = False

    def __init__(self, dtype: str, *, num_threads: int | None = None, isa: str | None = None) -> None:
        if dtype not in _DTYPES:
            raise ConfigError("dtype", dtype, "bfloat16 or float32")
        if isa is not None:
            raise ConfigError("isa", isa, "left out: torch chooses its kernels itself")
        if num_threads is not None:
            torch.set_num_threads(num_threads)
        self.dtype = dtype

    @staticmethod
    def default_dtype(isa: str | None = None) -> str:
        return "float32"

    def describe(self) -> dict[str, str]:
        return {
            "kernel_path": f"torch {torch.__version__}",
            "kv_layout_version": "1",
            "num_threads": str(torch.get_num_threads()),
            "dtype": self.dtype,
            "arithmetic": "float32",
        }

    def matrix(self, parts: Sequence[WeightPart]) -> Weight:
        floats = [expand(part) if isinstance(part, GroupedWeight) else part for part in parts]
        return torch.cat([_tensor(part).to(_DTYPES[self.dtype]) for part in floats])

    def num_bytes(self, weight: Weight) -> int:
        return int(weight.nbytes)

    def matrix_bytes(self, parts: Sequence[WeightPart]) -> int:
        return int(_DTYPES[self.dtype].itemsize) * sum(math.prod(part.shape) for part in parts)

    def screen(self, head: Weight) -> Weight | None:
        return None

    def screen_bytes(self, parts: Sequence[WeightPart]) -> int:
        return 0

    def vector(self, data: Array) -> Weight:
        return _tensor(data).float()

    def allocate_kv(self, shape: KVShape) -> TorchKVMemory:
        return TorchKVMemory(shape)

    def compile(self, build: Callable[[Ops], Tensor], kv: Any, max_num_tokens: int) -> Program:
        return _EagerProgram(build, kv, max_num_tokens)

    def sample(self, logits: Array, batch: SampleBatch) -> SampleOutput:
        return reference.sample(logits, batch)

    def close(self) -> None:
        """Nothing to stop."""
