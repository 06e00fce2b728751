"""In what form matrices reach the back end, by `quantization`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.backends.bfloat16 import to_bits
from octavo.backends.grouped import expand
from octavo.backends.protocol import GroupedWeight
from octavo.backends.reference import ReferenceBackend
from octavo.errors import ModelFileError
from octavo.models.families import decoder_spec
from octavo.models.layout import Stack
from octavo.models.loader import load
from octavo.models.matrices import MatrixReader
from octavo.weights.checkpoint import TensorInfo
from octavo.weights.groups import quantize
from octavo.weights.huggingface import HFCheckpoint
from support.tiny_models import TinyLlama, tensors, write_tiny_llama

MODEL = TinyLlama()
W = tensors(MODEL)
EMBEDDING = "model.embed_tokens.weight"
Q, K, V = (f"model.layers.0.self_attn.{name}_proj.weight" for name in "qkv")
DOWN = "model.layers.1.mlp.down_proj.weight"
STORED = {EMBEDDING: 8, Q: 4, K: 4, V: 8}
"""Bits of the tensors that the checkpoint keeps in groups; all others are floats."""


class PartlyQuantised(HFCheckpoint):
    """As a GGUF file would have it."""

    def info(self, name: str) -> TensorInfo:
        bits = STORED.get(name)
        return TensorInfo(W[name].shape, {4: "q4_1", 8: "q8_0"}[bits]) if bits else super().info(name)

    def read_grouped(self, name: str) -> GroupedWeight | None:
        return quantize(W[name], STORED[name]) if name in STORED else None


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HFCheckpoint]:
    opened = PartlyQuantised(write_tiny_llama(tmp_path_factory.mktemp("model"), MODEL))
    yield opened
    opened.close()


def parts(checkpoint: HFCheckpoint, quantization: str, *names: str, dtype: str = "bfloat16", **how: Any) -> Any:
    reader = MatrixReader(checkpoint, dtype, quantization)
    found = []
    for columns, alike in itertools.groupby(names, lambda name: W[name].shape[1]):
        stacked = tuple(alike)
        rows = tuple(len(W[name]) for name in stacked)
        stack = Stack(names=stacked, rows=rows, columns=columns, is_table=stacked == (EMBEDDING,), **how)
        found += reader.parts(stack)
    return found, dict(reader.elements)


def kinds(found: list[Any]) -> list[Any]:
    return [part.bits if isinstance(part, GroupedWeight) else part.dtype for part in found]


def test_none_expands_all_into_one_array(checkpoint: HFCheckpoint) -> None:
    found, elements = parts(checkpoint, "none", Q, K, V)
    assert kinds(found) == [np.uint16]
    assert np.array_equal(found[0], to_bits(np.concatenate([W[name] for name in (Q, K, V)])))
    assert elements == {"bfloat16": found[0].size}


def test_auto_keeps_what_is_stored(checkpoint: HFCheckpoint) -> None:
    found, elements = parts(checkpoint, "auto", Q, K, V, DOWN)
    assert kinds(found) == [4, 4, 8, np.uint16]
    for part, name in zip(found, (Q, K, V), strict=False):
        assert np.array_equal(expand(part), expand(quantize(W[name], STORED[name])))
    assert elements == {
        "q4_1 (int4 groups of 32)": W[Q].size + W[K].size,
        "q8_0 (int8 groups of 32)": W[V].size,
        "bfloat16": W[DOWN].size,
    }


def test_floats_between_groups_keep_their_place(checkpoint: HFCheckpoint) -> None:
    gate, up = (f"model.layers.0.mlp.{name}_proj.weight" for name in ("gate", "up"))
    found, _ = parts(checkpoint, "auto", Q, gate, up, V, dtype="float32")
    assert kinds(found) == [4, np.float32, 8]
    assert np.array_equal(found[1], np.concatenate([W[gate], W[up]]))


def test_int8_leaves_what_is_smaller_already(checkpoint: HFCheckpoint) -> None:
    found, elements = parts(checkpoint, "int8", Q, V, DOWN)
    assert kinds(found) == [4, 8, 8]
    assert np.array_equal(expand(found[2]), expand(quantize(W[DOWN], 8)))
    assert set(elements) == {"q4_1 (int4 groups of 32)", "q8_0 (int8 groups of 32)", "int8 (groups of 32)"}


def test_int4_rounds_what_is_stored_in_more_bits_but_not_the_tables(checkpoint: HFCheckpoint) -> None:
    found, elements = parts(checkpoint, "int4", Q, V, DOWN)
    assert kinds(found) == [4, 4, 4]
    assert np.array_equal(expand(found[1]), expand(quantize(W[V], 4)))  # `read` gives the floats here
    assert elements["int4 (groups of 32)"] == W[V].size + W[DOWN].size
    (table,), _ = parts(checkpoint, "int4", EMBEDDING)
    assert table.bits == 8 and np.array_equal(expand(table), expand(quantize(W[EMBEDDING], 8)))


@pytest.mark.parametrize("quantization", ["auto", "none", "int8"])
def test_rows_in_another_order_keep_their_groups(checkpoint: HFCheckpoint, quantization: str) -> None:
    order = np.random.default_rng(0).permutation(len(W[V]))
    (found,), _ = parts(checkpoint, quantization, V, dtype="float32", order=order)
    assert isinstance(found, GroupedWeight) is (quantization != "none")
    expected = W[V] if quantization == "none" else expand(quantize(W[V], 8))
    assert np.array_equal(expand(found) if isinstance(found, GroupedWeight) else found, expected[order])


@pytest.mark.parametrize("quantization", ["auto", "int8"])
def test_what_is_stored_transposed_is_turned(checkpoint: HFCheckpoint, quantization: str) -> None:
    """Its stored groups run along the other axis: it is read as floats, and rounded again only if asked."""
    reader = MatrixReader(checkpoint, "float32", quantization)
    rows, columns = reversed(W[Q].shape)
    (found,) = reader.parts(Stack(names=(Q,), rows=(rows,), columns=columns, transposed=True))
    turned = np.ascontiguousarray(W[Q].T)
    if quantization == "auto":
        assert np.array_equal(found, turned)
    else:
        assert np.array_equal(expand(found), expand(quantize(turned, 8)))


def test_a_weight_that_is_not_finite_is_named(tmp_path: Path) -> None:
    class Broken(HFCheckpoint):
        def read(self, name: str, dtype: str, *, out: Any = None) -> Any:
            values = super().read(name, dtype, out=out)
            if name == DOWN:
                values[3, 5] = np.inf
            return values

    checkpoint = Broken(write_tiny_llama(tmp_path, MODEL))
    with pytest.raises(ModelFileError, match=r"layers\.1\.mlp\.down_proj.*not finite"):
        load(checkpoint, decoder_spec(checkpoint.config), ReferenceBackend("float32"), "float32", "int8")
    checkpoint.close()


@pytest.mark.parametrize(
    ("quantization", "formats"),
    [
        ("none", ("float32",)),
        ("int8", ("int8 (groups of 32) expanded to float32", "q8_0 (int8 groups of 32) expanded to float32",
                  "q4_1 (int4 groups of 32) expanded to float32")),
    ],
)  # fmt: skip
def test_says_how_the_matrices_are_kept(checkpoint: HFCheckpoint, quantization: str, formats: tuple[str, ...]) -> None:
    spec = decoder_spec(checkpoint.config)
    weights = load(checkpoint, spec, ReferenceBackend("float32"), "float32", quantization)
    assert weights.formats == formats
    assert weights.num_bytes == 4 * spec.num_parameters
