"""The metadata of a GGUF model in the words of a Hugging Face config."""

from __future__ import annotations

from typing import Any

from octavo.errors import ModelFileError, UnsupportedModelError
from octavo.weights.gguf import GGUFFile
from octavo.weights.gguf_architectures import ARCHITECTURES, GGUFArchitecture
from octavo.weights.gguf_experts import experts_config
from octavo.weights.gguf_header import GGUFHeader
from octavo.weights.gguf_rope import rope_config
from octavo.weights.gguf_vocabulary import token_id


def architecture_of(file: GGUFFile) -> tuple[GGUFArchitecture, GGUFHeader]:
    """The row of the table that `file` belongs to, and its metadata.

    Raises:
        ModelFileError: If it names none.
        UnsupportedModelError: If the architecture is none of `ARCHITECTURES`, or the file is a part of a model.
    """
    meta, name = file.metadata, file.path.name
    arch = meta.get_str("general.architecture")
    if arch is None:
        raise ModelFileError(name, "metadata", "'general.architecture' is missing")
    if arch not in ARCHITECTURES:
        raise UnsupportedModelError(f"{name}: architecture {arch[:40]!r}; supported are {', '.join(ARCHITECTURES)}")
    if (meta.get_int("split.count") or 1) > 1:
        raise UnsupportedModelError(f"{name}: one of several parts of a split model; merge them first")
    return ARCHITECTURES[arch], GGUFHeader(file, arch)


def config_of(architecture: GGUFArchitecture, header: GGUFHeader) -> dict[str, Any]:
    """The config of the model. Keys are Llama's where a family has other names for them.

    Raises:
        ModelFileError: If a number is missing or of the wrong type.
        UnsupportedModelError: If a feature of it is not supported.
    """
    sizes = _sizes(header)
    config: dict[str, Any] = {
        "architectures": [architecture.class_name],
        "model_type": architecture.model_type,
        **sizes,
        **_epsilon(header, architecture.layer_norm),
        "tie_word_embeddings": not header.has("output.weight"),
        **{flag: header.has(tensor) for flag, tensor in architecture.biases.items()},
        **_windows(header, architecture.windows, sizes),
        **architecture.rule(header, sizes),
    }
    config |= experts_config(header)
    rope = rope_config(header, sizes["head_dim"], sizes["max_position_embeddings"])
    return config | rope | _special_tokens(header.file, sizes["vocab_size"])


def _sizes(header: GGUFHeader) -> dict[str, int]:
    embedding = header.file.tensor("token_embd.weight")
    hidden = header.need_int("embedding_length")
    if len(embedding.shape) != 2 or embedding.shape[1] != hidden:
        raise ModelFileError(
            header.name,
            "tensor 'token_embd.weight'",
            f"has the shape {embedding.shape}; must be (vocabulary, {hidden})",
        )
    heads = header.need_int("attention.head_count")
    kv_heads = header.get_int("attention.head_count_kv") or heads
    if not 1 <= heads <= hidden or not 1 <= kv_heads <= heads or heads % kv_heads:
        raise ModelFileError(header.name, "metadata", f"{heads} heads over {kv_heads} KV heads and a width of {hidden}")
    head_dim = header.get_int("attention.key_length") or hidden // heads
    if (header.get_int("attention.value_length") or head_dim) != head_dim:
        raise UnsupportedModelError(f"{header.name}: heads whose keys and values differ in width")
    if head_dim % 2:
        raise ModelFileError(header.name, "metadata", f"heads of {head_dim} elements; must be even")
    return {
        "vocab_size": embedding.shape[0],
        "hidden_size": hidden,
        "intermediate_size": header.need_int("feed_forward_length"),
        "num_hidden_layers": header.need_int("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "max_position_embeddings": header.need_int("context_length"),
    }


def _epsilon(header: GGUFHeader, layer_norm: bool) -> dict[str, float]:
    if layer_norm:
        return {"layer_norm_eps": header.need_float("attention.layer_norm_epsilon")}
    return {"rms_norm_eps": header.need_float("attention.layer_norm_rms_epsilon")}


def _windows(header: GGUFHeader, has_windows: bool, sizes: dict[str, int]) -> dict[str, Any]:
    window = header.get_int("attention.sliding_window")
    if not window:
        return {"sliding_window": None} if has_windows else {}
    if not has_windows:
        raise UnsupportedModelError(f"{header.name}: a sliding window in the architecture {header.arch!r}")
    pattern, count = header.pattern("attention.sliding_window_pattern"), sizes["num_hidden_layers"]
    if pattern is None or isinstance(pattern, list):
        windowed = pattern
    elif pattern < 1:
        raise header.wrong("attention.sliding_window_pattern", f"is {pattern}; must be 1 or more")
    else:
        windowed = [(index + 1) % pattern != 0 for index in range(min(count, len(header.file.tensors)))]
    if windowed is None:
        return {"sliding_window": window}
    kinds = ["sliding_attention" if has else "full_attention" for has in windowed]
    return {"sliding_window": window, "layer_types": kinds}


def _special_tokens(file: GGUFFile, vocab_size: int) -> dict[str, Any]:
    """`bos_token_id`, and in `eos_token_id` every token that ends an answer, each if there is one."""
    found: dict[str, Any] = {}
    bos = token_id(file, "bos", vocab_size)
    if bos is not None:
        found["bos_token_id"] = bos
    ends = [token_id(file, role, vocab_size) for role in ("eos", "eot", "eom")]
    ids = list(dict.fromkeys(end for end in ends if end is not None))
    if ids:
        found["eos_token_id"] = ids[0] if len(ids) == 1 else ids
    return found
