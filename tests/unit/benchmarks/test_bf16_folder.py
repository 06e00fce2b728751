"""The model folder that the compared engines share: what a GGUF file holds, under the names that everybody reads."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from octavo.backends.bfloat16 import to_bits
from octavo.weights.gguf_architectures import LLAMA
from octavo.weights.huggingface import HFCheckpoint
from octavo.weights.naming import Naming

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks" / "peers"))
sys.path.insert(0, str(Path(__file__).parents[1] / "weights"))

from bf16_folder import folder_name, write_folder
from gguf_writer import value
from tiny_models import VOCAB, gguf_file, weights


@pytest.mark.parametrize("tied", [True, False])
def test_tensors_come_under_their_hugging_face_names(tied: bool, tmp_path: Path) -> None:
    tensors = weights(tied=tied)
    tokenizer: dict[str, bytes | None] = {
        "tokenizer.ggml.pre": value("string", "gpt-2"),
        "tokenizer.ggml.token_type": value("int32[]", [1] * VOCAB),
        "tokenizer.ggml.merges": value("string[]", []),
    }
    source = gguf_file(tmp_path / "m.gguf", tensors, metadata=tokenizer)
    write_folder(source, tmp_path / "folder")
    checkpoint = HFCheckpoint(tmp_path / "folder")
    assert set(checkpoint.names()) == set(tensors)
    for name, values in tensors.items():
        assert np.array_equal(checkpoint.read(name, "bfloat16"), to_bits(values))


def test_biases_go_with_their_weights() -> None:
    assert folder_name("blk.11.attn_v.bias", LLAMA, Naming()) == "model.layers.11.self_attn.v_proj.bias"
