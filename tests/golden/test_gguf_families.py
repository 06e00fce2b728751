"""A GGUF file of a tiny model and its Hugging Face folder are the same decoder with the same weights, number by number.
So what the goldens say of the folder holds for the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import msgspec
import pytest

from golden import compare
from golden.gguf_cases import GGUF_MODELS, PAIRS
from octavo.backends.cpu import CpuBackend
from octavo.backends.reference import ReferenceBackend
from octavo.models.decoder import DecoderWeights
from octavo.models.families import decoder_spec
from octavo.models.loader import load, weight_size
from octavo.models.spec import DecoderSpec
from octavo.weights.checkpoint import Checkpoint
from octavo.weights.gguf_architectures import ARCHITECTURES
from octavo.weights.gguf_checkpoint import GGUFCheckpoint
from octavo.weights.huggingface import HFCheckpoint
from support.gguf_models import write_gguf
from support.tiny_models import write_tiny_llama


def read(checkpoint: Checkpoint, context: int | None) -> tuple[DecoderSpec, DecoderWeights]:
    spec = decoder_spec(checkpoint.config, context)
    return spec, load(checkpoint, spec, ReferenceBackend("float32"), "float32")


def same_numbers(found: Any, wanted: Any, at: str) -> None:
    """GGUF holds numbers as float32."""
    if isinstance(wanted, dict):
        assert found.keys() == wanted.keys(), at
        for key, value in wanted.items():
            same_numbers(found[key], value, f"{at}.{key}")
    elif isinstance(wanted, list | tuple):
        assert len(found) == len(wanted), at
        for i, value in enumerate(wanted):
            same_numbers(found[i], value, f"{at}[{i}]")
    elif isinstance(wanted, float):
        assert found == pytest.approx(wanted, rel=3e-7), at
    else:
        assert found == wanted, at


@pytest.mark.parametrize(("arch", "name"), PAIRS)
def test_the_same_decoder(tmp_path: Path, arch: str, name: str) -> None:
    model = GGUF_MODELS[arch][name]
    folder = HFCheckpoint(write_tiny_llama(tmp_path / "folder", model))
    file = GGUFCheckpoint(write_gguf(tmp_path / "model.gguf", model, arch))
    (wanted, its_weights), (found, weights) = read(folder, model.context), read(file, model.context)
    plain = [msgspec.to_builtins(msgspec.structs.replace(spec, naming=wanted.naming)) for spec in (found, wanted)]
    same_numbers(*plain, at=name)
    compare.same_weights(weights, its_weights, at=name)


@pytest.mark.parametrize("quantization", ["none", "int8", "int4"])
@pytest.mark.parametrize(("arch", "name"), PAIRS)
def test_sizes_are_known_beforehand(tmp_path: Path, arch: str, name: str, quantization: str) -> None:
    file = GGUFCheckpoint(write_gguf(tmp_path / "model.gguf", GGUF_MODELS[arch][name], arch))
    spec, backend = decoder_spec(file.config), CpuBackend("float32", num_threads=1)
    size = weight_size(file, spec, backend, "float32", quantization)
    weights = load(file, spec, backend, "float32", quantization)
    assert (weights.num_bytes, weights.formats) == (size.num_bytes, size.formats)
    if quantization == "none":
        assert weights.num_bytes >= 4 * spec.num_parameters


def test_every_architecture_has_a_tiny_model() -> None:
    assert GGUF_MODELS.keys() == ARCHITECTURES.keys()


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_names_are_in_the_tables_of_the_gguf_package(tmp_path: Path, arch: str) -> None:
    """Of every tensor that a model of the architecture is loaded from."""
    number = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == arch)
    known = {gguf.TENSOR_NAMES[tensor].format(bid="N") for tensor in gguf.MODEL_TENSORS[number]}
    for name, model in GGUF_MODELS[arch].items():
        file = gguf.GGUFReader(write_gguf(tmp_path / f"{name}.gguf", model, arch))
        stored = {".".join("N" if part.isdigit() else part for part in t.name.split(".")[:-1]) for t in file.tensors}
        assert stored <= known, stored - known


UNKNOWN_TO_TRANSFORMERS = {"olmoe", "gemma", "smollm3", "granite", "olmo2", "gptneox"}
OTHERWISE_IN_TRANSFORMERS = {
    "mistral": "asks the gguf package for a table of this name, which has none",
    "mixtral": "the same",
    "falcon-11b": "leaves the fused rows of several KV heads in the order of the file",
    "falcon-40b": "the same",
}


@pytest.mark.torch
@pytest.mark.parametrize(
    ("arch", "name"),
    [
        (arch, name)
        for arch, name in PAIRS
        if arch not in UNKNOWN_TO_TRANSFORMERS and name not in OTHERWISE_IN_TRANSFORMERS
    ],
)
def test_transformers_finds_the_same_weights_in_the_file(tmp_path: Path, arch: str, name: str) -> None:
    """Its names and its reordering of rows are an independent word on those of the tests. The config is that of the
    folder: what transformers makes of the metadata leaves out windows, widths of heads and more."""
    from golden.make_goldens import tiny_model, torch

    model = GGUF_MODELS[arch][name]
    path = write_gguf(tmp_path / "model.gguf", model, arch)
    wanted = tiny_model(model)
    found = type(wanted).from_pretrained(tmp_path, gguf_file=path.name, config=wanted.config, dtype=torch.float32)
    prompt = torch.tensor([list(range(3, 60))])
    with torch.inference_mode():
        torch.testing.assert_close(found(prompt).logits, wanted(prompt).logits, rtol=1e-5, atol=1e-5)


@pytest.mark.torch
@pytest.mark.parametrize("arch", sorted(UNKNOWN_TO_TRANSFORMERS))
def test_transformers_still_does_not_read(tmp_path: Path, arch: str) -> None:
    from golden.make_goldens import transformers

    name, model = next(iter(GGUF_MODELS[arch].items()))
    path = write_gguf(tmp_path / f"{name}.gguf", model, arch)
    with pytest.raises(ValueError, match="not supported yet"):
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=path.name)
