"""Which recorded ops are joined, and which must not be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from octavo import _native
from octavo.backends import cpu
from octavo.backends.cpu import CpuBackend, _Recorder
from octavo.backends.fusion import fuse, last_uses
from octavo.backends.protocol import GroupedWeight, KVShape, RopeParams, StepBatch
from octavo.models.decoder import DecoderWeights, LayerWeights, LinearWeights, MLPWeights, NormWeights, decoder
from octavo.models.spec import DecoderSpec, LayerSpec

ROPE = RopeParams(inv_freq=(1.0, 0.1), max_position=64)


class Shape:
    """A weight, as far as recording looks at it."""

    def __init__(self, n: int, k: int, *, has_halves: bool = True) -> None:
        self.n, self.k, self.has_halves = n, k, has_halves


WIDE, TABLE = Shape(8, 8), Shape(11, 8)
NORM = [1.0] * 8


def methods(build: Callable[[Any], Any]) -> list[str]:
    recorder = _Recorder()
    result = build(recorder)
    return [call.method for call in fuse(recorder.calls, result)]


def test_a_decoder_has_four_products_a_layer_and_no_op_of_rows_beside_them() -> None:
    recorder = _Recorder()
    layer = LayerWeights(
        attention_norm=NormWeights(NORM),
        qkv=LinearWeights(Shape(16, 8)),
        output=LinearWeights(Shape(8, 8)),
        mlp_norm=NormWeights(NORM),
        mlp=MLPWeights(up=LinearWeights(Shape(24, 8)), down=LinearWeights(Shape(8, 12))),
    )
    spec = DecoderSpec(
        family="llama",
        tied_embeddings=True,
        layers=(LayerSpec(rope=ROPE),) * 2,
        vocab_size=11,
        hidden_size=8,
        intermediate_size=12,
        num_heads=2,
        num_kv_heads=1,
        head_dim=4,
        max_position=64,
        norm_eps=1e-5,
    )
    result = decoder(spec, DecoderWeights(embedding=TABLE, layers=[layer] * 2, norm=NormWeights(NORM), head=TABLE))(
        recorder
    )
    calls = fuse(recorder.calls, result)
    assert [call.method for call in calls] == [
        "embedding",
        *("rms_norm_linear", "rotary_write_kv", "attention", "linear_add", "rms_norm_linear_gated", "linear_add"),
        *("rms_norm_linear", "rotary_write_kv", "attention"),
        *("select", "select", "linear_add", "rms_norm_linear_gated", "linear_add"),  # the last layer's
        "rms_norm_linear",
    ]
    assert last_uses(calls, result)[result.root] == len(calls)


def read_twice(ops: Any) -> Any:
    x = ops.rms_norm(ops.embedding(TABLE), NORM, 1e-5)
    return ops.add(ops.linear(x, WIDE), x)


def read_as_the_result(ops: Any) -> Any:
    x = ops.rms_norm(ops.embedding(TABLE), NORM, 1e-5)
    ops.linear(x, WIDE)
    return x


def only_a_part_is_multiplied(ops: Any) -> Any:
    x = ops.rms_norm(ops.embedding(TABLE), NORM, 1e-5)
    return ops.linear(ops.split(x, (4, 4))[1], Shape(8, 4))


def worked_on_in_between(ops: Any) -> Any:
    x = ops.rms_norm(ops.embedding(TABLE), NORM, 1e-5)
    return ops.linear(ops.rotary(x, ROPE, 4), WIDE)


def not_neighbours(ops: Any) -> Any:
    x = ops.embedding(TABLE)
    normed = ops.rms_norm(x, NORM, 1e-5)
    other = ops.linear(x, WIDE)
    return ops.gated(ops.linear(normed, WIDE), other, "silu")


@pytest.mark.parametrize(
    "build", [read_twice, read_as_the_result, only_a_part_is_multiplied, worked_on_in_between, not_neighbours]
)
def test_a_norm_that_others_need_stays(build: Callable[[Any], Any]) -> None:
    assert "rms_norm" in methods(build)


def sum_is_multiplied(ops: Any) -> Any:
    x = ops.embedding(TABLE)
    return ops.add(x, ops.linear(x, WIDE))


def sum_is_normalised(ops: Any) -> Any:
    x = ops.embedding(TABLE)
    return ops.add(x, ops.linear(ops.rms_norm(x, NORM, 1e-5), WIDE))


def product_is_added_twice(ops: Any) -> Any:
    x, y = ops.embedding(TABLE), ops.embedding(TABLE)
    product = ops.linear(y, WIDE)
    return ops.add(ops.add(x, product), product)


def product_is_added_to_itself(ops: Any) -> Any:
    product = ops.linear(ops.embedding(TABLE), WIDE)
    return ops.add(product, product)


def a_part_is_added(ops: Any) -> Any:
    x, y = ops.embedding(TABLE), ops.embedding(TABLE)
    product = ops.linear(y, Shape(16, 8))
    return ops.add(x, ops.split(product, (8, 8))[0])


@pytest.mark.parametrize(
    "build",
    [sum_is_multiplied, sum_is_normalised, product_is_added_twice, product_is_added_to_itself, a_part_is_added],
)
def test_a_sum_that_could_disturb_its_product_stays(build: Callable[[Any], Any]) -> None:
    assert "add" in methods(build)


def test_a_sum_into_a_part_is_joined() -> None:
    def build(ops: Any) -> Any:
        whole = ops.linear(ops.embedding(TABLE), Shape(16, 8))
        left, right = ops.split(whole, (8, 8))
        y = ops.linear(ops.embedding(TABLE), WIDE)
        return ops.gated(left, ops.add(right, y), "silu")

    assert methods(build) == ["embedding", "linear", "embedding", "linear_add", "gated"]


def gate_of(weight: Any, take: Callable[[Any, Any], tuple[Any, Any]], *, again: bool = False) -> list[str]:
    def build(ops: Any) -> Any:
        product = ops.linear(ops.embedding(TABLE), weight)
        gated = ops.gated(*take(*ops.split(product, (weight.n // 2, weight.n // 2))), "silu")
        return ops.gated(gated, ops.split(product, (8, 8))[0], "silu") if again else gated

    return methods(build)


def test_a_gate_joins_the_product_whose_halves_it_takes() -> None:
    assert gate_of(Shape(16, 8), lambda gate, up: (gate, up)) == ["embedding", "linear_gated"]
    for apart in (
        gate_of(Shape(16, 8), lambda gate, up: (up, gate)),
        gate_of(Shape(16, 8), lambda gate, up: (gate, gate)),
        gate_of(Shape(16, 8, has_halves=False), lambda gate, up: (gate, up)),
    ):
        assert apart == ["embedding", "linear", "gated"]
    read_by_another = gate_of(Shape(16, 8), lambda gate, up: (gate, up), again=True)
    assert read_by_another == ["embedding", "linear", "gated", "gated"]


@pytest.mark.parametrize("kind", ["silu", "gelu", "gelu_tanh", "relu"])
def test_layer_norms_activations_and_every_gate_join_their_products(kind: str) -> None:
    def build(ops: Any) -> Any:
        x = ops.embedding(TABLE)
        x = ops.add(x, ops.linear(ops.layer_norm(x, NORM, None, 1e-5), WIDE))
        up = ops.linear(ops.layer_norm(x, NORM, NORM, 1e-5), WIDE)
        x = ops.add(x, ops.linear(ops.activation(up, kind), WIDE))
        halves = ops.split(ops.linear(ops.layer_norm(x, NORM, NORM, 1e-5), Shape(16, 8)), (8, 8))
        x = ops.add(x, ops.linear(ops.gated(*halves, kind), WIDE))
        return ops.linear(ops.gated(x, ops.embedding(TABLE), kind), WIDE)

    assert methods(build) == [
        "embedding",
        *("layer_norm_linear", "add"),  # the sum is normalised here
        *("layer_norm_linear", "activation_linear_add"),
        *("layer_norm_linear_gated", "linear_add"),
        *("embedding", "gated_linear"),
    ]


def activated_is_read_twice(ops: Any) -> Any:
    x = ops.activation(ops.linear(ops.embedding(TABLE), WIDE), "relu")
    return ops.add(ops.linear(x, WIDE), x)


def activated_is_the_result(ops: Any) -> Any:
    x = ops.activation(ops.linear(ops.embedding(TABLE), WIDE), "relu")
    ops.linear(x, WIDE)
    return x


def a_part_of_the_activated_is_multiplied(ops: Any) -> Any:
    x = ops.activation(ops.linear(ops.embedding(TABLE), WIDE), "relu")
    return ops.linear(ops.split(x, (4, 4))[1], Shape(8, 4))


def a_part_is_activated(ops: Any) -> Any:
    _, right = ops.split(ops.linear(ops.embedding(TABLE), WIDE), (4, 4))
    ops.activation(right, "relu")
    return ops.linear(ops.embedding(TABLE), WIDE)


@pytest.mark.parametrize(
    "build",
    [activated_is_read_twice, activated_is_the_result, a_part_of_the_activated_is_multiplied, a_part_is_activated],
)
def test_an_activation_that_others_need_stays(build: Callable[[Any], Any]) -> None:
    assert "activation" in methods(build)


def test_norms_of_heads_stay_apart() -> None:
    def build(ops: Any) -> Any:
        return ops.linear(ops.rms_norm(ops.embedding(TABLE), [1.0] * 4, 1e-5), WIDE)

    assert methods(build) == ["embedding", "rms_norm", "linear"]


def test_only_the_key_that_was_rotated_with_its_query_is_written_with_them() -> None:
    other_rope = RopeParams(inv_freq=(1.0, 0.1), max_position=63)

    def build(key_rope: RopeParams, write: Callable[[Any, Any, Any], tuple[Any, Any]]) -> Callable[[Any], Any]:
        def record(ops: Any) -> Any:
            query, key, value = ops.split(ops.embedding(Shape(11, 16)), (8, 4, 4))
            query, key = ops.rotary(query, ROPE, 4), ops.rotary(key, key_rope, 4)
            ops.write_kv(0, *write(query, key, value))
            return ops.paged_attention(0, query, scale=0.5)

        return record

    assert methods(build(ROPE, lambda q, k, v: (k, v)))[1:-1] == ["rotary_write_kv"]
    assert methods(build(ROPE, lambda q, k, v: (v, k)))[1:-1] == ["rotary", "rotary", "write_kv"]
    assert methods(build(other_rope, lambda q, k, v: (k, v)))[1:-1] == ["rotary", "rotary", "write_kv"]


# --- what the native program refuses ----------------------------------------------------------------------------------


def compile_calls(build: Callable[[Any, Any], Any]) -> None:
    """Compile what `build(ops, matrix)` records for weights of one back end."""
    backend = CpuBackend("float32", num_threads=1, isa="portable")
    shape = KVShape(
        layer_groups=(0,),
        num_kv_heads=1,
        head_dim=4,
        dtype="float32",
        block_size=16,
        num_blocks=2,
        max_num_seqs=1,
        max_blocks_per_seq=1,
    )

    def matrix(n: int, k: int) -> Any:
        return backend.matrix([np.ones((n, k), np.float32)])

    backend.compile(lambda ops: build(ops, matrix), backend.allocate_kv(shape), 4)


def test_joined_ops_that_do_not_fit_are_refused() -> None:
    def sum_of_two_widths(ops: Any, matrix: Any) -> Any:
        x, y = ops.embedding(matrix(5, 6)), ops.embedding(matrix(5, 8))
        return ops.add(x, ops.linear(y, matrix(8, 8)))

    def norm_of_another_width(ops: Any, matrix: Any) -> Any:
        return ops.linear(ops.rms_norm(ops.embedding(matrix(5, 8)), [1.0] * 7, 1e-5), matrix(8, 8))

    def layer_norm_of_another_width(ops: Any, matrix: Any) -> Any:
        return ops.linear(ops.layer_norm(ops.embedding(matrix(5, 8)), [1.0] * 4, None, 1e-5), matrix(8, 8))

    def bias_of_another_width(ops: Any, matrix: Any) -> Any:
        return ops.linear(ops.layer_norm(ops.embedding(matrix(5, 8)), [1.0] * 8, [1.0] * 4, 1e-5), matrix(8, 8))

    def activation_of_no_such_kind(ops: Any, matrix: Any) -> Any:
        return ops.linear(ops.activation(ops.embedding(matrix(5, 8)), "swish"), matrix(8, 8))

    def gate_of_another_width(ops: Any, matrix: Any) -> Any:
        gated = ops.gated(ops.embedding(matrix(5, 8)), ops.embedding(matrix(5, 4)), "silu")
        return ops.linear(gated, matrix(8, 8))

    def no_norm(ops: Any, matrix: Any) -> Any:
        return ops.linear(ops.rms_norm(ops.embedding(matrix(5, 8)), [], 1e-5), matrix(8, 8))

    def sum_of_all_and_selected(ops: Any, matrix: Any) -> Any:
        x, y = ops.embedding(matrix(5, 8)), ops.select(ops.embedding(matrix(5, 8)))
        return ops.add(x, ops.linear(y, matrix(8, 8)))

    native = _native.Program("portable", one_block_kv(CpuBackend("float32", isa="portable")), _native.ThreadPool(1), 4)
    slots = [native.add_slot(width, selected) for width, selected in ((8, False), (16, False), (16, True))]
    weight = CpuBackend("float32", isa="portable").matrix([np.ones((40, 8), np.float32)])
    with pytest.raises(ValueError, match=r"^weight: must have two halves of rows that both begin at panels"):
        native.linear_gated("silu", (slots[0], 0, 8), weight, [], slots[1])
    weight = CpuBackend("float32", isa="portable").matrix([np.ones((32, 8), np.float32)])
    with pytest.raises(ValueError, match=r"^out: must have a row for every token"):
        native.linear_gated("silu", (slots[0], 0, 8), weight, [], slots[2])
    with pytest.raises(ValueError, match=r"^out: must be another slot than the inputs"):
        native.linear_gated("silu", (slots[1], 0, 8), weight, [], slots[1])

    for build, match in [
        (sum_of_two_widths, r"^y: must be as wide as x"),
        (norm_of_another_width, r"^weight: x is 8 wide, which is not a multiple of its length 7"),
        (layer_norm_of_another_width, r"^weight: must be as wide as x"),
        (bias_of_another_width, r"^norm_bias: must be as long as the weight"),
        (activation_of_no_such_kind, r"^kind: swish; must be silu, gelu, gelu_tanh or relu"),
        (gate_of_another_width, r"^up: must be as wide"),
        (no_norm, r"^weight: x is 8 wide"),
        (sum_of_all_and_selected, r"^into: must have the selected rows only"),
    ]:
        with pytest.raises(ValueError, match=match):
            compile_calls(build)


def one_block_kv(backend: CpuBackend) -> Any:
    """KV memory whose only row has its one block."""
    kv = backend.allocate_kv(
        KVShape(
            layer_groups=(0,),
            num_kv_heads=1,
            head_dim=4,
            dtype="float32",
            block_size=16,
            num_blocks=2,
            max_num_seqs=1,
            max_blocks_per_seq=1,
        )
    )
    kv.block_tables[:] = 1
    return kv


def test_a_program_is_profiled_by_op(monkeypatch: pytest.MonkeyPatch) -> None:
    """Joined ops have names of their own; a program that is not profiled says nothing."""
    backend = CpuBackend("float32", num_threads=1)
    kv = one_block_kv(backend)
    table, weight = (backend.matrix([np.ones((n, 8), np.float32)]) for n in (5, 8))

    def build(ops: Any) -> Any:
        x = ops.embedding(table)
        x = ops.add(x, ops.linear(ops.rms_norm(ops.embedding(table), NORM, 1e-5), weight))
        return ops.rms_norm(x, NORM, 1e-5)

    batch = StepBatch(
        token_ids=np.zeros(1, np.int32),
        positions=np.zeros(1, np.int32),
        batch_rows=np.zeros(1, np.int32),
        query_start_loc=np.array([0, 1], np.int32),
        seq_lens=np.ones(1, np.int32),
        logits_tokens=np.zeros(1, np.int32),
    )
    program = backend.compile(build, kv, 4)
    expected = program.run(batch).copy()
    assert program._native.profile() == []
    for cpu_time in (False, True):
        program._native.start_profile(cpu_time)
        assert np.array_equal(program.run(batch), expected)
        names = [name for name, _ in program._native.profile()]
        assert names == ["embedding", "embedding", "rms_norm_linear_add 8x8", "rms_norm"]
        assert all(seconds >= 0 for _, seconds in program._native.profile())
    program._native.stop_profile()
    assert program._native.profile() == []
    monkeypatch.setattr(cpu, "fuse", lambda calls, result: calls)
    apart = backend.compile(build, kv, 4)
    assert np.array_equal(apart.run(batch), expected)


@pytest.mark.parametrize("source", ["rms_norm", "layer_norm", "gated", "activation", "plain"])
def test_weights_in_pieces_are_joined_piece_by_piece(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows kept in several formats are a product each, side by side, stored or added; the bits are those of the ops."""
    backend = CpuBackend("float32", num_threads=2)
    rng = np.random.default_rng(0)
    grouped = GroupedWeight(
        codes=rng.integers(0, 256, (5, 8)).astype(np.uint8),
        scales=np.full((5, 1), 0.0625, np.float32),
        minimums=None,
        bits=8,
        group=32,
        zero=128,
        half_scales=True,
    )
    weight = backend.matrix([rng.standard_normal((3, 8)).astype(np.float32), grouped])
    table, square = (backend.matrix([rng.standard_normal((n, 8)).astype(np.float32)]) for n in (11, 8))
    assert len(weight.pieces) == 2
    kv = one_block_kv(backend)

    def taken(ops: Any, x: Any) -> Any:
        makers: dict[str, Callable[[], Any]] = {
            "plain": lambda: x,
            "rms_norm": lambda: ops.rms_norm(x, NORM, 1e-5),
            "layer_norm": lambda: ops.layer_norm(x, NORM, NORM, 1e-5),
            "gated": lambda: ops.gated(x, x, "gelu"),
            "activation": lambda: ops.activation(ops.linear(x, square), "relu"),
        }
        return makers[source]()

    def build(ops: Any) -> Any:
        x, y = ops.embedding(table), ops.embedding(table)
        x = ops.add(x, ops.linear(taken(ops, y), weight, NORM))
        return ops.linear(taken(ops, x), weight, NORM)

    batch = StepBatch(
        token_ids=np.arange(4, dtype=np.int32),
        positions=np.arange(4, dtype=np.int32),
        batch_rows=np.zeros(1, np.int32),
        query_start_loc=np.array([0, 4], np.int32),
        seq_lens=np.array([4], np.int32),
        logits_tokens=np.arange(4, dtype=np.int32),
    )
    joined = backend.compile(build, kv, 4).run(batch).copy()
    monkeypatch.setattr(cpu, "fuse", lambda calls, result: calls)
    apart = backend.compile(build, kv, 4).run(batch)
    assert np.isfinite(joined).all() and np.array_equal(joined, apart)
