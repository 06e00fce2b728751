"""Every family in every format that its checkpoints have: the decoder's weights are the numbers that the format stands
for, and answers are those of a folder of float32 with these numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from golden.format_cases import BLOCKS, FLOATS, PACKED, ROWS, Found, columns, measure, write
from octavo.backends.cpu import CpuBackend
from octavo.backends.protocol import Float32Array, GroupedWeight, WeightPart
from octavo.models.families import decoder_spec
from octavo.models.layout import RowOrder
from octavo.models.loader import load, weight_size
from octavo.models.matrices import MatrixReader
from octavo.weights.gguf_architectures import ARCHITECTURES
from octavo.weights.shards import Shards
from octavo.weights.sources import open_checkpoint, resolve

SERVED_TOLERANCE = 0.15
"""Median error of a position's logits where activations are rounded to 8 bits. A matrix in disorder gives about 1."""
QUICK = (
    ("llama", "Q4_K_M"),
    ("mistral", "Q5_K_M"),
    ("qwen2", "Q2_K"),
    ("qwen3", "NVFP4"),
    ("gemma", "Q5_0"),
    ("gemma2", "F16"),
    ("gemma3", "float16"),
    ("gemma3-images", "GPTQ act-order"),
    ("phi3", "IQ4_XS"),
    ("phi3", "GPTQ"),
    ("smollm3", "Q8_0"),
    ("granite", "BF16"),
    ("olmo2", "FP8 rows"),
    ("olmo3", "Q5_1"),
    ("starcoder2", "int8"),
    ("stablelm", "Q4_1"),
    ("opt", "AWQ"),
    ("gpt2", "GPTQ"),
    ("gpt-neox", "int4"),
    ("gpt-neox", "Q8_0"),
    ("falcon-7b", "FP8 blocks"),
    ("falcon-40b", "Q4_0"),
    ("falcon-40b", "AWQ"),
    ("mixtral", "MXFP4"),
    ("mixtral", "Q4_0"),
    ("qwen2-moe", "IQ4_NL"),
    ("qwen2-moe", "int8"),
    ("qwen3-moe", "F32"),
    ("olmoe", "bfloat16"),
    ("olmoe", "FP8 blocks"),
)
"""Each family and each format once, and what is fused, reordered or an expert's once more."""
REST = [(row, column) for row in ROWS for column in columns(row) if (row, column) not in QUICK]


def check(found: Found) -> None:
    assert found.same_weights
    assert found.exact == 0
    assert found.served < SERVED_TOLERANCE
    assert found.agreement > 0.7
    assert found.distinct > 1, "a model that says one thing tells nothing"


@pytest.mark.parametrize(("row", "column"), QUICK)
def test_some_families_in_some_formats(tmp_path: Path, row: str, column: str) -> None:
    check(measure(*write(tmp_path / "model", row, column)))


@pytest.mark.full
@pytest.mark.parametrize(("row", "column"), REST)
def test_every_family_in_every_format(tmp_path: Path, row: str, column: str) -> None:
    check(measure(*write(tmp_path / "model", row, column)))


SIZED = ("gpt2", "GPTQ"), ("gpt-neox", "AWQ"), ("mixtral", "int8"), ("qwen2-moe", "IQ4_NL"), ("phi3", "FP8 rows")


@pytest.mark.parametrize(("row", "column"), SIZED)
@pytest.mark.parametrize("quantization", ["auto", "none", "int8"])
def test_sizes_are_known_beforehand(tmp_path: Path, row: str, column: str, quantization: str) -> None:
    checkpoint = open_checkpoint(resolve(str(write(tmp_path / "model", row, column)[0])))
    spec, backend = decoder_spec(checkpoint.config), CpuBackend("bfloat16", num_threads=1)
    size = weight_size(checkpoint, spec, backend, "bfloat16", quantization)
    weights = load(checkpoint, spec, backend, "bfloat16", quantization)
    assert (weights.num_bytes, weights.formats) == (size.num_bytes, size.formats)
    checkpoint.close()


def test_the_quick_ones_leave_out_no_family_and_no_format() -> None:
    assert {row for row, _ in QUICK} == ROWS.keys()
    assert {column for _, column in QUICK} == {*FLOATS, *BLOCKS, *PACKED}


def _scales_stay_where_rows_move(monkeypatch: pytest.MonkeyPatch) -> None:
    def ordered(self: MatrixReader, part: WeightPart, order: RowOrder) -> WeightPart:
        return (
            msgspec.structs.replace(part, codes=part.codes[order]) if isinstance(part, GroupedWeight) else part[order]
        )

    monkeypatch.setattr(MatrixReader, "_ordered", ordered)


def _an_expert_takes_anothers_scales(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Shards.float32

    def float32(self: Shards, name: str) -> Float32Array:
        return right(self, name.replace("experts.1.", "experts.0."))

    monkeypatch.setattr(Shards, "float32", float32)


def _named(architecture: str, **changes: object) -> Callable[[pytest.MonkeyPatch], None]:
    """The file's tensors are taken for others."""

    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        known = ARCHITECTURES[architecture]
        naming = msgspec.structs.replace(known.naming, **changes)
        monkeypatch.setitem(ARCHITECTURES, architecture, msgspec.structs.replace(known, naming=naming))

    return plant


FAULTS: dict[str, tuple[str, str, Callable[[pytest.MonkeyPatch], None]]] = {
    "scales stay where rows move": ("gpt-neox", "GPTQ", _scales_stay_where_rows_move),
    "an expert takes another's scales": ("mixtral", "int8", _an_expert_takes_anothers_scales),
    "gate and up change places": ("qwen2", "Q4_0", _named("qwen2", up=("ffn_up", "ffn_gate"))),
    "norms get their 1 twice": ("gemma", "Q8_0", _named("gemma", offset_in_norms=False)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    row, column, plant = FAULTS[fault]
    stored, plain = write(tmp_path / "model", row, column)
    check(measure(stored, plain))
    plant(monkeypatch)
    found = measure(stored, plain)
    assert not found.same_weights
    assert found.served > SERVED_TOLERANCE
