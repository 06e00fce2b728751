"""How many KV blocks an accelerator has room for."""

from __future__ import annotations

import msgspec

from octavo.core.kv_spec import KVSpec
from octavo.errors import ConfigError
from octavo.sim.devices import Device
from octavo.sim.model_shape import ModelShape

MEMORY_SHARE = 0.95
"""Of the memory that a program sees. This and the next are the rule of the paper's artifact."""

_RESERVED_BYTES = 1 << 30
"""For libraries and kernels, per device."""


class DeviceMemory(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes on each device."""

    usable_bytes: float
    weight_bytes: float
    workspace_bytes: float
    """Of steps, and reserved."""
    block_bytes: float
    num_blocks: int


def device_memory(
    shape: ModelShape,
    device: Device,
    num_devices: int,
    *,
    kv_spec: KVSpec,
    max_num_batched_tokens: int,
    share: float = MEMORY_SHARE,
    kv_bytes: float | None = None,
    num_blocks: int | None = None,
) -> DeviceMemory:
    """The blocks that fit beside weights and activations, as the paper's artifact counts them:

        (share x memory - weights - activations - 1 GiB) / bytes of a block

    with activations of twice the widest layer and its input, or twice the logits, whichever is more, for every token of
    a step. Each of several devices has its part of the weights, of the layer and of every block.

    Args:
        kv_spec: How the shape's KV is kept.
        kv_bytes: KV memory over all devices, instead of what is left.
        num_blocks: Blocks, instead of what is left.

    Raises:
        ConfigError: If the weights do not fit, or what is asked for does not, or no token does, with the numbers.
    """
    if shape.num_heads % num_devices:
        raise ConfigError("num_devices", num_devices, f"a divisor of {shape.name}'s {shape.num_heads} heads")
    usable = device.memory_bytes * share
    weights = shape.total_bytes / num_devices
    layer = 2 * (max(3 * shape.hidden, shape.widest_ffn) / num_devices + shape.hidden)
    workspace = max(layer, 2 * shape.vocab) * max_num_batched_tokens * 2 + _RESERVED_BYTES
    block = kv_spec.bytes_per_block / num_devices
    fewest = kv_spec.peak_blocks(1, 1)
    left = usable - weights - workspace
    if left < fewest * block:
        raise ConfigError("num_devices", num_devices, _more(shape, device, num_devices, usable, weights, workspace))
    fitting = int(left / block)
    wanted = num_blocks if num_blocks is not None else fitting
    if kv_bytes is not None and num_blocks is None:
        wanted = int(kv_bytes / num_devices / block)
    if not fewest <= wanted <= fitting:
        field = "num_blocks" if num_blocks is not None else "kv_cache_memory_bytes"
        value = num_blocks if num_blocks is not None else kv_bytes
        raise ConfigError(field, value, f"from {fewest} to {fitting} blocks of {_gb(block)} on each {device.name}")
    return DeviceMemory(
        usable_bytes=usable, weight_bytes=weights, workspace_bytes=workspace, block_bytes=block, num_blocks=wanted
    )


def _more(shape: ModelShape, device: Device, count: int, usable: float, weights: float, workspace: float) -> str:
    return (
        f"more: {shape.name}'s weights take {_gb(weights)} and steps {_gb(workspace)} on each of {count} "
        f"{device.name}: nothing is left for KV of the {_gb(usable)} that may be used of its {_gb(device.memory_bytes)}"
    )


def _gb(num_bytes: float) -> str:
    return f"{num_bytes / 1e9:.3g} GB" if num_bytes >= 1e8 else f"{num_bytes / 1e6:.3g} MB"
