"""The automatic block size: where its two costs pull it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.worker.block_size import CHOICES, choose_block_size


def chosen(num_tokens: int, bytes_per_token: int = 256, kernel_path: str = "avx512") -> int:
    found = choose_block_size(num_tokens=num_tokens, bytes_per_token=bytes_per_token, kernel_path=kernel_path)
    return found.num_tokens


def test_the_default_model_and_workload() -> None:
    found = choose_block_size(num_tokens=512, bytes_per_token=256, kernel_path="avx512")
    assert found.num_tokens == 32
    assert found.reason == (
        "32 tokens: with 512 tokens per sequence of 256 bytes per layer and KV head, half-empty last blocks cost 3.1% "
        "of KV memory and changes of blocks 4.3% of attention's time (8: 0.8% + 167.1%; 16: 1.6% + 8.5%; "
        "64: 6.2% + 2.1%)"
    )


@pytest.mark.parametrize(("num_tokens", "size"), [(1, 8), (100, 16), (512, 32), (4096, 64), (1 << 24, 64)])
def test_longer_sequences_take_larger_blocks(num_tokens: int, size: int) -> None:
    assert chosen(num_tokens) == size


@pytest.mark.parametrize(("bytes_per_token", "size"), [(32, 64), (256, 32), (1024, 16), (1 << 20, 16)])
def test_larger_heads_take_smaller_blocks(bytes_per_token: int, size: int) -> None:
    """A change of blocks weighs less beside more bytes."""
    assert chosen(512, bytes_per_token) == size


def test_blocks_shorter_than_a_vector_of_the_kernels_are_not_worth_it() -> None:
    assert [chosen(40, 1024, path) for path in ("avx512", "avx2", "portable", "numpy")] == [16, 8, 8, 8]


@given(st.integers(1, 1 << 24), st.integers(1, 1 << 16), st.sampled_from(["avx512", "avx2", "portable", "torch 2"]))
def test_more_tokens_or_fewer_bytes_never_make_it_smaller(num_tokens: int, num_bytes: int, path: str) -> None:
    size = chosen(num_tokens, num_bytes, path)
    assert size in CHOICES
    assert chosen(2 * num_tokens, num_bytes, path) >= size
    assert chosen(num_tokens, 2 * num_bytes, path) <= size
