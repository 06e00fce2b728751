"""The attention and write_kv kernels of every path this CPU can run, against plain float64 and against themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from paged import POISON, PagedSequences, quantise

from octavo import _native

PATHS = _native.supported_paths()
DTYPES = ("bfloat16", "float32", "int8")

# (KV heads, query heads per KV head, head_dim, block size)
SHAPES = [
    (1, 1, 8, 1),
    (2, 3, 16, 2),
    (3, 3, 64, 16),
    (2, 4, 64, 32),
    (1, 3, 80, 8),
    (2, 1, 128, 64),
    (1, 4, 128, 256),
    (2, 8, 20, 4),
    (1, 2, 7, 16),
    (1, 13, 17, 2),
    (1, 1, 1, 16),
]
CONTEXTS = (1, 2, 7, 15, 16, 17, 63, 64, 65, 127, 128, 129, 255, 256, 257, 300, 513)


def check(s: PagedSequences, actual: np.ndarray, expected: np.ndarray) -> None:
    error = np.abs(actual - expected)
    close = error <= 4e-6 + 2e-5 * np.abs(expected)
    if not s.dots_values():
        assert close.all()
    else:
        # A numerator within float32's error of a border between two bfloat16 may fall on either side of it.
        assert close.mean() > 0.8 or close.size < 4096
        assert (error <= 2**-8 * max(1, np.abs(expected).max())).all()


@pytest.mark.parametrize("isa", PATHS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_decode_matches_float64(isa: str, dtype: str, shape: tuple[int, int, int, int]) -> None:
    heads, group, head_dim, block_size = shape
    s = PagedSequences(CONTEXTS, isa=isa, dtype=dtype, num_kv_heads=heads, head_dim=head_dim, block_size=block_size)
    queries = [s.queries(row, heads * group)[-1:] for row in range(len(CONTEXTS))]
    outputs = s.attend(list(enumerate(queries)), heads * group)
    for row, (query, output) in enumerate(zip(queries, outputs, strict=True)):
        check(s, output, s.expect(row, query, heads * group))


@pytest.mark.parametrize("isa", PATHS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("window", [0, 20])
def test_chunks_match_float64(isa: str, dtype: str, shape: tuple[int, int, int, int], window: int) -> None:
    heads, group, head_dim, block_size = shape
    lengths, new = (300, 40, 130, 7, 129, 1, 140), (300, 33, 64, 7, 1, 1, 2)
    s = PagedSequences(lengths, isa=isa, dtype=dtype, num_kv_heads=heads, head_dim=head_dim, block_size=block_size)
    chunks = [(row, s.queries(row, heads * group)[-count:]) for row, count in enumerate(new)]
    for (row, query), output in zip(chunks, s.attend(chunks, heads * group, window=window), strict=True):
        check(s, output, s.expect(row, query, heads * group, window=window))


@pytest.mark.parametrize("isa", PATHS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [*SHAPES, (1, 4, 256, 16), (2, 2, 255, 32), (1, 2, 300, 16)], ids=str)
@pytest.mark.parametrize("window", [0, 20])
def test_capped_scores_match_float64(isa: str, dtype: str, shape: tuple[int, int, int, int], window: int) -> None:
    """With queries so large that the cap bites; the same queries without a cap give something else."""
    heads, group, head_dim, block_size = shape
    lengths, new = (300, 40, 130, 7, 129, 1), (300, 33, 64, 7, 1, 1)
    s = PagedSequences(lengths, isa=isa, dtype=dtype, num_kv_heads=heads, head_dim=head_dim, block_size=block_size)
    chunks = [(row, 4 * s.queries(row, heads * group)[-count:]) for row, count in enumerate(new)]
    plain = s.attend(chunks, heads * group, window=window)
    capped = s.attend(chunks, heads * group, window=window, soft_cap=2.5)
    for (row, query), output in zip(chunks, capped, strict=True):
        check(s, output, s.expect(row, query, heads * group, window=window, soft_cap=2.5))
    assert np.abs(plain[0] - capped[0]).max() > 0.1


EQUALITY_SHAPES = [(3, 3, 64, 16), (2, 1, 80, 32), (1, 4, 7, 8), (2, 7, 16, 1)]
LENGTHS = (700, 129, 1, 260)


@pytest.fixture(scope="module")
def two_threads() -> Any:
    return _native.ThreadPool(2)


@pytest.mark.parametrize("isa", PATHS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", EQUALITY_SHAPES, ids=str)
@pytest.mark.parametrize(("window", "soft_cap"), [(0, 0.0), (100, 0.0), (100, 2.0)])
def test_bits_depend_on_nothing_but_the_row(
    isa: str, dtype: str, shape: tuple[int, int, int, int], window: int, soft_cap: float, two_threads: Any
) -> None:
    heads, group, head_dim, block_size = shape
    num_heads = heads * group
    common: dict[str, Any] = {"isa": isa, "dtype": dtype, "num_kv_heads": heads, "head_dim": head_dim}
    s = PagedSequences(LENGTHS, block_size=block_size, **common)
    queries = [s.queries(row, num_heads) for row in range(len(LENGTHS))]
    whole = [s.attend([(row, q)], num_heads, window=window, soft_cap=soft_cap)[0] for row, q in enumerate(queries)]
    assert all(np.isfinite(x).all() for x in whole)

    batch = [(3, queries[3][-64:]), (0, queries[0][-1:]), (2, queries[2]), (1, queries[1][-7:])]
    for pool in (None, two_threads):
        for (row, q), output in zip(
            batch, s.attend(batch, num_heads, window=window, soft_cap=soft_cap, pool=pool), strict=True
        ):
            assert np.array_equal(output, whole[row][-len(q) :])

    # Chunks of a long prompt, each seeing the tokens up to its end only.
    single = [(end - 1, end) for end in (1, 2, 127, 128, 129, 384, 385, 699, 700)]
    sevens = [(begin, min(begin + 7, 700)) for begin in range(0, 700, 7)]
    for begin, end in [*single, *sevens, (0, 300), (300, 600), (600, 700)]:
        chunk = [(0, queries[0][begin:end])]
        (output,) = s.attend(chunk, num_heads, window=window, soft_cap=soft_cap, seq_lens=[end], pool=two_threads)
        assert np.array_equal(output, whole[0][begin:end])

    for other_size in {1, 2, 16, 256} - {block_size}:
        other = PagedSequences(LENGTHS, block_size=other_size, block_seed=9, **common)
        outputs = other.attend(list(enumerate(queries)), num_heads, window=window, soft_cap=soft_cap, pool=two_threads)
        assert all(map(np.array_equal, outputs, whole))


@pytest.mark.parametrize("isa", PATHS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("block_size", [1, 16, 256])
def test_tokens_out_of_sight_contribute_nothing(isa: str, dtype: str, block_size: int) -> None:
    """Not even as 0 * infinity: later tokens of the chunk and tokens below the window hold infinities and NaNs. Both
    borders part tokens that the bf16 dot instruction takes together."""
    heads, group, window = 2, 3, 50
    clean = PagedSequences([300], isa=isa, dtype=dtype, block_size=block_size)
    dirty = PagedSequences([300], isa=isa, dtype=dtype, block_size=block_size)
    for x in (dirty.keys[0], dirty.values[0]):
        x[:101:2], x[1:101:2], x[249::2], x[250::2] = np.inf, np.nan, np.nan, -np.inf
    dirty.write(0, 0, 101)
    dirty.write(0, 249, 300)
    queries = clean.queries(0, heads * group)[150:]
    (expected,) = clean.attend([(0, queries)], heads * group, window=window)
    (actual,) = dirty.attend([(0, queries)], heads * group, window=window)
    assert np.isnan(actual[99:]).all()
    assert np.array_equal(actual[:99], expected[:99])


@pytest.mark.parametrize("isa", PATHS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("soft_cap", [0.0, 3.0])
def test_a_nan_reaches_the_output_of_its_row_only(isa: str, dtype: str, soft_cap: float) -> None:
    s = PagedSequences([200, 200], isa=isa, dtype=dtype)
    queries = s.queries(0, 4)
    (expected,) = s.attend([(0, queries)], 4, soft_cap=soft_cap)
    queries[7, 3 * 16 + 5] = np.nan
    (actual,) = s.attend([(0, queries)], 4, soft_cap=soft_cap)
    broken = np.zeros(expected.shape, bool)
    broken[7, 3 * 16 :] = True
    assert np.isnan(actual[broken]).all()
    assert np.array_equal(actual[~broken], expected[~broken])


@pytest.mark.parametrize("isa", PATHS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_entries_below_the_window_are_not_read(isa: str, dtype: str) -> None:
    window = 40
    s = PagedSequences([301], isa=isa, dtype=dtype, block_size=8)
    queries = s.queries(0, 6)[-5:]
    (expected,) = s.attend([(0, queries)], 6, window=window)
    s.kv.block_tables[s.group, 0, : (301 - 5 - window + 1) // 8] = 0  # as the core leaves them: the null block
    (actual,) = s.attend([(0, queries)], 6, window=window)
    assert np.array_equal(actual, expected)


@pytest.mark.parametrize("isa", PATHS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_extreme_scores(isa: str, dtype: str) -> None:
    """Softmax neither overflows nor loses the winner, however far apart the scores are."""
    s = PagedSequences([400], isa=isa, dtype=dtype)
    queries = s.queries(0, 4)[-3:] * np.float32(3000)
    (output,) = s.attend([(0, queries)], 4)
    np.testing.assert_allclose(output, s.expect(0, queries, 4), rtol=2e-3, atol=4e-3 if s.dots_values() else 1e-3)
    (mean,) = s.attend([(0, queries * 0)], 4)
    np.testing.assert_allclose(mean, s.expect(0, queries * 0, 4), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("isa", PATHS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("head_dim", "block_size"), [(16, 16), (7, 4), (64, 32), (1, 1)])
def test_write_kv_touches_its_slots_only(isa: str, dtype: str, head_dim: int, block_size: int) -> None:
    """Written twice, over two contents of the memory: what differs afterwards was left alone."""
    s = PagedSequences([100, 37], isa=isa, dtype=dtype, head_dim=head_dim, block_size=block_size)
    num_blocks = s.kv.block_tables.max() + 1
    first = [np.frombuffer(s.kv.export_block(block), np.uint8) for block in range(num_blocks)]
    s.kv.erase_blocks(range(num_blocks))
    for row, length in enumerate(s.lengths):
        s.write(row, 0, length)
    second = [np.frombuffer(s.kv.export_block(block), np.uint8) for block in range(num_blocks)]
    slot_bytes = 2 * s.num_kv_heads * {"bfloat16": 2 * head_dim, "float32": 4 * head_dim, "int8": head_dim + 4}[dtype]
    filled = dict.fromkeys(range(num_blocks), 0)
    for row, length in enumerate(s.lengths):
        for column in range(-(-length // block_size)):
            filled[int(s.kv.block_tables[s.group, row, column])] = min(block_size, length - column * block_size)
    for block, tokens in filled.items():
        alone = first[block] != second[block]
        assert (first[block][alone] == POISON).all() and not second[block][alone].any()
        assert (~alone).sum() == tokens * slot_bytes


@pytest.mark.parametrize("dtype", DTYPES)
def test_write_kv_gives_the_same_bytes_on_every_path(dtype: str, two_threads: Any) -> None:
    kinds = [PagedSequences([130], isa=isa, dtype=dtype, head_dim=9, pool=two_threads) for isa in PATHS]
    memories = [[s.kv.export_block(i) for i in range(9)] for s in kinds]
    assert all(memory == memories[0] for memory in memories)


HARD_VECTORS = {
    "halves": [127, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 126.5, -126.5],
    "negative largest": [-254, 1, 2, 3, -1, -2, -3, 253, -253],
    "zeros": [0, -0.0],
    "subnormal": [1.4e-42, -1.4e-42, 7e-43, 2e-44],
    "scale rounded to 0": [4e-44, -4e-44],
    "subnormal scale of one digit": [2.5e-43, -2.5e-43, 1e-43],
    "largest": [3.4e38, -3.4e38, 1e38],
    "one of two sizes": [1e30, 1e-30, -1e-30],
}


@pytest.mark.parametrize("isa", PATHS)
@pytest.mark.parametrize(("head_dim", "block_size"), [(9, 16), (33, 4), (64, 32), (80, 1)])
def test_int8_is_stored_value_by_value(isa: str, head_dim: int, block_size: int) -> None:
    """Read from the bytes of the blocks, as csrc/kernels/kv_layout.h lays them out."""
    length = 40
    s = PagedSequences([length], isa=isa, dtype="int8", num_kv_heads=2, head_dim=head_dim, block_size=block_size)
    for i, vector in enumerate(HARD_VECTORS.values()):
        for x, token in ((s.keys[0], 2 * i), (s.values[0], 2 * i + 1)):
            x[token, head_dim:] = np.resize(np.array(vector, np.float32), head_dim)
    s.write(0, 0, length)
    expected = [quantise(x.reshape(length, 2, head_dim)) for x in (s.keys[0], s.values[0])]
    for token in range(length):
        block = s.kv.export_block(s.kv.block_tables[s.group, 0, token // block_size])
        offset = token % block_size
        for head in range(2):
            record = 2 * block_size * (head_dim + 4)
            data = np.frombuffer(block[head * record : (head + 1) * record], np.uint8)
            scales = data[: 8 * block_size].view(np.float32).reshape(2, block_size)[:, offset]
            keys, values = data[8 * block_size :].view(np.int8).reshape(2, -1)
            strip = min(block_size, 16)
            strip_keys = keys.reshape(-1, strip * head_dim)[offset // strip]
            pairs = strip_keys[: head_dim // 2 * 2 * strip].reshape(-1, strip, 2)[:, offset % strip].ravel()
            tail = strip_keys[len(pairs) * strip :][offset % strip :][:1]
            found = [np.concatenate([pairs, tail]), values.reshape(block_size, head_dim)[offset]]
            for (stored, scale), x, found_scale in zip(expected, found, scales, strict=True):
                assert found_scale == scale[token, head, 0]
                assert np.array_equal(x, stored[token, head])


@pytest.mark.parametrize("isa", PATHS)
@pytest.mark.parametrize("head_dim", [516, 517, 2048, 4097])
def test_int8_sums_stay_within_32_bits(isa: str, head_dim: int) -> None:
    """Every product as large as can be, and of one sign."""
    s = PagedSequences([140], isa=isa, dtype="int8", head_dim=head_dim, num_kv_heads=1)
    s.keys[0][:] = np.linspace(-1, 1, 140, dtype=np.float32)[:, None]
    s.write(0, 0, 140)
    queries = np.full((3, head_dim), 0.1, np.float32)
    (output,) = s.attend([(0, queries)], 1)
    # The portable path's sums of thousands of terms are float32.
    np.testing.assert_allclose(output, s.expect(0, queries, 1), rtol=2e-5, atol=3e-5)


@pytest.mark.parametrize("isa", PATHS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 8, 16])
def test_what_is_not_finite_stays_so_in_int8(isa: str, bad: float, place: int) -> None:
    """In the key or the value of one token and head: whoever sees it is NaN, nobody else."""
    for which in ("keys", "values"):
        s = PagedSequences([200], isa=isa, dtype="int8", head_dim=17)
        queries = s.queries(0, 4)
        (expected,) = s.attend([(0, queries)], 4)
        getattr(s, which)[0][150, 17 + place] = bad  # KV head 1, which query heads 2 and 3 read
        s.write(0, 150, 151)
        (actual,) = s.attend([(0, queries)], 4)
        assert np.isnan(actual[150:, 2 * 17 :]).all()
        assert np.array_equal(actual[:150], expected[:150])
        assert np.array_equal(actual[:, : 2 * 17], expected[:, : 2 * 17])


def test_bad_arguments_are_refused() -> None:
    s = PagedSequences([20], isa="portable")
    q = s.queries(0, 4)
    with pytest.raises(ValueError, match="multiple of num_kv_heads"):
        s.attend([(0, s.queries(0, 3))], 3)
    with pytest.raises(ValueError, match="at least the new tokens"):
        s.attend([(0, q)], 4, seq_lens=[19])
    with pytest.raises(ValueError, match="fit the block table"):
        s.attend([(0, q)], 4, seq_lens=[1000])
    with pytest.raises(ValueError, match="no kernel path 'sse9'"):
        s.attend([(0, q)], 4, isa="sse9")
    s.kv.block_tables[s.group, 0, 0] = 99
    with pytest.raises(ValueError, match="blocks of the pool"):
        s.attend([(0, q)], 4)
