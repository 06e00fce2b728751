"""Every family in every format that a checkpoint of it can have: what is written, and what must come out.

A case is two checkpoints of one tiny model: one in the format, and a folder of float32 with the numbers that it stands
for. The folder form of each family is checked against transformers (`test_goldens.py`), so it is the right answer.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import msgspec
import numpy as np
import numpy.typing as npt

from golden import compare
from golden.family_cases import MODELS
from golden.gguf_cases import GGUF_MODELS
from octavo.backends.reference import ReferenceBackend
from octavo.models.decoder import DecoderWeights
from octavo.models.families import FAMILIES, decoder_spec
from octavo.models.loader import load
from octavo.weights.sources import open_checkpoint, resolve
from support import quantized
from support.gguf_models import in_blocks, write_gguf
from support.quantized import CASES, Tensors
from support.tiny_models import TinyFamily, tensors

Floats = npt.NDArray[np.float32]


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A family, or a variant whose weights lie otherwise."""

    model: TinyFamily
    golden: str
    """Name of the expectation that transformers made of the family."""
    arch: str | None = None
    """What GGUF files call it."""


def _row(name: str, golden: str | None = None, arch: str | None = None) -> Row:
    model = MODELS[name] if arch is None else GGUF_MODELS[arch][name]
    return Row(model=model, golden=golden or name, arch=arch)


ROWS: dict[str, Row] = {
    "llama": _row("llama", "gqa-tied", "llama"),
    "mistral": _row("mistral", "window", "llama"),
    "qwen2": _row("qwen2", "qwen2-windows", "qwen2"),
    "qwen3": _row("qwen3", arch="qwen3"),
    "gemma": _row("gemma", arch="gemma"),
    "gemma2": _row("gemma2", arch="gemma2"),
    "gemma3": _row("gemma3", arch="gemma3"),
    "gemma3-images": _row("gemma3-images"),
    "phi3": _row("phi3", arch="phi3"),
    "smollm3": _row("smollm3", arch="smollm3"),
    "granite": _row("granite", arch="granite"),
    "olmo2": _row("olmo2", arch="olmo2"),
    "olmo3": _row("olmo3", arch="olmo2"),
    "starcoder2": _row("starcoder2", arch="starcoder2"),
    "stablelm": _row("stablelm", arch="stablelm"),
    "opt": _row("opt"),
    "gpt2": _row("gpt2", arch="gpt2"),
    "gpt-neox": _row("gpt-neox", arch="gptneox"),
    "falcon-7b": _row("falcon-7b", arch="falcon"),
    "falcon-40b": _row("falcon-40b", arch="falcon"),
    "mixtral": _row("mixtral", arch="llama"),
    "qwen2-moe": _row("qwen2-moe", arch="qwen2moe"),
    "qwen3-moe": _row("qwen3-moe", arch="qwen3moe"),
    "olmoe": _row("olmoe", arch="olmoe"),
}

FLOATS = {"bfloat16": "BF16", "float16": "F16"}
"""Safetensors besides float32: as they call the dtype."""
BLOCKS: dict[str, tuple[str, str]] = {
    "F32": ("F32", "F32"),
    "F16": ("F16", "F16"),
    "BF16": ("BF16", "BF16"),
    "Q8_0": ("Q8_0", "Q8_0"),
    "Q4_0": ("Q4_0", "Q4_0"),
    "Q4_1": ("Q4_1", "Q4_1"),
    "Q5_0": ("Q5_0", "Q5_0"),
    "Q5_1": ("Q5_1", "Q5_1"),
    "IQ4_NL": ("IQ4_NL", "Q5_1"),
    "Q2_K": ("Q2_K", "Q3_K"),
    "Q4_K_M": ("Q4_K", "Q6_K"),
    "Q5_K_M": ("Q5_K", "Q6_K"),
    "IQ4_XS": ("IQ4_XS", "Q5_K"),
}
"""Names of GGUF files, and the types in them: of most matrices, and of those of `LARGER`."""
LARGER = ("v_proj.weight", "down_proj.weight", "w2.weight", "fc2.weight", "dense_4h_to_h.weight", "mlp.c_proj.weight")
PACKED: dict[str, str] = {
    "AWQ": "awq g32",
    "GPTQ": "gptq g32",
    "GPTQ act-order": "gptq act-order zeros",
    "FP8 blocks": "fp8 small blocks",
    "FP8 rows": "ct fp8",
    "int8": "ct int8",
    "int4": "ct int4 g16 zeros",
    "MXFP4": "ct mxfp4",
    "NVFP4": "ct nvfp4",
}
"""Quantised safetensors: the format of `support.quantized` that each column is of."""


def absent(row: str, column: str) -> str:
    """Why no checkpoint of the family has the format; "" if some have."""
    if column in PACKED and row == "gpt2" and not column.startswith("GPTQ"):
        return "GPT-2's layers are no `Linear` modules, and only GPTQ's tools quantise others"
    if column in BLOCKS and ROWS[row].arch is None:
        return {
            "opt": "llama.cpp has no OPT",
            "gemma3-images": "a GGUF file holds the text model alone: the row `gemma3`",
        }[row]
    return ""


def columns(row: str) -> list[str]:
    """The formats that a checkpoint of the family can have, float32 in safetensors left out."""
    return [column for column in (*FLOATS, *BLOCKS, *PACKED) if not absent(row, column)]


def write(root: Path, row: str, column: str) -> tuple[Path, Path]:
    """The checkpoint in one of `columns`, and the folder of float32."""
    rng = np.random.default_rng([zlib.crc32(row.encode()), zlib.crc32(column.encode())])
    largest = max((gguf.GGML_QUANT_SIZES[_KINDS[kind]][0] for kind in BLOCKS.get(column, ())), default=1)
    model = sized(ROWS[row].model, 64 if largest > 32 else 16)
    if column in FLOATS:
        return _write_floats(root, model, FLOATS[column])
    if column in BLOCKS:
        return _write_blocks(root, model, str(ROWS[row].arch), BLOCKS[column], rng)
    return _write_packed(root, model, PACKED[column], rng)


_KINDS = gguf.GGMLQuantizationType.__members__


def sized(model: TinyFamily, head: int) -> TinyFamily:
    """As wide as whole blocks: columns of every matrix are a multiple of 4 * `head`."""
    words = FAMILIES[model.architecture].keys
    sizes = {"hidden_size": 4 * head, "intermediate_size": 8 * head}
    sizes = {words.get(key, key): size for key, size in sizes.items()}
    others = {
        "head_dim": 2 * head,
        "query_pre_attn_scalar": 2 * head,
        "word_embed_proj_dim": 4 * head,
        "moe_intermediate_size": 4 * head,
        "shared_expert_intermediate_size": 12 * head,
        "num_local_experts": 6,
        "num_experts": 6,
    }
    sizes |= {key: size for key, size in others.items() if key in model.changes}
    return msgspec.structs.replace(model, changes={**model.changes, **sizes})


def _drawn(model: TinyFamily) -> dict[str, Floats]:
    """Gemma's embedding is scaled up and the head too: drawn like others', every token's best successor is itself."""
    factor = np.float32(0.125 if model.model_type.startswith("gemma") else 1)
    return {n: v * factor if n.endswith("embed_tokens.weight") else v for n, v in tensors(model).items()}


def _write_floats(root: Path, model: TinyFamily, dtype: str) -> tuple[Path, Path]:
    stored: Tensors = {}
    plain: Tensors = {}
    for name, values in _drawn(model).items():
        if dtype == "F16":
            stored[name] = (dtype, values.astype(np.float16))
            plain[name] = ("F32", values.astype(np.float16).astype(np.float32))
        else:
            upper = values.view(np.uint32) >> np.uint32(16)
            stored[name] = (dtype, upper.astype(np.uint16))
            plain[name] = ("F32", (upper << np.uint32(16)).view(np.float32))
    return _folder(root / "stored", model, stored), _folder(root / "plain", model, plain)


def _write_packed(root: Path, model: TinyFamily, case: str, rng: Any) -> tuple[Path, Path]:
    """Of the matrices of layers only, as such checkpoints have it."""
    stored: Tensors = {}
    plain: Tensors = {}
    for name, values in _drawn(model).items():
        if not is_linear(name, values):
            stored[name] = plain[name] = ("F32", values)
            continue
        made = quantized.as_usual(CASES[case].write(rng, *_by_rows(model, values).shape))
        stored |= {f"{name.removesuffix('.weight')}.{ending}": each for ending, each in made.tensors.items()}
        plain[name] = ("F32", _by_rows(model, made.values))
    section = {"quantization_config": CASES[case].config}
    return _folder(root / "stored", model, stored, section), _folder(root / "plain", model, plain)


def _write_blocks(root: Path, model: TinyFamily, arch: str, kinds: tuple[str, str], rng: Any) -> tuple[Path, Path]:
    """Of all matrices but routers and positions, as llama.cpp quantises."""
    stored: dict[str, Any] = {}
    plain: Tensors = {}
    for name, values in _drawn(model).items():
        linear = is_linear(name, values)
        if kinds[0] == "F32" or not (linear or name.endswith(TABLES)):
            stored[name], plain[name] = values, ("F32", values)
            continue
        drawn = _by_rows(model, values) if linear else values
        kind = kinds[1] if name.endswith(LARGER) else kinds[0]
        data = blocks(drawn, kind, rng)
        exact = gguf.dequantize(data, _KINDS[kind]).astype(np.float32)
        stored[name] = in_blocks(data, kind)
        plain[name] = ("F32", _by_rows(model, exact) if linear else exact)
    root.mkdir(parents=True)
    return write_gguf(root / "stored.gguf", model, arch, stored), _folder(root / "plain", model, plain)


TABLES = ("embed_tokens.weight", "word_embeddings.weight", "wte.weight", "embed_in.weight", "head.weight", "out.weight")
"""Embeddings and heads."""
_ROUTERS = (".gate.weight", ".shared_expert_gate.weight")


def is_linear(name: str, values: Floats) -> bool:
    """Whether a tensor is what tools quantise: a matrix of a layer, routers left out."""
    return values.ndim == 2 and (".layers." in name or ".h." in name) and not name.endswith(_ROUTERS)


def _by_rows(model: TinyFamily, values: Floats) -> Floats:
    """A layer's matrix [in, out] of GPT-2 as [out, in], and back."""
    return np.ascontiguousarray(values.T) if model.model_type == "gpt2" else values


_HALVES = {"Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "IQ4_NL": (0,)}
_HALVES |= {"IQ4_XS": (0,)}
"""Bytes at which float16 scales lie in the blocks of types that the `gguf` package can expand and not make."""

_MIDDLES = {"Q2_K": 1.5, "Q4_K": 7.5, "Q5_K": 15.5}
"""Of types with minimums: how many scales make the mean about zero. A matrix far from that drowns the others."""


def blocks(values: Floats, kind: str, rng: Any) -> npt.NDArray[np.uint8]:
    """Rows of a ggml type, bytes: the values as nearly as it can, or any of about their size."""
    if kind not in _HALVES:
        found: npt.NDArray[np.uint8] = gguf.quantize(values, _KINDS[kind]).view(np.uint8)
        return found
    elements, size = gguf.GGML_QUANT_SIZES[_KINDS[kind]]
    data = rng.integers(0, 256, (values.size // elements, size), dtype=np.uint8)
    scales = rng.uniform(0.5, 1.0, len(data))

    def filled(exponent: int) -> npt.NDArray[np.uint8]:
        for at, factor in zip(_HALVES[kind], (1.0, _MIDDLES.get(kind, 0.0)), strict=False):
            data[:, at : at + 2] = np.ldexp(factor * scales, exponent).astype(np.float16)[:, None].view(np.uint8)
        return data

    spread = gguf.dequantize(filled(0), _KINDS[kind]).std()
    return filled(round(np.log2(values.std() / spread))).reshape(len(values), -1)


def _folder(path: Path, model: TinyFamily, held: Tensors, sections: Mapping[str, Any] | None = None) -> Path:
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(model.config() | dict(sections or {})))
    quantized.save(path / "model.safetensors", held)
    return path


NUM_TOKENS = 8
"""Generated after each prompt. Longer answers of such models go round in circles."""
PROMPT_LENGTHS = (3, 5, 8, 13, 21, 40)
"""The last is longer than the windows."""


class Found(msgspec.Struct, frozen=True):
    """What a case answers, beside the folder of float32. Errors of logits are relative to the largest of a position."""

    same_weights: bool
    """Whether the decoder's weights are equal, number by number: expanded when read, and kept in groups."""
    exact: float
    """Largest error with every weight expanded to float32."""
    served: float
    """Median of the positions' errors with weights kept in groups, where activations are rounded to 8 bits. The largest
    tells little: rounding lets a router choose another expert now and then."""
    agreeing: int
    """Of the greedy tokens, those that are the best again with weights in groups, given what was before them."""
    tokens: int
    distinct: int
    """How many different tokens the answers have: a model that says one thing tells nothing."""

    @property
    def agreement(self) -> float:
        return self.agreeing / self.tokens


def measure(stored: Path, plain: Path) -> Found:
    """What the two checkpoints of a case answer."""
    rng = np.random.default_rng(7)
    with compare.opened(plain, quantization="none") as executor:
        prompts = [rng.integers(3, 96, length).tolist() for length in PROMPT_LENGTHS]
        texts = [prompt + compare.greedy(executor, prompt, NUM_TOKENS) for prompt in prompts]
        wanted = [compare.all_logits(executor, text) for text in texts]
    with compare.opened(stored, quantization="none") as executor:
        exact = [compare.all_logits(executor, text) for text in texts]
    with compare.opened(stored, quantization="auto") as executor:
        served = [compare.all_logits(executor, text) for text in texts]
    same = [_greedy_again(found, text) for found, text in zip(served, texts, strict=True)]
    return Found(
        same_weights=have_same_weights(stored, plain),
        exact=float(_errors(exact, wanted).max()),
        served=float(np.median(_errors(served, wanted))),
        agreeing=sum(same),
        tokens=NUM_TOKENS * len(texts),
        distinct=len({token for text in texts for token in text[-NUM_TOKENS:]}),
    )


def have_same_weights(stored: Path, plain: Path) -> bool:
    """The first is read expanded, and with its groups as they are, which the back end then expands."""
    wanted = _weights(plain, "none")
    try:
        compare.same_weights(_weights(stored, "none"), wanted, "expanded")
        compare.same_weights(_weights(stored, "auto"), wanted, "kept")
    except AssertionError:
        return False
    return True


def _weights(path: Path, quantization: str) -> DecoderWeights:
    checkpoint = open_checkpoint(resolve(str(path)))
    try:
        spec = decoder_spec(checkpoint.config)
        weights = load(checkpoint, spec, ReferenceBackend("float32"), "float32", quantization)
        weights.formats = ()  # words on how they are stored
        return weights
    finally:
        checkpoint.close()


def _errors(found: list[Any], wanted: list[Any]) -> Floats:
    """Of each position of all texts."""
    pairs = zip(found, wanted, strict=True)
    errors: Floats = np.concatenate([np.abs(f - w).max(axis=-1) / np.abs(w).max(axis=-1) for f, w in pairs])
    return errors


def _greedy_again(logits: Any, text: list[int]) -> int:
    best = logits[-NUM_TOKENS - 1 : -1].argmax(axis=-1)
    return int((best == np.array(text[-NUM_TOKENS:])).sum())
