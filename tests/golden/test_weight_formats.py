"""A tiny Llama in every quantised format answers as the same model in float32 on what the formats stand for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import octavo._native as _native
from golden import compare
from octavo.backends.cpu import CpuBackend
from octavo.models.families import decoder_spec
from octavo.models.loader import load, weight_size
from octavo.weights.huggingface import HFCheckpoint
from support import quantized
from support.core_runs import run
from support.quantized import CASES, Tensors
from support.tiny_models import TinyLlama, tensors

MODEL = TinyLlama(hidden_size=128, intermediate_size=256, head_dim=32, vocab_size=96)
PROMPTS = [list(np.random.default_rng(seed).integers(3, 96, 5 + 7 * seed)) for seed in range(3)]
QUANTISED_TOLERANCE = 0.08
"""Root of the mean square of the logits' differences, relative to that of the logits, where activations are rounded to
8 bits. A matrix in disorder gives 1."""


def written(root: Path, name: str) -> tuple[Path, Path]:
    """Two folders: the model with its projections in the format, and in float32."""
    rng = np.random.default_rng(list(name.encode()))
    stored: Tensors = {}
    plain: Tensors = {}
    for tensor, values in tensors(MODEL).items():
        if "_proj.weight" not in tensor:
            stored[tensor] = plain[tensor] = ("F32", values)
            continue
        made = quantized.as_usual(CASES[name].write(rng, *values.shape))
        stored |= {f"{tensor.removesuffix('.weight')}.{ending}": each for ending, each in made.tensors.items()}
        plain[tensor] = ("F32", made.values)
    return folder(root / "stored", stored, CASES[name].config), folder(root / "plain", plain, None)


def folder(path: Path, held: Tensors, section: dict[str, Any] | None) -> Path:
    path.mkdir(parents=True)
    config = MODEL.config() | ({} if section is None else {"quantization_config": section})
    (path / "config.json").write_text(json.dumps(config))
    quantized.save(path / "model.safetensors", held)
    return path


def answers(model: Path, **settings: Any) -> list[list[int]]:
    found, _ = run(model, compare.greedy_requests(PROMPTS, 10), num_blocks=60, max_num_seqs=4, **settings)
    return [found[i, 0].token_ids for i in range(len(PROMPTS))]


@pytest.mark.parametrize("name", CASES)
def test_greedy_tokens_are_those_of_the_expanded_weights(tmp_path: Path, name: str) -> None:
    stored, plain = written(tmp_path, name)
    wanted = answers(plain, dtype="float32")
    assert answers(stored, dtype="float32", quantization="none") == wanted
    assert answers(stored, dtype="float32", quantization="auto", backend="reference") == wanted
    assert len({token for tokens in wanted for token in tokens}) > 8, "a model that says one thing tells nothing"


KEPT = {case.kept: name for name, case in CASES.items()}
"""A format for each way of keeping a matrix."""


@pytest.mark.parametrize("isa", _native.supported_paths())
@pytest.mark.parametrize("name", KEPT.values())
def test_kernels_agree_with_the_expanded_weights(tmp_path: Path, name: str, isa: str) -> None:
    """Matrices that stay in groups round activations to 8 bits; those that were expanded do not."""
    stored, plain = written(tmp_path, name)
    for prompt in PROMPTS:
        exact = compare.prompt_logits(plain, prompt, isa=isa, quantization="none")
        found = compare.prompt_logits(stored, prompt, isa=isa, quantization="auto")
        error = np.sqrt(np.mean((found - exact) ** 2) / np.mean(exact**2))
        if CASES[name].kept is None:
            assert error == 0
        else:
            assert 0 < error < QUANTISED_TOLERANCE


@pytest.mark.parametrize(
    ("name", "quantization"),
    [(name, "auto") for name in CASES] + [(n, q) for n in KEPT.values() for q in ("none", "int8", "int4")],
)
def test_sizes_are_known_beforehand(tmp_path: Path, name: str, quantization: str) -> None:
    stored, _ = written(tmp_path, name)
    checkpoint = HFCheckpoint(stored)
    spec, backend = decoder_spec(checkpoint.config), CpuBackend("bfloat16", num_threads=1)
    size = weight_size(checkpoint, spec, backend, "bfloat16", quantization)
    weights = load(checkpoint, spec, backend, "bfloat16", quantization)
    assert (weights.num_bytes, weights.formats) == (size.num_bytes, size.formats)
    if quantization == "auto" and CASES[name].kept is not None:
        bits, group = CASES[name].kept[:2]
        linear = sum(values.size for tensor, values in tensors(MODEL).items() if "_proj.weight" in tensor)
        assert size.num_bytes < linear * 1.6 * bits / 8 * (1 + 16 / group) + 2 * 128 * 128
        assert f"(int{bits} groups of {group})" in size.formats[0]
    checkpoint.close()
