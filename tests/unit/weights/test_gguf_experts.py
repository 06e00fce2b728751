"""Mixtures of experts in GGUF files: 3-D tensors come apart, each expert in its own type."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import tiny_models as tiny
from gguf_writer import gguf_bytes, value, write
from limits import refused

from octavo.errors import ModelFileError, UnsupportedModelError
from octavo.weights.gguf_checkpoint import GGUFCheckpoint

EXPERTS, USED, INNER, SHARED = 6, 2, 32, 96
ARCHS = ("llama", "qwen2moe", "qwen3moe", "olmoe")

PARTS = ("ffn_gate", "ffn_up", "ffn_down")


def shape(gguf_part: str, inner: int) -> tuple[int, int]:
    return (tiny.HIDDEN, inner) if gguf_part == "ffn_down" else (inner, tiny.HIDDEN)


class Model:
    """A tiny model's tensors as they come out, and in the file."""

    def __init__(self, arch: str, type_name: str = "F32") -> None:
        self.arch = arch
        self.kind = gguf.GGMLQuantizationType[type_name]
        self.wanted: dict[str, Any] = {}
        self.stored: list[tuple[str, list[int], int, bytes]] = []
        rng = np.random.default_rng(3)
        for layer in range(tiny.LAYERS):
            blk = f"blk.{layer}."
            router = rng.standard_normal((EXPERTS, tiny.HIDDEN)).astype(np.float32)
            self.wanted[f"{blk}ffn_gate_inp.weight"] = router
            self._store(f"{blk}ffn_gate_inp.weight", router, exact=True)
            for part in PARTS:
                inner = tiny.WIDE if arch in ("llama", "olmoe") else INNER
                whole = rng.standard_normal((EXPERTS, *shape(part, inner))).astype(np.float32)
                self._store(f"{blk}{part}_exps.weight", whole)
                self.wanted |= {f"{blk}{part}.{e}.weight": self._kept(whole[e]) for e in range(EXPERTS)}
                if arch == "qwen2moe":
                    shared = rng.standard_normal(shape(part, SHARED)).astype(np.float32)
                    self._store(f"{blk}{part}_shexp.weight", shared)
                    self.wanted[f"{blk}{part}_shexp.weight"] = self._kept(shared)
            if arch == "qwen2moe":
                gate = rng.standard_normal(tiny.HIDDEN).astype(np.float32)
                self._store(f"{blk}ffn_gate_inp_shexp.weight", gate, exact=True)
                self.wanted[f"{blk}ffn_gate_inp_shexp.weight"] = gate[None]

    def _store(self, name: str, values: Any, *, exact: bool = False) -> None:
        kind = gguf.GGMLQuantizationType.F32 if exact else self.kind
        self.stored.append((name, list(reversed(values.shape)), int(kind), gguf.quantize(values, kind).tobytes()))

    def _kept(self, values: Any) -> Any:
        return gguf.dequantize(gguf.quantize(values, self.kind), self.kind)

    def write(self, path: Path, **changes: bytes | None) -> GGUFCheckpoint:
        metadata: dict[str, bytes | None] = {
            f"{self.arch}.expert_count": value("uint32", EXPERTS),
            f"{self.arch}.expert_used_count": value("uint32", USED),
        }
        if self.arch.startswith("qwen"):
            metadata[f"{self.arch}.expert_feed_forward_length"] = value("uint32", INNER)
        metadata |= {f"{self.arch}.{key}": data for key, data in changes.items()}
        rest = {name: w for name, w in tiny.weights().items() if ".mlp." not in name}
        return GGUFCheckpoint(tiny.gguf_file(path, rest, arch=self.arch, metadata=metadata, extra=self.stored))


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("type_name", ["F32", "Q4_0", "Q5_1", "Q8_0", "BF16"])
def test_each_expert_is_a_tensor(tmp_path: Path, arch: str, type_name: str) -> None:
    model = Model(arch, type_name)
    checkpoint = model.write(tmp_path / "m.gguf")
    dense = {tiny.gguf_name(name) for name in tiny.weights() if ".mlp." not in name}
    assert set(checkpoint.names()) == {*dense, *model.wanted}
    for name, wanted in model.wanted.items():
        assert checkpoint.info(name).shape == wanted.shape
        np.testing.assert_array_equal(checkpoint.read(name, "float32"), wanted)
    if type_name.startswith("Q"):
        name = next(n for n in model.wanted if ".ffn_up.5." in n)
        stored, hollow = checkpoint.read_grouped(name), checkpoint.hollow_grouped(name)
        assert stored is not None and hollow is not None
        assert stored.shape == hollow.shape == model.wanted[name].shape


def test_files_with_a_tensor_for_each_expert(tmp_path: Path) -> None:
    """As llama.cpp's converter wrote them at first."""
    model = Model("llama")
    stored, model.stored = model.stored, []
    for name, dims, kind, data in stored:
        size = len(data) // EXPERTS
        pieces = range(EXPERTS if "_exps" in name else 0)
        model.stored += [
            (name.replace("_exps", f".{e}"), dims[:2], kind, data[e * size : (e + 1) * size]) for e in pieces
        ] or [(name, dims, kind, data)]
    checkpoint = model.write(tmp_path / "m.gguf")
    for name, wanted in model.wanted.items():
        np.testing.assert_array_equal(checkpoint.read(name, "float32"), wanted)


@pytest.mark.parametrize("arch", ARCHS)
def test_config(tmp_path: Path, arch: str) -> None:
    config = Model(arch).write(tmp_path / "m.gguf").config
    wanted: dict[str, Any] = {
        "llama": {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "num_local_experts": EXPERTS},
        "qwen2moe": {
            "architectures": ["Qwen2MoeForCausalLM"],
            "num_experts": EXPERTS,
            "norm_topk_prob": False,
            "moe_intermediate_size": INNER,
            "shared_expert_intermediate_size": tiny.WIDE,
            "mlp_only_layers": [],
        },
        "qwen3moe": {
            "architectures": ["Qwen3MoeForCausalLM"],
            "num_experts": EXPERTS,
            "norm_topk_prob": True,
            "moe_intermediate_size": INNER,
            "mlp_only_layers": [],
        },
        "olmoe": {"architectures": ["OlmoeForCausalLM"], "num_experts": EXPERTS, "norm_topk_prob": False},
    }[arch] | {"num_experts_per_tok": USED, "intermediate_size": tiny.WIDE}
    assert {key: config[key] for key in wanted} == wanted


def test_a_layer_without_a_router_is_dense(tmp_path: Path) -> None:
    model = Model("qwen3moe")
    model.stored = [tensor for tensor in model.stored if not tensor[0].startswith("blk.1.")]
    assert model.write(tmp_path / "m.gguf").config["mlp_only_layers"] == [1]


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    model = Model("qwen2moe")

    def write_with(**changes: bytes | None) -> Any:
        return lambda: model.write(tmp_path / "m.gguf", **changes)

    count = f"tensor 'blk.0.ffn_gate_exps.weight': has shape ({EXPERTS}, {INNER}, {tiny.HIDDEN}); must hold 5 matrices"
    refused(write_with(expert_count=value("uint32", 5)), count, kind=ModelFileError)
    refused(write_with(expert_used_count=value("uint32", 7)), "7 of 6 experts", kind=ModelFileError)
    refused(write_with(expert_used_count=None), "0 of 6 experts", kind=ModelFileError)
    refused(write_with(expert_gating_func=value("uint32", 2)), "not chosen by softmax", kind=UnsupportedModelError)
    refused(write_with(expert_weights_scale=value("float32", 2.5)), "outputs are scaled", kind=UnsupportedModelError)
    twice = next(t for t in model.stored if t[0] == "blk.1.ffn_up_exps.weight")
    model.stored.append(("blk.1.ffn_up.3.weight", twice[1][:2], twice[2], twice[3][: len(twice[3]) // EXPERTS]))
    refused(
        write_with(), "tensor 'blk.1.ffn_up.3.weight': is a part of 'blk.1.ffn_up_exps.weight'", kind=ModelFileError
    )


def test_experts_of_another_architecture(tmp_path: Path) -> None:
    held = [*tiny.gguf_metadata("qwen2").items(), ("qwen2.expert_count", value("uint32", 4))]
    path = write(tmp_path / "m.gguf", gguf_bytes(held, [("token_embd.weight", [64, 32], 0, bytes(64 * 32 * 4))]))
    refused(lambda: GGUFCheckpoint(path), "architecture 'qwen2' with experts", kind=UnsupportedModelError)
