"""What is known of a model before its weights are read: its spec, what it is stored in, the memory it needs."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import msgspec

from octavo import registry
from octavo.backends.protocol import Backend
from octavo.config import EngineConfig
from octavo.errors import UnsupportedModelError
from octavo.executor.sizing import Sizing
from octavo.models.loader import weight_size
from octavo.models.nearest import nearest
from octavo.models.overrides import overridden_spec
from octavo.models.spec import DecoderSpec, LayerSpec
from octavo.weights.checkpoint import Checkpoint
from octavo.weights.files import JSONObject
from octavo.weights.gguf_architectures import ARCHITECTURES

_ENOUGH_BLOCKS = 1 << 24
"""A pool in which every context fits, so that a need is not cut to what this machine has."""
_SPECIAL = ("bos_token_id", "eos_token_ids", "naming")

Facts = dict[str, Any]


def facts_of_config(config: EngineConfig, raw: JSONObject) -> Facts:
    """Sections of a report on the model that a config.json describes, with weights that are not quantised.

    Args:
        config: Its `model.overrides` take the place of keys in `raw`.

    Raises:
        ConfigError: Naming an override that changes nothing.
        ModelError: If Octavo does not run such a model; what it lacks is named, and the nearest thing that is there.
    """
    spec = _spec(raw, config, config.model.overrides)
    backend, kv_dtype = _backend(config)
    try:
        memory = _memory(config, spec, backend, kv_dtype)
    finally:
        backend.close()
    dtype = _dtype(config)
    memory["weights_bytes"] = spec.num_parameters * (2 if dtype == "bfloat16" else 4)
    return _facts(spec, raw | config.model.overrides, {"kept": f"{dtype}, if none is quantised"}, memory)


def facts_of_checkpoint(config: EngineConfig, checkpoint: Checkpoint) -> Facts:
    """The same of a checkpoint, with the bytes that its weights will take. No tensor is read."""
    spec = _spec(checkpoint.config, config, {})  # whose overrides are in it
    backend, kv_dtype = _backend(config)
    try:
        memory = _memory(config, spec, backend, kv_dtype)
        kept = weight_size(checkpoint, spec, backend, _dtype(config), config.model.quantization)
    finally:
        backend.close()
    memory["weights_bytes"] = kept.num_bytes
    weights = {"stored": _stored(checkpoint), "kept": ", ".join(kept.formats), "unused": list(kept.unused)}
    return _facts(spec, checkpoint.config, weights, memory)


def _facts(spec: DecoderSpec, raw: JSONObject, weights: Facts, memory: Facts) -> Facts:
    return {
        "model": _model(spec, raw),
        "layers": _layers(spec, raw),
        "unusual": unusual(spec),
        "weights": {"parameters": spec.num_parameters, **weights},
        "memory": memory,
    }


def _dtype(config: EngineConfig) -> str:
    """What matrices are kept as that are not quantised."""
    execution = config.execution
    if config.model.dtype != "auto":
        return config.model.dtype
    return str(registry.resolve("backends", execution.backend).default_dtype(execution.isa))


def _backend(config: EngineConfig) -> tuple[Backend, str]:
    execution, dtype, wanted = config.execution, _dtype(config), config.cache.kv_cache_dtype
    make = registry.resolve("backends", execution.backend)
    backend: Backend = make(dtype, num_threads=execution.num_threads, isa=execution.isa)
    return backend, dtype if wanted == "auto" else wanted


def _spec(raw: JSONObject, config: EngineConfig, overrides: JSONObject) -> DecoderSpec:
    try:
        return overridden_spec(raw, overrides, config.model.max_model_len)
    except UnsupportedModelError as error:
        raise with_nearest(error) from None


def with_nearest(error: UnsupportedModelError) -> UnsupportedModelError:
    """The error, and where it names a GGUF architecture, which of those that are there is nearest."""
    text = str(error)
    _, found, rest = text.partition("architecture '")
    near = nearest(rest.partition("'")[0], ARCHITECTURES) if found and "nearest" not in text else None
    return UnsupportedModelError(text if near is None else f"{text}; nearest is {near}")


def _model(spec: DecoderSpec, config: JSONObject) -> Facts:
    return {
        "family": spec.family,
        "eos_token_ids": list(spec.eos_token_ids),
        "model_type": config.get("model_type"),
        "context": spec.max_position,
        "vocabulary": spec.vocab_size,
        "width": spec.hidden_size,
        "mlp_width": spec.intermediate_size,
        "tied_embeddings": spec.tied_embeddings,
    }


def _layers(spec: DecoderSpec, config: JSONObject) -> Facts:
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    rope = rope if isinstance(rope, dict) else {}
    theta = rope.get("rope_theta", config.get("rope_theta"))
    return {
        "count": spec.num_layers,
        "query_heads": spec.num_heads,
        "kv_heads": spec.num_kv_heads,
        "head_width": spec.head_dim,
        "windows": [
            {"layers": sum(layer.window == window for layer in spec.layers), "window": window}
            for window in spec.windows
        ],
        "kinds": _kinds(spec.layers, spec.head_dim),
        "rope": {"kind": rope.get("rope_type", rope.get("type", "default")), "theta": theta},
    }


def _kinds(layers: tuple[LayerSpec, ...], head_dim: int) -> list[Facts]:
    """How many layers there are of each kind, by all that one layer may choose for itself."""
    kinds: Counter[str] = Counter()
    for layer in layers:
        found = {name: _plain(getattr(layer, name)) for name in layer.__struct_fields__ if name != "rope"}
        turned = None if layer.rope is None else 2 * len(layer.rope.inv_freq)
        found["rotated"] = "none" if turned is None else "all" if turned == head_dim else f"{turned} of {head_dim}"
        kinds[msgspec.json.encode(found).decode()] += 1
    return [{"layers": count, **msgspec.json.decode(kind)} for kind, count in kinds.items()]


def _plain(value: Any) -> Any:
    return msgspec.to_builtins(value)


def unusual(spec: DecoderSpec) -> Facts:
    """The fields of the spec in which this model departs from a plain one, whatever fields there are."""
    found: Facts = {}
    for field in msgspec.structs.fields(spec):
        value = getattr(spec, field.name)
        if field.default is not msgspec.NODEFAULT and value != field.default and field.name not in _SPECIAL:
            found[field.name] = _plain(value)
    return found


def _stored(checkpoint: Checkpoint) -> list[Facts]:
    """What the tensors are stored in, most elements first."""
    elements: Counter[str] = Counter()
    tensors: Counter[str] = Counter()
    for name in checkpoint.names():
        info = checkpoint.info(name)
        count = 1
        for size in info.shape:
            count *= size
        elements[info.dtype] += count
        tensors[info.dtype] += 1
    return [{"format": kind, "tensors": tensors[kind], "elements": count} for kind, count in elements.most_common()]


def _memory(config: EngineConfig, spec: DecoderSpec, backend: Backend, kv_dtype: str) -> Facts:
    """What one token and one sequence of the whole context keep, by the arithmetic of the server."""
    cache = dataclasses.replace(config.cache, num_blocks=_ENOUGH_BLOCKS, kv_cache_memory_bytes=None)
    sizes = Sizing(dataclasses.replace(config, cache=cache), spec, backend, kv_dtype).sizes(None)
    scheduler, shape = config.scheduler, sizes.shape
    blocks = sizes.kv_spec.peak_blocks(sizes.max_model_len, scheduler.depth * scheduler.max_num_batched_tokens)
    return {
        "kv_dtype": kv_dtype,
        "block_size": shape.block_size,
        "kv_groups": [{"layers": len(group.layers), "window": group.window} for group in sizes.kv_spec.groups],
        "kv_bytes_per_token": shape.bytes_per_block * shape.num_groups // shape.block_size,
        "served_context": sizes.max_model_len,
        "kv_bytes_of_one_full_context": blocks * shape.bytes_per_block,
    }
