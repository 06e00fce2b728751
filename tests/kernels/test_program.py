"""Recorded programs: memory shared by values never mixes them up, and bad steps are refused before anything happens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from dense import PATHS
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo import _native
from octavo.backends import cpu
from octavo.backends.cpu import CpuBackend
from octavo.backends.protocol import KVShape, RopeParams, StepBatch
from octavo.backends.reference import ReferenceBackend

VOCAB, MAX_POSITION, MAX_NUM_TOKENS, HEAD_DIM, NUM_KV_HEADS = 11, 29, 16, 4, 2
SHAPE = KVShape(
    layer_groups=(0, 1, 0),
    num_kv_heads=NUM_KV_HEADS,
    head_dim=HEAD_DIM,
    dtype="float32",
    block_size=4,
    num_blocks=30,
    max_num_seqs=5,
    max_blocks_per_seq=8,
)
NUM_POSITIONS = MAX_POSITION + 2
"""Learned ones."""
ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "relu")
ROPE = RopeParams(inv_freq=(1.0, 0.1), scale=1.0, max_position=MAX_POSITION)
PARTIAL_ROPE = RopeParams(inv_freq=(0.7,), scale=0.5, max_position=MAX_POSITION + 1)


def int32s(*values: int) -> Any:
    return np.array(values, np.int32)


def make_batch() -> StepBatch:
    """Three sequences: one new with 5 tokens, one decoding at its eleventh, one in the middle of a prefill."""
    return StepBatch(
        token_ids=int32s(3, 1, 4, 1, 5, 9, 2, 6, 5),
        positions=int32s(0, 1, 2, 3, 4, 10, 6, 7, 8),
        batch_rows=int32s(4, 0, 2),
        query_start_loc=int32s(0, 5, 6, 9),
        seq_lens=int32s(5, 11, 9),
        logits_tokens=int32s(1, 4, 5, 8),
    )


def fill_tables(kv: Any) -> None:
    ids = np.random.default_rng(0).permutation(np.arange(1, SHAPE.num_blocks))
    kv.block_tables[:] = 0
    for place, block in zip(
        [(0, 4), (0, 0), (0, 2), (1, 4), (1, 0), (1, 2)], ids.reshape(-1)[:24].reshape(6, 4), strict=True
    ):
        kv.block_tables[place][:4] = block


# --- values in slots -------------------------------------------------------------------------------------------------


class Handle(msgspec.Struct):
    """A tensor while a graph is drawn: columns of a value. Dead once an op that may work in place has taken it."""

    root: int
    offset: int
    width: int
    selected: bool
    alive: bool = True

    def fits(self, other: Handle) -> bool:
        return self.width == other.width and self.selected == other.selected

    def straddles(self, other: Handle) -> bool:
        return self.overlaps(other) and self.offset != other.offset

    def overlaps(self, other: Handle) -> bool:
        return (
            self.root == other.root
            and self.offset < other.offset + other.width
            and other.offset < self.offset + self.width
        )


Instruction = tuple[Any, ...]


@st.composite
def graphs(draw: Callable[..., Any]) -> list[Instruction]:
    """Instructions for `interpret`, every use of a tensor allowed by the protocol. The last tensor is the result."""
    handles: list[Handle] = []
    program: list[Instruction] = []

    def new(width: int, selected: bool) -> None:
        handles.append(Handle(len(handles), 0, width, selected))

    def pick(condition: Callable[[Handle], bool]) -> int | None:
        fitting = [i for i, h in enumerate(handles) if h.alive and condition(h)]
        return draw(st.sampled_from(fitting)) if fitting else None

    def consume(index: int) -> None:
        """The result of an op in place: the same columns, of which no other handle may be used any more."""
        taken = handles[index]
        for h in handles:
            h.alive = h.alive and not h.overlaps(taken)
        handles.append(Handle(taken.root, taken.offset, taken.width, taken.selected))

    program.append(("embedding", draw(st.sampled_from([8, 16]))))
    new(program[0][1], False)
    kinds = (
        "embedding",
        "rms_norm",
        "linear",
        "split",
        "split",
        "rotary",
        "write_kv",
        "attention",
        "gated",
        "add",
        "select",
        "add_positions",
        "layer_norm",
        "head_norm",
        "activation",
        "scale",
        "soft_cap",
        "sigmoid_gate",
    )
    for kind in draw(st.lists(st.sampled_from(kinds), min_size=3, max_size=25)):
        if kind == "embedding":
            program.append((kind, draw(st.sampled_from([8, 16]))))
            new(program[-1][1], False)
        elif kind in ("rms_norm", "linear") and (x := pick(lambda h: True)) is not None:
            width = handles[x].width if kind == "rms_norm" else draw(st.sampled_from([8, 16, 24, 24]))
            program.append((kind, x, width))
            new(width, handles[x].selected)
        elif kind == "split" and (x := pick(lambda h: h.width > 8)) is not None:
            program.append((kind, x, (8, handles[x].width - 8)))
            source = handles[x]
            handles.append(Handle(source.root, source.offset, 8, source.selected))
            handles.append(Handle(source.root, source.offset + 8, source.width - 8, source.selected))
        elif kind == "rotary" and (x := pick(lambda h: not h.selected)) is not None:
            program.append((kind, x, draw(st.booleans())))
            consume(x)
        elif kind == "write_kv":
            key, value = (pick(lambda h: not h.selected and h.width == NUM_KV_HEADS * HEAD_DIM) for _ in range(2))
            if key is not None and value is not None:
                program.append((kind, draw(st.integers(0, 2)), key, value))
        elif kind == "attention" and (x := pick(lambda h: not h.selected)) is not None:
            program.append((kind, draw(st.integers(0, 2)), x, draw(st.sampled_from([None, 3]))))
            new(handles[x].width, False)
        elif kind == "layer_norm" and (x := pick(lambda h: True)) is not None:
            program.append((kind, x, draw(st.booleans())))
            new(handles[x].width, handles[x].selected)
        elif kind == "head_norm" and (x := pick(lambda h: True)) is not None:
            program.append((kind, x))
            new(handles[x].width, handles[x].selected)
        elif kind == "add_positions" and (x := pick(lambda h: not h.selected)) is not None:
            program.append((kind, x, draw(st.integers(0, 2))))
            consume(x)
        elif kind in ("activation", "scale", "soft_cap") and (x := pick(lambda h: True)) is not None:
            program.append((kind, x, draw(st.sampled_from(ACTIVATIONS))))
            consume(x)
        elif kind == "sigmoid_gate" and (x := pick(lambda h: True)) is not None:
            like = handles[x]
            y = pick(lambda h, like=like: h.selected == like.selected and not h.overlaps(like))
            if y is not None:
                program.append((kind, x, y))
                consume(x)
        elif kind in ("gated", "add") and (x := pick(lambda h: True)) is not None:
            like = handles[x]
            in_place = kind == "add"
            y = pick(lambda h, like=like, in_place=in_place: h.fits(like) and not (in_place and h.straddles(like)))
            program.append((kind, x, y, *([] if in_place else [draw(st.sampled_from(ACTIVATIONS))])))
            if in_place:
                consume(x)
            else:
                new(like.width, like.selected)
        elif kind == "select" and (x := pick(lambda h: not h.selected)) is not None:
            program.append((kind, x))
            new(handles[x].width, True)
    result = pick(lambda h: True)
    return [*program, ("result", result)]


def width_of(tensor: Any) -> int:
    return int(tensor.shape[1] if isinstance(tensor, np.ndarray) else tensor.width)


def interpret(program: list[Instruction], backend: Any) -> Callable[[Any], Any]:
    """The build function of a graph. Keys and queries are normalised, so that scores stay small."""
    rng = np.random.default_rng(7)
    matrices = {
        (n, k): backend.matrix([(rng.standard_normal((n, k)) / k**0.5).astype(np.float32)])
        for n in (8, 16, 24, VOCAB, NUM_POSITIONS)
        for k in (8, 16, 24)
    }
    vectors = {n: backend.vector(rng.uniform(0.5, 1.5, n).astype(np.float32)) for n in (8, 16, 24)}

    def build(ops: Any) -> Any:
        tensors: list[Any] = []
        for kind, *arguments in program:
            match kind, arguments:
                case "embedding", [width]:
                    tensors.append(ops.embedding(matrices[VOCAB, width]))
                case "rms_norm", [x, width]:
                    tensors.append(ops.rms_norm(tensors[x], vectors[width], 1e-3))
                case "linear", [x, width]:
                    weight = matrices[width, width_of(tensors[x])]
                    tensors.append(ops.linear(tensors[x], weight, vectors[width] if width == 16 else None))
                case "split", [x, widths]:
                    tensors.extend(ops.split(tensors[x], widths))
                case "rotary", [x, partial]:
                    tensors.append(ops.rotary(tensors[x], PARTIAL_ROPE if partial else ROPE, HEAD_DIM))
                case "write_kv", [layer, key, value]:
                    keys = ops.rms_norm(tensors[key], vectors[NUM_KV_HEADS * HEAD_DIM], 1e-3)
                    ops.write_kv(layer, keys, tensors[value])
                case "attention", [layer, x, window]:
                    query = ops.rms_norm(tensors[x], vectors[width_of(tensors[x])], 1e-3)
                    cap = 1.5 if layer == 1 else None
                    tensors.append(ops.paged_attention(layer, query, scale=0.5, window=window, soft_cap=cap))
                case "gated", [x, y, activation]:
                    tensors.append(ops.gated(tensors[x], tensors[y], activation))
                case "layer_norm", [x, biased]:
                    vector = vectors[width_of(tensors[x])]
                    tensors.append(ops.layer_norm(tensors[x], vector, vector if biased else None, 1e-2))
                case "head_norm", [x]:
                    tensors.append(ops.rms_norm(tensors[x], vectors[8], 1e-3))
                case "add_positions", [x, offset]:
                    tensors.append(ops.add_positions(tensors[x], matrices[NUM_POSITIONS, width_of(tensors[x])], offset))
                case "activation", [x, activation]:
                    tensors.append(ops.activation(tensors[x], activation))
                case "scale", [x, _]:
                    tensors.append(ops.scale(tensors[x], -0.5))
                case "soft_cap", [x, _]:
                    tensors.append(ops.soft_cap(tensors[x], 0.7))
                case "sigmoid_gate", [x, y]:
                    gate = ops.split(tensors[y], (1, width_of(tensors[y]) - 1))[0]
                    tensors.append(ops.sigmoid_gate(tensors[x], gate))
                case "add", [x, y]:
                    tensors.append(ops.add(tensors[x], tensors[y]))
                case "select", [x]:
                    tensors.append(ops.select(tensors[x]))
                case "result", [x]:
                    return tensors[x]
        raise AssertionError("a graph ends with its result")

    return build


def run_graph(program: list[Instruction], backend: Any) -> Any:
    kv = backend.allocate_kv(SHAPE)
    fill_tables(kv)
    compiled = backend.compile(interpret(program, backend), kv, MAX_NUM_TOKENS)
    with np.errstate(all="ignore"):
        return compiled.run(make_batch()).copy()


class ManySlots(cpu._Slots):
    """Gives every value memory of its own."""

    def give_back(self, value: Any, slot: int) -> None:
        pass


@settings(max_examples=300, deadline=None)
@given(graphs())
def test_slots_never_mix_values_up(program: list[Instruction]) -> None:
    """A graph of random ops gives the same bits with shared memory and without, joined and not, and numpy's values."""
    backend = CpuBackend("float32", num_threads=1, isa=PATHS[0])
    shared = run_graph(program, backend)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu, "fuse", lambda calls, result: calls)
        apart = run_graph(program, backend)
        patch.setattr(cpu, "_Slots", ManySlots)
        separate = run_graph(program, backend)
    assert np.array_equal(shared, apart, equal_nan=True)
    assert np.array_equal(shared, separate, equal_nan=True)
    expected = run_graph(program, ReferenceBackend("float32"))
    assert shared.shape == expected.shape
    if np.isfinite(expected).all():
        size = max(1.0, float(np.abs(expected).max()))
        np.testing.assert_allclose(shared, expected, rtol=0, atol=2e-3 * size)


def test_slots_are_shared() -> None:
    """A chain of ops of one width needs two slots, however long it is."""
    backend, widths = CpuBackend("float32", num_threads=1, isa="portable"), []

    class Counting(cpu._Slots):
        def take(self, value: Any) -> int:
            widths.append(super().take(value))
            return widths[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu, "_Slots", Counting)
        run_graph([("embedding", 8), *[("rms_norm", i, 8) for i in range(20)], ("result", 20)], backend)
    assert len(widths) == 21 and set(widths) == {0, 1}


# --- rotary tables ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("isa", PATHS)
def test_rotary_tables_are_exact_at_far_positions(isa: str) -> None:
    """cos and sin of the float64 angle, rounded once, at positions that were and were not met before."""
    frequencies = tuple((500000.0 ** -(np.arange(4) / 4)).tolist())
    rope = RopeParams(inv_freq=frequencies, scale=0.9, max_position=200_000)
    shape = msgspec.structs.replace(SHAPE, layer_groups=(0,), max_blocks_per_seq=50_000, num_blocks=2)
    backend = CpuBackend("float32", num_threads=1, isa=isa)
    kv = backend.allocate_kv(shape)
    table = backend.matrix([np.array([[1.0] * 4 + [0.0] * 4 + [5.0] * 2], np.float32)])
    program = backend.compile(lambda ops: ops.rotary(ops.embedding(table), rope, 10), kv, 1)
    for position in (0, 1, 1023, 1024, 199_999, 5, 70_000):
        batch = StepBatch(
            token_ids=int32s(0),
            positions=int32s(position),
            batch_rows=int32s(0),
            query_start_loc=int32s(0, 1),
            seq_lens=int32s(position + 1),
            logits_tokens=int32s(),
        )
        angle = position * np.array(frequencies)
        expected = np.concatenate([np.cos(angle) * 0.9, np.sin(angle) * 0.9, [5.0, 5.0]]).astype(np.float32)
        assert np.array_equal(program.run(batch)[0], expected)


# --- steps that are refused ------------------------------------------------------------------------------------------


class Decoder:
    """A program with every kind of op, and the KV memory it runs on."""

    def __init__(self, isa: str = PATHS[0], num_threads: int = 2) -> None:
        backend = CpuBackend("float32", num_threads=num_threads, isa=isa)
        rng = np.random.default_rng(1)
        table, qkv, out = (
            backend.matrix([rng.standard_normal(shape).astype(np.float32)]) for shape in [(VOCAB, 8), (24, 8), (8, 8)]
        )

        def build(ops: Any) -> Any:
            x = ops.embedding(table)
            for layer, window in enumerate((None, 6, None)):
                query, key, value = ops.split(ops.linear(x, qkv), (8, 8, 8))
                query, key = ops.rotary(query, ROPE, HEAD_DIM), ops.rotary(key, ROPE, HEAD_DIM)
                ops.write_kv(layer, key, value)
                attended = ops.paged_attention(layer, query, scale=0.5, window=window)
                x = ops.add(x, ops.linear(ops.gated(attended, query, "silu"), out))
            return ops.linear(ops.select(x), table)

        self.kv = backend.allocate_kv(SHAPE)
        fill_tables(self.kv)
        self.program = backend.compile(build, self.kv, MAX_NUM_TOKENS)

    def memory(self) -> list[bytes]:
        return [self.kv.export_block(b) for b in range(SHAPE.num_blocks)]


INT32 = st.integers(-(2**31), 2**31 - 1)


def outside(low: int, high: int) -> st.SearchStrategy[int]:
    """An int32 not in [low, high], near the borders as often as far away."""
    near = [v for v in (low - 1, high + 1) if -(2**31) <= v < 2**31]
    return st.one_of(st.sampled_from(near), INT32.filter(lambda v: not low <= v <= high))


def changed(array: Any, index: int, value: int) -> Any:
    result = array.copy()
    result[index] = value
    return result


GOOD = make_batch()
NUM_TOKENS, NUM_SEQS = len(GOOD.token_ids), len(GOOD.batch_rows)

BadStep = tuple[str, dict[str, Any]]
"""The beginning of the error, and the fields of `make_batch` that are wrong."""


def one_entry(field: str, index: st.SearchStrategy[int], values: Callable[[int], st.SearchStrategy[int]]) -> Any:
    """One wrong entry of a field; the error names field, index and value."""
    return index.flatmap(
        lambda i: values(i).map(
            lambda value: (rf"{field}\[{i}\] = {value}:", {field: changed(getattr(GOOD, field), i, value)})
        )
    )


def no_tokens() -> BadStep:
    empty = dict.fromkeys(("token_ids", "positions", "batch_rows", "seq_lens", "logits_tokens"), int32s())
    return "token_ids: 0 tokens", {**empty, "query_start_loc": int32s(0)}


def too_many_tokens(count: int) -> BadStep:
    fields = {"token_ids": np.zeros(count, np.int32), "positions": np.arange(count, dtype=np.int32)}
    return f"token_ids: {count} tokens", fields


def row_twice(places: tuple[int, int]) -> BadStep:
    first, last = places
    rows = changed(GOOD.batch_rows, last, int(GOOD.batch_rows[first]))
    return rf"batch_rows\[{last}\] = {rows[last]}: named twice", {"batch_rows": rows}


def overshoot(value: int) -> BadStep:
    """A border past the tokens, with a length that would fit."""
    fields = {"query_start_loc": changed(GOOD.query_start_loc, 1, value), "seq_lens": changed(GOOD.seq_lens, 0, value)}
    return rf"query_start_loc\[1\] = {value}: past the last", fields


def wrong_length(field: str, length: int) -> BadStep:
    array = getattr(GOOD, field)
    length += length >= len(array)
    named = "positions: " if field == "positions" else "query_start_loc, seq_lens: "
    return named, {field: np.resize(array, length) if length else int32s()}


tokens, sequences = st.integers(0, NUM_TOKENS - 1), st.integers(0, NUM_SEQS - 1)
BAD_STEPS = {
    "a token outside the vocabulary": one_entry("token_ids", tokens, lambda i: outside(0, VOCAB - 1)),
    "no token": st.builds(no_tokens),
    "too many tokens": st.builds(too_many_tokens, st.integers(MAX_NUM_TOKENS + 1, 100)),
    "a position": one_entry("positions", tokens, lambda i: INT32.filter(lambda v: v != GOOD.positions[i])),
    "no such row": one_entry("batch_rows", sequences, lambda i: outside(0, SHAPE.max_num_seqs - 1)),
    "a row twice": st.builds(row_twice, st.sampled_from([(0, 1), (0, 2), (1, 2)])),
    "another start": outside(0, 0).map(
        lambda v: ("query_start_loc: must run", {"query_start_loc": changed(GOOD.query_start_loc, 0, v)})
    ),
    "another end": outside(NUM_TOKENS, NUM_TOKENS).map(
        lambda v: ("query_start_loc: must run", {"query_start_loc": changed(GOOD.query_start_loc, 3, v)})
    ),
    "a border past the tokens": st.builds(overshoot, st.integers(NUM_TOKENS + 1, 2**31 - 1)),
    "a sequence without tokens": one_entry("query_start_loc", st.just(2), lambda i: st.integers(-(2**31), 5)),
    "too short": one_entry("seq_lens", sequences, lambda i: st.integers(-(2**31), [4, 0, 2][i])),
    "too long": one_entry("seq_lens", sequences, lambda i: st.integers(MAX_POSITION + 1, 2**31 - 1)),
    "rows that do not ascend": one_entry(
        "logits_tokens", st.integers(1, 3), lambda i: st.integers(-(2**31), int(GOOD.logits_tokens[i - 1]))
    ),
    "rows past the tokens": one_entry("logits_tokens", st.just(3), lambda i: st.integers(NUM_TOKENS, 2**31 - 1)),
    "rows before the tokens": one_entry("logits_tokens", st.just(0), lambda i: st.integers(-(2**31), -1)),
    "another length": st.builds(
        wrong_length,
        st.sampled_from(["positions", "seq_lens", "query_start_loc", "batch_rows"]),
        st.integers(0, 20),
    ),
}


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    return Decoder()


@pytest.mark.parametrize("kind", BAD_STEPS)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_bad_steps_are_refused_and_change_nothing(decoder: Decoder, kind: str, data: st.DataObject) -> None:
    match, fields = data.draw(BAD_STEPS[kind])
    result = decoder.program.run(make_batch())
    before, memory = result.copy(), decoder.memory()
    with pytest.raises(ValueError, match=r"^" + match):
        decoder.program.run(msgspec.structs.replace(make_batch(), **fields))
    assert np.array_equal(result, before) and np.isfinite(before).all()
    assert decoder.memory() == memory


@settings(max_examples=60, deadline=None)
@given(
    place=st.sampled_from([(0, 4, 0), (0, 4, 1), (0, 0, 0), (0, 0, 2), (0, 2, 2), (1, 4, 1), (1, 0, 1), (1, 2, 0)]),
    block=outside(1, SHAPE.num_blocks - 1),
)
def test_tables_that_name_no_block_are_refused(decoder: Decoder, place: tuple[int, int, int], block: int) -> None:
    """Also the null block: nothing is read from it or written to it."""
    memory, good = decoder.memory(), decoder.kv.block_tables[place]
    decoder.kv.block_tables[place] = block
    try:
        with pytest.raises(ValueError, match=rf"^block_tables\[{place[2]}\] = {block}: row {place[1]} of group"):
            decoder.program.run(make_batch())
    finally:
        decoder.kv.block_tables[place] = good
    assert decoder.memory() == memory


def test_entries_that_a_step_does_not_touch_may_hold_anything(decoder: Decoder) -> None:
    expected, tables = decoder.program.run(make_batch()).copy(), decoder.kv.block_tables
    before = tables.copy()
    tables[:, 1] = tables[:, 3] = -7  # rows of nobody
    tables[:, :, 4:] = 1 << 30  # past every end
    tables[1, 0, :1] = -1  # token 10 sees tokens 5 to 10 of group 1
    try:
        assert np.array_equal(decoder.program.run(make_batch()), expected)
    finally:
        tables[:] = before


def test_layers_that_only_write_have_their_blocks_checked() -> None:
    backend = CpuBackend("float32", num_threads=1, isa="portable")
    table = backend.matrix([np.ones((VOCAB, 8), np.float32)])

    def build(ops: Any) -> Any:
        x = ops.embedding(table)
        ops.write_kv(1, x, x)
        return x

    kv = backend.allocate_kv(SHAPE)
    fill_tables(kv)
    program = backend.compile(build, kv, MAX_NUM_TOKENS)
    kv.block_tables[0] = -1
    kv.block_tables[1, 0, :2] = -1  # blocks before the new token's
    program.run(make_batch())
    kv.block_tables[1, 0, 2] = SHAPE.num_blocks
    with pytest.raises(ValueError, match=r"^block_tables\[2\] = 30: row 0 of group 1"):
        program.run(make_batch())


@pytest.mark.parametrize("field", StepBatch.__struct_fields__)
def test_other_types_are_refused_not_converted(decoder: Decoder, field: str) -> None:
    for wrong in (np.int64, np.uint32, np.float32):
        with pytest.raises(TypeError):
            decoder.program.run(
                msgspec.structs.replace(make_batch(), **{field: getattr(make_batch(), field).astype(wrong)})
            )


def test_steps_of_every_size_after_one_another(decoder: Decoder) -> None:
    """Results do not depend on larger or smaller steps before: single sequences give the rows of the batch."""
    whole = decoder.program.run(make_batch()).copy()
    batch = make_batch()
    for i, selected in enumerate([[1, 4], [5], [8]]):
        part = slice(batch.query_start_loc[i], batch.query_start_loc[i + 1])
        alone = StepBatch(
            token_ids=batch.token_ids[part],
            positions=batch.positions[part],
            batch_rows=batch.batch_rows[i : i + 1],
            query_start_loc=int32s(0, part.stop - part.start),
            seq_lens=batch.seq_lens[i : i + 1],
            logits_tokens=np.array(selected, np.int32) - part.start,
        )
        rows = [batch.logits_tokens.tolist().index(t) for t in selected]
        assert np.array_equal(decoder.program.run(alone), whole[rows])
    none = msgspec.structs.replace(batch, logits_tokens=int32s())
    assert decoder.program.run(none).shape == (0, VOCAB)
    assert np.array_equal(decoder.program.run(batch), whole)


@pytest.mark.parametrize("isa", PATHS)
def test_threads_do_not_change_bits(isa: str) -> None:
    results = [Decoder(isa, threads).program.run(make_batch()) for threads in (1, 2, 3)]
    assert all(np.array_equal(results[0], r) for r in results)


def test_a_result_outlives_the_program() -> None:
    result = Decoder().program.run(make_batch())
    assert np.array_equal(result, Decoder().program.run(make_batch()))


def test_a_result_may_be_part_of_a_part_of_a_tensor() -> None:
    backend = CpuBackend("float32", num_threads=1, isa="portable")
    rows = np.random.default_rng(2).standard_normal((VOCAB, 8)).astype(np.float32)
    table, kv = backend.matrix([rows]), backend.allocate_kv(SHAPE)
    fill_tables(kv)

    def build(ops: Any) -> Any:
        return ops.split(ops.split(ops.embedding(table), (2, 5, 1))[1], (1, 4))[1]

    result = backend.compile(build, kv, MAX_NUM_TOKENS).run(make_batch())
    assert np.array_equal(result, rows[make_batch().token_ids, 3:7])


# --- programs that are refused ---------------------------------------------------------------------------------------


def recorded() -> tuple[Any, Any, Any]:
    """A native program with slots 0 and 1 of width 8, 2 of width 24, 3 of width 8 for selected rows; its table."""
    kv, pool, arena = CpuBackend("float32", num_threads=1).allocate_kv(SHAPE), _native.ThreadPool(1), _native.Arena()
    program = _native.Program("portable", kv, pool, 4)
    for width, selected in [(8, False), (8, False), (24, False), (8, True)]:
        program.add_slot(width, selected)
    return program, _native.Matrix(arena, VOCAB, 8, _native.WeightFormat.float32(), "portable"), kv


WHOLE, OTHER, WIDE, FEW = (0, 0, 8), (1, 0, 8), (2, 0, 24), (3, 0, 8)


@pytest.mark.parametrize(
    ("field", "method", "arguments"),
    [
        ("x", "rms_norm", ((4, 0, 8), [1.0] * 8, 1e-5, 1)),
        ("x", "rms_norm", ((-1, 0, 8), [1.0] * 8, 1e-5, 1)),
        ("x", "rms_norm", ((0, 1, 8), [1.0] * 8, 1e-5, 1)),
        ("x", "rms_norm", ((0, -1, 8), [1.0] * 8, 1e-5, 1)),
        ("x", "rms_norm", ((0, 0, 0), [], 1e-5, 1)),
        ("x", "rms_norm", ((0, 2**62, 8), [1.0] * 8, 1e-5, 1)),
        ("x", "rms_norm", ((0, 0, 2**62), [1.0] * 8, 1e-5, 1)),
        ("weight", "rms_norm", (WHOLE, [1.0] * 7, 1e-5, 1)),
        ("out", "rms_norm", (WHOLE, [1.0] * 8, 1e-5, 9)),
        ("out", "rms_norm", (WHOLE, [1.0] * 8, 1e-5, 0)),
        ("out", "rms_norm", (WHOLE, [1.0] * 8, 1e-5, 3)),
        ("out", "rms_norm", (WIDE, [1.0] * 24, 1e-5, 1)),
        ("x", "rotary", (FEW, [1.0], 1.0, 4, 10)),
        ("head_dim", "rotary", (WHOLE, [1.0], 1.0, 3, 10)),
        ("head_dim", "rotary", (WHOLE, [1.0], 1.0, 0, 10)),
        ("head_dim", "rotary", (WHOLE, [1.0] * 3, 1.0, 4, 10)),
        ("max_position", "rotary", (WHOLE, [1.0], 1.0, 4, 0)),
        ("layer", "write_kv", (3, WHOLE, OTHER)),
        ("layer", "write_kv", (-1, WHOLE, OTHER)),
        ("key, value", "write_kv", (0, WIDE, OTHER)),
        ("value", "write_kv", (0, WHOLE, FEW)),
        ("layer", "attention", (3, WHOLE, 0.5, 0, 0.0, 1)),
        ("query", "attention", (0, (2, 0, 12), 0.5, 0, 0.0, 1)),
        ("query", "attention", (0, FEW, 0.5, 0, 0.0, 1)),
        ("scale", "attention", (0, WHOLE, float("nan"), 0, 0.0, 1)),
        ("window", "attention", (0, WHOLE, 0.5, -1, 0.0, 1)),
        ("soft_cap", "attention", (0, WHOLE, 0.5, 0, -1.0, 1)),
        ("soft_cap", "attention", (0, WHOLE, 0.5, 0, float("nan"), 1)),
        ("out", "attention", (0, WHOLE, 0.5, 0, 0.0, 0)),
        ("up", "gated", (WHOLE, WIDE, "silu", 1)),
        ("up", "gated", (WHOLE, FEW, "silu", 1)),
        ("out", "gated", (WHOLE, OTHER, "silu", 1)),
        ("kind", "gated", (WHOLE, OTHER, "tanh", 2)),
        ("kind", "activation", (WHOLE, "")),
        ("x", "activation", ((0, 4, 8), "relu")),
        ("weight", "rms_norm", (WIDE, [1.0] * 9, 1e-5, 1)),
        ("weight", "layer_norm", (WHOLE, [1.0] * 4, [], 1e-5, 1)),
        ("norm_bias", "layer_norm", (WHOLE, [1.0] * 8, [1.0] * 4, 1e-5, 1)),
        ("out", "layer_norm", (WHOLE, [1.0] * 8, [], 1e-5, 0)),
        ("x", "scale", ((5, 0, 8), 2.0)),
        ("factor", "scale", (WHOLE, float("inf"))),
        ("x", "soft_cap", ((0, 0, 9), 2.0)),
        ("cap", "soft_cap", (WHOLE, 0.0)),
        ("cap", "soft_cap", (WHOLE, -1.0)),
        ("cap", "soft_cap", (WHOLE, float("nan"))),
        ("gate", "sigmoid_gate", (WHOLE, OTHER)),
        ("gate", "sigmoid_gate", (WHOLE, (3, 0, 1))),
        ("x", "sigmoid_gate", ((0, 0, 9), (1, 0, 1))),
        ("y", "add", (WHOLE, WIDE)),
        ("y", "add", (WHOLE, FEW)),
        ("y", "add", ((2, 0, 8), (2, 4, 8))),
        ("x", "select", (FEW, 3)),
        ("out", "select", (WHOLE, 1)),
        ("output", "set_output", ((7, 0, 8),)),
        ("output", "set_output", ((0, 4, 8),)),
        ("width", "add_slot", (0, False)),
        ("width", "add_slot", (2**31, True)),
    ],
)
def test_ops_that_do_not_fit_name_the_argument(field: str, method: str, arguments: tuple[Any, ...]) -> None:
    program, _, _ = recorded()
    with pytest.raises(ValueError, match=f"^{field}: "):
        getattr(program, method)(*arguments)
    if method != "set_output":
        with pytest.raises(ValueError, match=r"^program: has no output"):
            program.run(*(getattr(make_batch(), name) for name in StepBatch.__struct_fields__))


def test_matrices_that_do_not_fit_are_refused() -> None:
    program, table, _ = recorded()
    with pytest.raises(ValueError, match=r"^out: "):
        program.embedding(table, 2)
    with pytest.raises(ValueError, match=r"^weight: has 8 columns for an x of 24"):
        program.linear(WIDE, table, [], 0)
    with pytest.raises(ValueError, match=r"^out: "):
        program.linear(WHOLE, table, [], 1)
    with pytest.raises(ValueError, match=r"^bias: "):
        program.linear(WHOLE, table, [1.0], 2)
    with pytest.raises(ValueError, match=r"^table: has 8 columns for an x of 24"):
        program.add_positions(WIDE, table, 0)
    with pytest.raises(ValueError, match=r"^x: must have a row for every token"):
        program.add_positions(FEW, table, 0)
    for offset in (-1, VOCAB):
        with pytest.raises(ValueError, match=rf"^offset: must be one of the table's {VOCAB} rows"):
            program.add_positions(WHOLE, table, offset)
    for isa in set(PATHS) - {"portable"}:
        foreign = _native.Matrix(_native.Arena(), VOCAB, 8, _native.WeightFormat.float32(), isa)
        with pytest.raises(ValueError, match=f"^matrix: is packed for {isa}"):
            program.linear(WHOLE, foreign, [], 2)
        with pytest.raises(ValueError, match=f"^matrix: is packed for {isa}"):
            program.embedding(foreign, 0)
        with pytest.raises(ValueError, match=f"^matrix: is packed for {isa}"):
            program.add_positions(WHOLE, foreign, 0)


@pytest.mark.parametrize("count", [0, -1, (1 << 20) + 1])
def test_sizes_of_programs_are_bounded(count: int) -> None:
    kv = CpuBackend("float32", num_threads=1).allocate_kv(SHAPE)
    with pytest.raises(ValueError, match=r"^max_num_tokens: "):
        _native.Program("portable", kv, _native.ThreadPool(1), count)
