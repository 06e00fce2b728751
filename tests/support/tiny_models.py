"""Small checkpoints with random weights, the same on every machine: a Hugging Face folder made by numpy alone."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from octavo.models.families import FAMILIES, decoder_spec
from octavo.models.layout import expected_shapes


class TinyLlama(msgspec.Struct, frozen=True, kw_only=True):
    """What distinguishes one tiny model from another."""

    num_layers: int = 2
    vocab_size: int = 96
    hidden_size: int = 48
    intermediate_size: int = 80
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 12
    tied: bool = True
    bias: bool = False
    window: int | None = None
    max_position: int = 256
    rope: dict[str, Any] = msgspec.field(default_factory=lambda: {"rope_type": "default", "rope_theta": 10000.0})
    seed: int = 0

    def config(self) -> dict[str, Any]:
        """The keys of Hugging Face's config.json."""
        name = "MistralForCausalLM" if self.window else "LlamaForCausalLM"
        return {
            "architectures": [name],
            "model_type": name.removesuffix("ForCausalLM").lower(),
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": self.tied,
            "attention_bias": self.bias,
            "mlp_bias": self.bias,
            "sliding_window": self.window,
            "max_position_embeddings": self.max_position,
            "rope_parameters": self.rope,
            "bos_token_id": 1,
            "eos_token_id": 2,
        }


class TinyFamily(msgspec.Struct, frozen=True, kw_only=True):
    """A tiny model of any family, by its config in the family's own words."""

    architecture: str
    model_type: str
    changes: dict[str, Any] = {}
    """Keys by the family's names."""
    text: dict[str, Any] = {}
    """Of models of more than text: keys beside the decoder's."""
    seed: int = 0
    context: int | None = None
    """What it is served with; None for the trained context."""

    vocab_size: int = 96

    def config(self) -> dict[str, Any]:
        family = FAMILIES[self.architecture]
        sizes = {
            "vocab_size": self.vocab_size,
            "hidden_size": 48,
            "intermediate_size": 80,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 256,
            "tie_word_embeddings": False,
        }
        decoder = {family.keys.get(key, key): value for key, value in sizes.items()} | self.changes
        ids = {"bos_token_id": 1, "eos_token_id": 2}
        nested = decoder if family.inside is None else {family.inside: decoder, **self.text}
        return {"architectures": [self.architecture], "model_type": self.model_type, **nested, **ids}


Tensors = dict[str, np.ndarray[Any, np.dtype[np.float32]]]


def tensors(model: TinyLlama | TinyFamily) -> Tensors:
    """Weights by Hugging Face's names. Large enough that logits differ clearly and attention is not flat."""
    spec = decoder_spec(model.config())
    shapes = expected_shapes(spec)
    if isinstance(model, TinyLlama):
        rng = np.random.default_rng(model.seed)
        return {name: _drawn(name, shapes[name], rng) for name in sorted(shapes, key=_draw_order)}
    made = {}
    for name, shape in shapes.items():
        own = np.random.default_rng([model.seed, zlib.crc32(name.encode())])
        made[name] = _drawn(name, shape, own, norm=1.0 - spec.norm_offset, transposed=spec.naming.transposed)
    return made


def _drawn(
    name: str, shape: tuple[int, ...], rng: np.random.Generator, *, norm: float = 1.0, transposed: bool = False
) -> np.ndarray[Any, np.dtype[np.float32]]:
    values = rng.standard_normal(shape)
    if name.endswith(".bias"):
        return (0.3 * values).astype(np.float32)
    if len(shape) == 1:
        return (norm + 0.2 * values).astype(np.float32)
    return (values * 1.6 / np.sqrt(shape[0 if transposed else -1])).astype(np.float32)


_DRAWN = (
    *("embed_tokens.weight", "model.norm.weight", "lm_head.weight", "input_layernorm.weight"),
    *("post_attention_layernorm.weight", *(f"{name}_proj.{kind}" for kind in ("weight", "bias") for name in "qkv")),
    *("o_proj.weight", "o_proj.bias"),
    *(f"{name}_proj.{kind}" for kind in ("weight", "bias") for name in ("gate", "up", "down")),
)
"""Ends of names in the order in which a TinyLlama's weights are drawn."""


def _draw_order(name: str) -> tuple[int, int]:
    layer = int(name.split(".")[2]) if name.startswith("model.layers.") else -1
    return layer, next(i for i, end in enumerate(_DRAWN) if name.endswith(end))


def write_tiny_llama(folder: Path, model: TinyLlama | TinyFamily) -> Path:
    """Write config.json and model.safetensors."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(model.config()))
    header: dict[str, Any] = {}
    data = bytearray()
    for name, tensor in tensors(model).items():
        header[name] = {
            "dtype": "F32",
            "shape": list(tensor.shape),
            "data_offsets": [len(data), len(data) + tensor.nbytes],
        }
        data += tensor.tobytes()
    raw = json.dumps(header).encode()
    raw += b" " * (-len(raw) % 8)
    (folder / "model.safetensors").write_bytes(len(raw).to_bytes(8, "little") + raw + data)
    return folder
