"""Experts that transformers saved in one tensor for a layer, under the names of experts saved one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_models as tiny
from limits import refused

from octavo.errors import ModelFileError
from octavo.weights.huggingface import HFCheckpoint

EXPERTS, INNER = 5, 24
NAMES = {
    "mixtral": ("num_local_experts", "block_sparse_moe", ("w1", "w3", "w2")),
    "qwen2_moe": ("num_experts", "mlp", ("gate_proj", "up_proj", "down_proj")),
}


def tensors(family: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The tensors of a layer's experts in the file, and what is wanted of them."""
    _, module, (gate, up, down) = NAMES[family]
    rng = np.random.default_rng(0)
    at = "model.layers.1."
    router = rng.standard_normal((EXPERTS, tiny.HIDDEN)).astype(np.float32)
    both = rng.standard_normal((EXPERTS, 2 * INNER, tiny.HIDDEN)).astype(np.float32)
    rest = rng.standard_normal((EXPERTS, tiny.HIDDEN, INNER)).astype(np.float32)
    stored = {
        f"{at}mlp.gate.weight": router,
        f"{at}mlp.experts.gate_up_proj": both,
        f"{at}mlp.experts.down_proj": rest,
    }
    wanted = {f"{at}{module}.gate.weight": router}
    for e in range(EXPERTS):
        expert = f"{at}{module}.experts.{e}."
        wanted[f"{expert}{gate}.weight"], wanted[f"{expert}{up}.weight"] = both[e, :INNER], both[e, INNER:]
        wanted[f"{expert}{down}.weight"] = rest[e]
    return stored, wanted


@pytest.mark.parametrize("family", NAMES)
@pytest.mark.parametrize("shards", [1, 3])
def test_each_expert_is_a_tensor(tmp_path: Path, family: str, shards: int) -> None:
    stored, wanted = tensors(family)
    dense = {name: w for name, w in tiny.weights().items() if "layers.1.mlp." not in name}
    settings = {"model_type": family, NAMES[family][0]: EXPERTS}
    checkpoint = HFCheckpoint(tiny.hf_folder(tmp_path / "m", dense | stored, shards=shards, **settings))
    assert set(checkpoint.names()) == {*dense, *wanted}
    for name, values in (dense | wanted).items():
        assert checkpoint.info(name).shape == values.shape
        np.testing.assert_array_equal(checkpoint.read(name, "float32"), values)
    assert checkpoint.fingerprint() == checkpoint.fingerprint()


def test_another_number_of_experts_is_left_alone(tmp_path: Path) -> None:
    """The loader names such a tensor as a stranger."""
    stored, _ = tensors("qwen2_moe")
    folder = tiny.hf_folder(tmp_path / "m", tiny.weights() | stored, model_type="qwen2_moe", num_experts=EXPERTS + 1)
    assert "model.layers.1.mlp.experts.gate_up_proj" in set(HFCheckpoint(folder).names())


def test_a_tensor_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    stored, _ = tensors("qwen2_moe")
    stored["model.layers.1.mlp.experts.3.up_proj.weight"] = np.zeros((INNER, tiny.HIDDEN), np.float32)
    folder = tiny.hf_folder(tmp_path / "m", tiny.weights() | stored, model_type="qwen2_moe", num_experts=EXPERTS)
    message = "tensor 'model.layers.1.mlp.experts.3.up_proj.weight': is a part of"
    refused(lambda: HFCheckpoint(folder), message, kind=ModelFileError)


def test_rows_that_do_not_halve_are_refused(tmp_path: Path) -> None:
    stored, _ = tensors("qwen2_moe")
    stored["model.layers.1.mlp.experts.gate_up_proj"] = np.zeros((EXPERTS, 3, tiny.HIDDEN), np.float32)
    folder = tiny.hf_folder(tmp_path / "m", tiny.weights() | stored, model_type="qwen2_moe", num_experts=EXPERTS)
    refused(lambda: HFCheckpoint(folder), "has shape (5, 3, 64); must hold 10 matrices", kind=ModelFileError)
