"""Accelerators by their published figures."""

from __future__ import annotations

import msgspec


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """One accelerator, with 16-bit weights and arithmetic."""

    name: str
    memory_bytes: float
    """What a program sees of it."""
    bandwidth_bytes_per_s: float
    """Of its memory."""
    flops: float
    """Dense 16-bit operations a second."""
    host_bytes_per_s: float
    """Between pinned host memory and the device, one direction, as reached in practice."""
    allreduce_latency_s: float
    """Least time of an all-reduce among the devices of one machine, its launch included."""
    allreduce_bytes_per_s: float
    """Bytes of the reduced tensor per second, large tensors."""
    watts: float
    """Board power limit."""


_GB = 1e9
_TB = 1e12

DEVICES: dict[str, Device] = {
    device.name: device
    for device in (
        # NVIDIA's data sheets give memory, bandwidth, dense FLOPS and power. PCIe gen 4 x16 moves 24 GB/s of its 32 in
        # practice, gen 5 twice that. All-reduce on A100 NVLink: Vidur's profile of a DGX (50 us; 32 MB in 0.25 ms).
        # On Hopper latency is taken as on the A100 and bandwidth scaled with NVLink, 900 to 600 GB/s; on cards that
        # meet over PCIe the tensor crosses the bus twice at half speed. Both are estimates.
        Device(
            name="a100-40gb",
            memory_bytes=42_405_855_232,
            bandwidth_bytes_per_s=1.555 * _TB,
            flops=312e12,
            host_bytes_per_s=12.5 * _GB,  # 12.6 in, 12.5 out between pinned memory and a 40GB SXM card: vLLM PR 11531
            allreduce_latency_s=50e-6,
            allreduce_bytes_per_s=130 * _GB,
            watts=400,
        ),
        Device(
            name="a100-80gb",
            memory_bytes=85_100 * 1e6,
            bandwidth_bytes_per_s=2.039 * _TB,
            flops=312e12,
            host_bytes_per_s=24 * _GB,
            allreduce_latency_s=50e-6,
            allreduce_bytes_per_s=130 * _GB,
            watts=400,
        ),
        Device(
            name="h100",
            memory_bytes=85_000 * 1e6,
            bandwidth_bytes_per_s=3.35 * _TB,
            flops=989e12,
            host_bytes_per_s=48 * _GB,
            allreduce_latency_s=50e-6,
            allreduce_bytes_per_s=195 * _GB,
            watts=700,
        ),
        Device(
            name="h200",
            memory_bytes=150_000 * 1e6,
            bandwidth_bytes_per_s=4.8 * _TB,
            flops=989e12,
            host_bytes_per_s=48 * _GB,
            allreduce_latency_s=50e-6,
            allreduce_bytes_per_s=195 * _GB,
            watts=700,
        ),
        Device(
            name="l4",
            memory_bytes=23_600 * 1e6,
            bandwidth_bytes_per_s=0.3 * _TB,
            flops=121e12,
            host_bytes_per_s=24 * _GB,
            allreduce_latency_s=50e-6,
            allreduce_bytes_per_s=6 * _GB,
            watts=72,
        ),
        Device(
            name="rtx4090",
            memory_bytes=25_300 * 1e6,
            bandwidth_bytes_per_s=1.008 * _TB,
            flops=165e12,
            host_bytes_per_s=24 * _GB,
            allreduce_latency_s=50e-6,
            allreduce_bytes_per_s=6 * _GB,
            watts=450,
        ),
    )
}
"""By name."""
