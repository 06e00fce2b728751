from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from golden.family_cases import MODELS
from octavo.backends.bfloat16 import to_bits, to_float32
from octavo.backends.reference import ReferenceBackend
from octavo.errors import ModelFileError, UnsupportedModelError
from octavo.models.families import decoder_spec
from octavo.models.layout import expected_shapes
from octavo.models.loader import load, weight_size
from octavo.weights.huggingface import HFCheckpoint
from support.quantized import CASES
from support.tiny_models import TinyLlama, tensors, write_tiny_llama

MODEL = TinyLlama(bias=True, tied=False)


def loaded(folder: Path, dtype: str = "float32") -> Any:
    checkpoint = HFCheckpoint(folder)
    try:
        return load(checkpoint, decoder_spec(checkpoint.config), ReferenceBackend(dtype), dtype)
    finally:
        checkpoint.close()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_tensor_arrives_in_its_place(tmp_path: Path, dtype: str) -> None:
    w = tensors(MODEL)
    found = loaded(write_tiny_llama(tmp_path, MODEL), dtype)

    def kept(*names: str) -> Any:
        stacked = np.concatenate([w[name] for name in names])
        return to_float32(to_bits(stacked)) if dtype == "bfloat16" and stacked.ndim == 2 else stacked

    assert np.array_equal(found.embedding, kept("model.embed_tokens.weight"))
    assert np.array_equal(found.head, kept("lm_head.weight"))
    assert np.array_equal(found.norm.weight, kept("model.norm.weight"))
    for index, layer in enumerate(found.layers):
        prefix = f"model.layers.{index}."
        for kind in ("weight", "bias"):
            attention, mlp = f"{prefix}self_attn.{{}}_proj.{kind}", f"{prefix}mlp.{{}}_proj.{kind}"
            assert np.array_equal(getattr(layer.qkv, kind), kept(*(attention.format(name) for name in "qkv")))
            assert np.array_equal(getattr(layer.output, kind), kept(attention.format("o")))
            assert np.array_equal(getattr(layer.mlp.up, kind), kept(mlp.format("gate"), mlp.format("up")))
            assert np.array_equal(getattr(layer.mlp.down, kind), kept(mlp.format("down")))
        assert np.array_equal(layer.attention_norm.weight, kept(f"{prefix}input_layernorm.weight"))
        assert np.array_equal(layer.mlp_norm.weight, kept(f"{prefix}post_attention_layernorm.weight"))


def test_tied_embeddings_are_one_weight(tmp_path: Path) -> None:
    found = loaded(write_tiny_llama(tmp_path, TinyLlama()))
    assert found.head is found.embedding
    assert found.layers[0].qkv.bias is found.layers[0].mlp.down.bias is None


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("changes", "tensor", "shapes"),
    [
        ({"vocab_size": 97}, "model.embed_tokens.weight", ("(96, 48)", "(97, 48)")),
        ({"intermediate_size": 81}, "model.layers.0.mlp.gate_proj.weight", ("(80, 48)", "(81, 48)")),
        ({"num_key_value_heads": 4}, "model.layers.0.self_attn.k_proj.weight", ("(24, 48)", "(48, 48)")),
    ],
)
def test_a_shape_that_does_not_fit_the_config_is_named(
    tmp_path: Path, changes: dict[str, Any], tensor: str, shapes: tuple[str, str]
) -> None:
    change_config(write_tiny_llama(tmp_path, MODEL), **changes)
    with pytest.raises(ModelFileError, match="must be") as error:
        loaded(tmp_path)
    assert all(part in str(error.value) for part in (tensor, *shapes))


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    change_config(write_tiny_llama(tmp_path, MODEL), num_hidden_layers=3)
    with pytest.raises(ModelFileError, match=r"model\.layers\.2\."):
        loaded(tmp_path)


def test_nothing_is_read_before_all_shapes_are_checked(tmp_path: Path) -> None:
    class NothingRead(HFCheckpoint):
        def read(self, *_: Any, **__: Any) -> Any:
            raise AssertionError("read before the shapes were known to be right")

    change_config(write_tiny_llama(tmp_path, MODEL), num_hidden_layers=3)
    checkpoint = NothingRead(tmp_path)
    with pytest.raises(ModelFileError):
        load(checkpoint, decoder_spec(checkpoint.config), ReferenceBackend("float32"), "float32")
    checkpoint.close()


def test_expected_shapes_are_what_a_model_has() -> None:
    assert {name: w.shape for name, w in tensors(MODEL).items()} == expected_shapes(decoder_spec(MODEL.config()))


def test_tensors_of_other_models_are_told_of(tmp_path: Path) -> None:
    """A model of images and text is served for its text; that it sees no images is said."""
    folder = write_tiny_llama(tmp_path, MODELS["gemma3-images"])
    held = load_file(folder / "model.safetensors")
    patches = {f"vision_tower.{i}.weight": np.zeros((2, 2), np.float32) for i in range(3)}
    save_file({**held, **patches}, folder / "model.safetensors")
    checkpoint = HFCheckpoint(folder)
    spec, backend = decoder_spec(checkpoint.config), ReferenceBackend("float32")
    found = load(checkpoint, spec, backend, "float32").unused
    assert found == weight_size(checkpoint, spec, backend, "float32").unused
    assert len(found) == 1 and found[0].startswith("3 tensors of what is not text")
    checkpoint.close()


@pytest.mark.parametrize("value", [0.0, -0.0, 0.25, float("nan")])
def test_a_bias_of_zeros_beside_a_quantised_matrix_is_left_out(tmp_path: Path, value: float) -> None:
    """AutoGPTQ wrote a bias for every module; one of a module that has none is zeros, or the model is another."""
    folder = write_tiny_llama(tmp_path, TinyLlama(intermediate_size=64))
    down = "model.layers.1.mlp.down_proj"
    held = load_file(folder / "model.safetensors")
    rows, columns = held.pop(f"{down}.weight").shape
    made = CASES["gptq g32"].write(np.random.default_rng(0), rows, columns)
    packed = {f"{down}.{ending}": values for ending, (_, values) in made.tensors.items()}
    save_file(held | packed | {f"{down}.bias": np.full(rows, value, np.float16)}, folder / "model.safetensors")
    change_config(folder, quantization_config=CASES["gptq g32"].config)
    if value == 0:
        layer = loaded(folder).layers[1]
        assert layer.mlp.down.bias is None
        assert np.array_equal(layer.mlp.down.weight, made.values)
    else:
        with pytest.raises(UnsupportedModelError, match=r"down_proj\.bias' has no place"):
            loaded(folder)
