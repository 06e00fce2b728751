"""What `octavo plan` is to plan for: a model by its name or file, and an accelerator by its name or numbers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from octavo.errors import ConfigError, ModelError
from octavo.sim.devices import DEVICES, Device
from octavo.sim.known_models import KNOWN_MODELS
from octavo.sim.model_shape import Experts, LayerShape, ModelShape
from octavo.weights.files import is_file

CPU = "cpu"
CUSTOM = "custom"


def model_shape(model: str, overrides: Mapping[str, Any] | None = None) -> ModelShape:
    """The shape of a model, with 16-bit weights and KV.

    Args:
        model: A well-known name, a config.json or a folder with one, or what `octavo serve` takes.
        overrides: Keys in the place of those of its config.

    Raises:
        ConfigError: If there are overrides, and no config: a name is known by its shape alone. Or naming one that
            changes nothing.
        ModelError: If there is no such model, or it is of a kind that Octavo does not run.
    """
    known = KNOWN_MODELS.get(model.lower())
    if known is not None:
        if overrides:
            allowed = f"left out for {known.name}, which is known by its shape alone; give a config.json instead"
            raise ConfigError("hf_overrides", dict(overrides), allowed)
        return known
    from octavo.measure.shapes import spec_of_config, spec_of_model

    path = Path(model).expanduser()
    config = path if path.suffix == ".json" else path / "config.json"
    is_config = is_file(config)
    try:
        spec = spec_of_config(config, overrides) if is_config else spec_of_model(model, overrides)
    except ModelError as error:
        if "no model" in str(error):
            raise ModelError(f"{error} Shapes known without a file: {', '.join(KNOWN_MODELS)}") from None
        raise
    layers = []
    for layer in spec.layers:
        experts = None
        if layer.experts is not None:
            experts = Experts(
                num_experts=layer.experts.num_experts,
                top_k=layer.experts.routing.top_k,
                ffn=layer.experts.intermediate_size,
                shared_ffn=layer.experts.shared_size,
            )
        layers.append(LayerShape(window=layer.window, experts=experts))
    return ModelShape(
        name=config.resolve().parent.name if config.name == "config.json" else path.stem or model,
        hidden=spec.hidden_size,
        layers=tuple(layers),
        num_heads=spec.num_heads,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        ffn=spec.intermediate_size,
        vocab=spec.vocab_size,
        gated=spec.gated_mlp,
        max_len=spec.max_position,
        tied=spec.tied_embeddings,
    )


def device(name: str, changes: dict[str, float]) -> Device:
    """An accelerator by its name, some of its figures replaced.

    Args:
        name: Of `DEVICES`, or "custom", which needs memory, bandwidth and arithmetic.
        changes: Fields of `Device`.

    Raises:
        ConfigError: For an unknown name, or a figure that is missing or not above 0.
    """
    for field, value in changes.items():
        if not 0 < value < float("inf"):
            raise ConfigError(field, value, "above 0")
    if name == CUSTOM:
        missing = [f for f in ("memory_bytes", "bandwidth_bytes_per_s", "flops") if f not in changes]
        if missing:
            raise ConfigError("device", name, "given with --device-memory, --bandwidth and --tflops")
        # Of what was not given, the slowest known: a bus without links between devices, and its power not told.
        rest: dict[str, Any] = {"host_bytes_per_s": 24e9, "allreduce_latency_s": 50e-6, "allreduce_bytes_per_s": 6e9}
        return Device(name=CUSTOM, **({**rest, "watts": 0.0} | changes))
    if name not in DEVICES:
        raise ConfigError("device", name, f"one of {CPU}, {', '.join(DEVICES)}, {CUSTOM}")
    return msgspec.structs.replace(DEVICES[name], **changes)


def with_kv_dtype(shape: ModelShape, kv_dtype: str) -> ModelShape:
    """The shape with its KV in another format: "bfloat16", "float32", or "int8" with one float32 scale for each key and
    each value of a head, as the engine keeps it."""
    each = {"bfloat16": 2.0, "float32": 4.0, "int8": (shape.head_dim + 4) / shape.head_dim}[kv_dtype]
    return msgspec.structs.replace(shape, kv_bytes=each)
