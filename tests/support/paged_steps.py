"""Sequences in the blocks of a back end's KV memory, and the steps that compute them, without a scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.backends.protocol import KVMemory, KVShape, StepBatch

Array = npt.NDArray[Any]
Chunk = tuple[int, int, int]
"""(row, first new token, one past the last)."""


def kv_shape(layer_groups: Sequence[int] = (0,), **changes: Any) -> KVShape:
    """A small memory for four sequences of 160 tokens, unless told otherwise."""
    settings: dict[str, Any] = {
        "num_kv_heads": 2,
        "head_dim": 8,
        "dtype": "float32",
        "block_size": 16,
        "max_num_seqs": 4,
        **changes,
    }
    max_tokens = settings.pop("max_tokens", 160)
    per_seq = -(-max_tokens // settings["block_size"]) + 1
    num_groups = max(layer_groups) + 1
    num_blocks = 2 + num_groups * settings["max_num_seqs"] * per_seq
    return KVShape(layer_groups=tuple(layer_groups), num_blocks=num_blocks, max_blocks_per_seq=per_seq, **settings)


def scatter_blocks(kv: KVMemory, lengths: Sequence[int], *, seed: int = 0, poison: bool = True) -> None:
    """Give every sequence blocks in random order.

    With poison, every byte of the memory is 0xFF, a NaN in either dtype, and table entries past a sequence's end point
    to blocks of nobody, so that whatever reads too far shows it.
    """
    shape = kv.shape
    ids = np.random.default_rng(seed).permutation(np.arange(1, shape.num_blocks)).astype(np.int32).tolist()
    if poison:
        for block in range(shape.num_blocks):
            kv.import_block(block, b"\xff" * shape.bytes_per_block)
    kv.block_tables[:] = ids.pop()
    for group in range(shape.num_groups):
        for row, length in enumerate(lengths):
            for column in range(-(-length // shape.block_size)):
                kv.block_tables[group, row, column] = ids.pop()


def step(tokens: Sequence[Array], chunks: Sequence[Chunk], *, every_token: bool = True) -> StepBatch:
    """One step that computes `chunks` of the rows' `tokens`; logits of every new token, or of each sequence's last."""
    counts = [end - begin for _, begin, end in chunks]
    start = np.cumsum([0, *counts]).astype(np.int32)
    wanted = np.arange(start[-1]) if every_token else start[1:] - 1
    return StepBatch(
        token_ids=np.concatenate([tokens[row][begin:end] for row, begin, end in chunks]).astype(np.int32),
        positions=np.concatenate([np.arange(begin, end) for _, begin, end in chunks]).astype(np.int32),
        batch_rows=np.array([row for row, _, _ in chunks], np.int32),
        query_start_loc=start,
        seq_lens=np.array([end for _, _, end in chunks], np.int32),
        logits_tokens=wanted.astype(np.int32),
    )


def run_steps(program: Any, tokens: Sequence[Array], steps: Sequence[Sequence[Chunk]]) -> list[Array]:
    """Run the steps in order. Returns, per row, what the program gave for each of its tokens."""
    found: list[list[Array]] = [[] for _ in tokens]
    for chunks in steps:
        output = np.array(program.run(step(tokens, chunks)))
        at = 0
        for row, begin, end in chunks:
            found[row].append(output[at : at + end - begin])
            at += end - begin
    return [np.concatenate(parts) for parts in found]


def whole(lengths: Sequence[int]) -> list[list[Chunk]]:
    """Each sequence alone, in one step."""
    return [[(row, 0, length)] for row, length in enumerate(lengths)]


def together(lengths: Sequence[int], chunk: int) -> list[list[Chunk]]:
    """All sequences in every step, last row first, at most `chunk` tokens of each, the longer ones for longer."""
    return [
        [(row, begin, min(begin + chunk, n)) for row, n in reversed(list(enumerate(lengths))) if begin < n]
        for begin in range(0, max(lengths), chunk)
    ]
