"""Types of the native module. Contracts: the docstrings of csrc/*.cpp and csrc/*.h."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

def supported_paths() -> list[str]: ...
def dequantize(
    data: npt.NDArray[np.uint8],
    type: str,
    out: npt.NDArray[np.float32] | npt.NDArray[np.uint16],
    num_threads: int = 1,
    path: str = "",
) -> None: ...
def group_layout(type: str) -> tuple[int, int, int, bool, bool] | None: ...
def read_groups(
    data: npt.NDArray[np.uint8],
    type: str,
    codes: npt.NDArray[np.uint8],
    scales: npt.NDArray[np.float32],
    minimums: npt.NDArray[np.float32] | None,
    num_threads: int = 1,
    path: str = "",
) -> None: ...
def unpack_codes(
    words: npt.NDArray[np.uint32], packing: str, bits: int, codes: npt.NDArray[np.uint8], num_threads: int = 1
) -> None: ...
def quantize(
    rows: npt.NDArray[np.float32] | npt.NDArray[np.uint16],
    bits: int,
    codes: npt.NDArray[np.uint8],
    scales: npt.NDArray[np.float32],
    minimums: npt.NDArray[np.float32] | None,
    num_threads: int = 1,
    path: str = "",
) -> None: ...

class ThreadPool:
    def __init__(self, num_threads: int = 0) -> None: ...
    @property
    def size(self) -> int: ...
    def stop(self) -> None: ...

def usable_cpus(cgroup_root: str = "/sys/fs/cgroup", memberships: str = "/proc/self/cgroup") -> int: ...

class KVMemory:
    """`backends.protocol.KVMemory`, but for `shape`, which the back end sets."""

    shape: Any
    def __init__(
        self,
        *,
        layer_groups: Sequence[int],
        num_kv_heads: int,
        head_dim: int,
        dtype: str,
        block_size: int,
        num_blocks: int,
        max_num_seqs: int,
        max_blocks_per_seq: int,
    ) -> None: ...
    @property
    def block_tables(self) -> npt.NDArray[np.int32]: ...
    @property
    def bytes_per_block(self) -> int: ...
    def expect(self, block: int) -> None: ...
    @property
    def ready_bytes(self) -> int: ...
    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None: ...
    def erase_blocks(self, blocks: Sequence[int]) -> None: ...
    def export_block(self, block: int) -> bytes: ...
    def import_block(self, block: int, data: bytes) -> None: ...
    def swap_out(self, block: int, slot: npt.NDArray[np.uint8]) -> None: ...
    def swap_in(self, slot: npt.NDArray[np.uint8], block: int) -> None: ...

class Arena:
    """Memory for weights, in huge pages."""

    def __init__(self) -> None: ...

class WeightFormat:
    """How a weight is kept. In groups: scale * (code - zero) + minimum."""

    @staticmethod
    def float32() -> WeightFormat: ...
    @staticmethod
    def bfloat16() -> WeightFormat: ...
    @staticmethod
    def groups(
        bits: int, group: int, *, zero: int = 0, minimum: bool = False, half_scales: bool = False
    ) -> WeightFormat: ...

class Matrix:
    """A weight `[n, k]` in the panels of one kernel path, zero until rows are packed into it."""

    def __init__(self, arena: Arena, n: int, k: int, format: WeightFormat, isa: str) -> None: ...
    @property
    def format(self) -> WeightFormat: ...
    @property
    def n(self) -> int: ...
    @property
    def k(self) -> int: ...
    @property
    def has_halves(self) -> bool: ...
    @property
    def nbytes(self) -> int: ...
    def pack(
        self, rows: npt.NDArray[np.float32] | npt.NDArray[np.uint16], first_row: int, pool: ThreadPool
    ) -> None: ...
    def pack_groups(
        self,
        codes: npt.NDArray[np.uint8],
        scales: npt.NDArray[np.float32],
        minimums: npt.NDArray[np.float32] | None,
        first_row: int,
        pool: ThreadPool,
    ) -> None: ...

class Screen:
    """What lets a greedy step compute only the products with a head that matter."""

    def __init__(self, head: Matrix, arena: Arena, pool: ThreadPool) -> None: ...
    @staticmethod
    def fits(head: Matrix) -> bool: ...
    @staticmethod
    def bytes_for(head: Matrix) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def usable(self) -> bool: ...
    @property
    def num_found(self) -> int: ...

_View = tuple[int, int, int]
"""Slot, first column, width."""

class Program:
    """Recorded ops over slots. Arguments as the ops of `backends.protocol.Ops`; `out` is a slot."""

    def __init__(self, isa: str, kv: KVMemory, pool: ThreadPool, max_num_tokens: int) -> None: ...
    def add_slot(self, width: int, selected: bool) -> int: ...
    def set_output(self, view: _View) -> None: ...
    def set_screen(self, screen: Screen) -> None: ...
    def embedding(self, table: Matrix, out: int) -> None: ...
    def add_positions(self, x: _View, table: Matrix, offset: int, /) -> None: ...
    def rms_norm(self, x: _View, weight: Sequence[float], eps: float, out: int, /) -> None: ...
    def layer_norm(self, x: _View, weight: Sequence[float], bias: Sequence[float], eps: float, out: int, /) -> None: ...
    def linear(self, x: _View, weight: Matrix, bias: Sequence[float], out: int, first_column: int = 0, /) -> None: ...
    def linear_add(self, x: _View, weight: Matrix, bias: Sequence[float], into: _View, /) -> None: ...
    def linear_gated(self, kind: str, x: _View, weight: Matrix, bias: Sequence[float], out: int, /) -> None: ...
    def rms_norm_linear(
        self,
        x: _View,
        norm: Sequence[float],
        eps: float,
        weight: Matrix,
        bias: Sequence[float],
        out: int,
        first_column: int = 0,
        /,
    ) -> None: ...
    def rms_norm_linear_add(
        self, x: _View, norm: Sequence[float], eps: float, weight: Matrix, bias: Sequence[float], into: _View, /
    ) -> None: ...
    def rms_norm_linear_gated(
        self, kind: str, x: _View, norm: Sequence[float], eps: float, weight: Matrix, bias: Sequence[float], out: int, /
    ) -> None: ...
    def layer_norm_linear(
        self,
        x: _View,
        norm: Sequence[float],
        norm_bias: Sequence[float],
        eps: float,
        weight: Matrix,
        bias: Sequence[float],
        out: int,
        first_column: int = 0,
        /,
    ) -> None: ...
    def layer_norm_linear_add(
        self,
        x: _View,
        norm: Sequence[float],
        norm_bias: Sequence[float],
        eps: float,
        weight: Matrix,
        bias: Sequence[float],
        into: _View,
        /,
    ) -> None: ...
    def layer_norm_linear_gated(
        self,
        kind: str,
        x: _View,
        norm: Sequence[float],
        norm_bias: Sequence[float],
        eps: float,
        weight: Matrix,
        bias: Sequence[float],
        out: int,
        /,
    ) -> None: ...
    def activation_linear(
        self, x: _View, kind: str, weight: Matrix, bias: Sequence[float], out: int, first_column: int = 0, /
    ) -> None: ...
    def activation_linear_add(
        self, x: _View, kind: str, weight: Matrix, bias: Sequence[float], into: _View, /
    ) -> None: ...
    def gated_linear(
        self,
        gate: _View,
        up: _View,
        kind: str,
        weight: Matrix,
        bias: Sequence[float],
        out: int,
        first_column: int = 0,
        /,
    ) -> None: ...
    def gated_linear_add(
        self, gate: _View, up: _View, kind: str, weight: Matrix, bias: Sequence[float], into: _View, /
    ) -> None: ...
    def rotary(
        self, x: _View, inv_freq: Sequence[float], scale: float, head_dim: int, max_position: int, /
    ) -> None: ...
    def write_kv(self, layer: int, key: _View, value: _View, /) -> None: ...
    def rotary_write_kv(
        self,
        query: _View,
        key: _View,
        inv_freq: Sequence[float],
        scale: float,
        head_dim: int,
        max_position: int,
        layer: int,
        value: _View,
        /,
    ) -> None: ...
    def attention(self, layer: int, query: _View, scale: float, window: int, soft_cap: float, out: int, /) -> None: ...
    def gated(self, gate: _View, up: _View, kind: str, out: int, /) -> None: ...
    def activation(self, x: _View, kind: str, /) -> None: ...
    def scale(self, x: _View, factor: float, /) -> None: ...
    def soft_cap(self, x: _View, cap: float, /) -> None: ...
    def sigmoid_gate(self, x: _View, gate: _View, /) -> None: ...
    def experts(
        self,
        x: _View,
        router_logits: _View,
        gate_up: Sequence[Sequence[Matrix]],
        down: Sequence[Sequence[Matrix]],
        top_k: int,
        normalise: bool,
        kind: str,
        out: int,
        /,
    ) -> None: ...
    def add(self, x: _View, y: _View, /) -> None: ...
    def select(self, x: _View, out: int, /) -> None: ...
    def start_profile(self, cpu_time: bool) -> None: ...
    def stop_profile(self) -> None: ...
    def profile(self) -> list[tuple[str, float]]: ...
    def run(
        self,
        token_ids: npt.NDArray[np.int32],
        positions: npt.NDArray[np.int32],
        batch_rows: npt.NDArray[np.int32],
        query_start_loc: npt.NDArray[np.int32],
        seq_lens: npt.NDArray[np.int32],
        logits_tokens: npt.NDArray[np.int32],
    ) -> npt.NDArray[np.float32]: ...
    def run_greedy(
        self,
        token_ids: npt.NDArray[np.int32],
        positions: npt.NDArray[np.int32],
        batch_rows: npt.NDArray[np.int32],
        query_start_loc: npt.NDArray[np.int32],
        seq_lens: npt.NDArray[np.int32],
        logits_tokens: npt.NDArray[np.int32],
    ) -> npt.NDArray[np.int32]: ...

def write_kv(
    kv: KVMemory,
    layer: int,
    key: npt.NDArray[np.float32],
    value: npt.NDArray[np.float32],
    positions: npt.NDArray[np.int32],
    token_rows: npt.NDArray[np.int32],
    pool: ThreadPool,
    isa: str,
) -> None: ...
def attention(
    kv: KVMemory,
    layer: int,
    query: npt.NDArray[np.float32],
    out: npt.NDArray[np.float32],
    num_heads: int,
    scale: float,
    window: int,
    batch_rows: npt.NDArray[np.int32],
    query_start_loc: npt.NDArray[np.int32],
    seq_lens: npt.NDArray[np.int32],
    pool: ThreadPool,
    isa: str,
    soft_cap: float = 0.0,
) -> None: ...
def attention_layers(
    layers: Sequence[tuple[KVMemory, int]],
    query: npt.NDArray[np.float32],
    out: npt.NDArray[np.float32],
    num_heads: int,
    scale: float,
    batch_rows: npt.NDArray[np.int32],
    query_start_loc: npt.NDArray[np.int32],
    seq_lens: npt.NDArray[np.int32],
    pool: ThreadPool,
    isa: str,
) -> None: ...
def linear(
    x: npt.NDArray[np.float32],
    weight: Matrix,
    bias: Sequence[float],
    out: npt.NDArray[np.float32],
    pool: ThreadPool,
    *,
    norm: Sequence[float] = ...,
    eps: float = ...,
    norm_bias: Sequence[float] | None = ...,
    up: npt.NDArray[np.float32] | None = ...,
    kind: str | None = ...,
    add: bool = ...,
    gated: bool = ...,
) -> None: ...
def embedding(
    table: Matrix, token_ids: npt.NDArray[np.int32], out: npt.NDArray[np.float32], pool: ThreadPool
) -> None: ...
def rms_norm(
    x: npt.NDArray[np.float32],
    weight: npt.NDArray[np.float32],
    eps: float,
    out: npt.NDArray[np.float32],
    pool: ThreadPool,
    isa: str,
) -> None: ...
def layer_norm(
    x: npt.NDArray[np.float32],
    weight: npt.NDArray[np.float32],
    bias: npt.NDArray[np.float32] | None,
    eps: float,
    out: npt.NDArray[np.float32],
    pool: ThreadPool,
    isa: str,
) -> None: ...
def gated(
    gate: npt.NDArray[np.float32],
    up: npt.NDArray[np.float32],
    out: npt.NDArray[np.float32],
    pool: ThreadPool,
    isa: str,
    kind: str = "silu",
) -> None: ...
def activation(x: npt.NDArray[np.float32], kind: str, pool: ThreadPool, isa: str) -> None: ...
def scale(x: npt.NDArray[np.float32], factor: float, pool: ThreadPool, isa: str) -> None: ...
def soft_cap(x: npt.NDArray[np.float32], cap: float, pool: ThreadPool, isa: str) -> None: ...
def sigmoid_gate(x: npt.NDArray[np.float32], gate: npt.NDArray[np.float32], pool: ThreadPool, isa: str) -> None: ...
def add(
    x: npt.NDArray[np.float32],
    y: npt.NDArray[np.float32],
    out: npt.NDArray[np.float32],
    pool: ThreadPool,
    isa: str,
) -> None: ...
def select(
    x: npt.NDArray[np.float32],
    rows: npt.NDArray[np.int32],
    out: npt.NDArray[np.float32],
    pool: ThreadPool,
    isa: str,
) -> None: ...
def rotary(
    x: npt.NDArray[np.float32],
    positions: npt.NDArray[np.int32],
    table: npt.NDArray[np.float32],
    head_dim: int,
    pool: ThreadPool,
    isa: str,
) -> None: ...
def packed(matrix: Matrix) -> bytes: ...
def count_tiles(pool: ThreadPool, count: int, ends: Sequence[int] = ...) -> list[int]: ...
def fetched_ahead(
    kv: KVMemory,
    layer: int,
    window: int,
    batch_rows: npt.NDArray[np.int32],
    query_start_loc: npt.NDArray[np.int32],
    seq_lens: npt.NDArray[np.int32],
    num_threads: int,
) -> list[list[tuple[int, int]]]: ...
def read_bandwidth(pool: ThreadPool, bytes: int = ...) -> float: ...
def fork_join(pool: ThreadPool, repeats: int = 1000) -> float: ...
def dot_peak(pool: ThreadPool, isa: str, kind: str) -> float: ...
def sample(
    logits: npt.NDArray[np.float32],
    temperature: npt.NDArray[np.float32],
    top_k: npt.NDArray[np.int32],
    top_p: npt.NDArray[np.float32],
    min_p: npt.NDArray[np.float32],
    repetition_penalty: npt.NDArray[np.float32],
    presence_penalty: npt.NDArray[np.float32],
    frequency_penalty: npt.NDArray[np.float32],
    seed: npt.NDArray[np.int64],
    sequence_index: npt.NDArray[np.int32],
    position: npt.NDArray[np.int32],
    history_start: npt.NDArray[np.int64],
    history: npt.NDArray[np.int32],
    num_prompt: npt.NDArray[np.int32],
    bias_start: npt.NDArray[np.int64],
    bias_ids: npt.NDArray[np.int32],
    bias_values: npt.NDArray[np.float32],
    banned_start: npt.NDArray[np.int64],
    banned_ids: npt.NDArray[np.int32],
    mask_index: npt.NDArray[np.int32],
    masks: npt.NDArray[np.uint32],
    num_logprobs: npt.NDArray[np.int32],
    pool: ThreadPool,
    isa: str,
) -> tuple[
    npt.NDArray[np.int32],
    npt.NDArray[np.float32] | None,
    npt.NDArray[np.int32] | None,
    npt.NDArray[np.int32] | None,
    npt.NDArray[np.float32] | None,
]: ...
def uniform(seed: int, sequence_index: int, position: int) -> float: ...
