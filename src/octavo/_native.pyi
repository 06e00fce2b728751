"""Types of the native module. Each room adds its functions; what is not listed yet is Any."""

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

class ThreadPool:
    def __init__(self, num_threads: int = 0) -> None: ...
    @property
    def size(self) -> int: ...

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
    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None: ...
    def erase_blocks(self, blocks: Sequence[int]) -> None: ...
    def export_block(self, block: int) -> bytes: ...
    def import_block(self, block: int, data: bytes) -> None: ...

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
) -> None: ...
def read_bandwidth(pool: ThreadPool, bytes: int = ...) -> float: ...
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
def __getattr__(name: str) -> Any: ...
