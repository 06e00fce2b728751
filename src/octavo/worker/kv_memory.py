"""How much KV memory to take. The answer comes with its arithmetic."""

from __future__ import annotations

from pathlib import Path

import msgspec

from octavo.config import CacheConfig
from octavo.errors import ConfigError

_MIB = 1 << 20


class KVSize(msgspec.Struct, frozen=True, kw_only=True):
    """The pool's size, the null block included."""

    num_blocks: int
    reason: str
    """How it came about, in a sentence."""


def available_bytes() -> int:
    """Memory this process could still use: what the kernel calls available, within the cgroup's limit."""
    free = _meminfo_available()
    room = _cgroup_room()
    return free if room is None else min(free, room)


def size_pool(cache: CacheConfig, *, bytes_per_block: int, most_blocks: int, available: int) -> KVSize:
    """Choose the number of blocks.

    Args:
        bytes_per_block: Of one block, all layers of its group.
        most_blocks: What `max_num_seqs` sequences of `max_model_len` tokens could hold; more would never be used.
        available: Bytes that are free now, weights already loaded.

    Raises:
        ConfigError: If the memory does not even hold two blocks, or a size asked for is more than there is.
    """
    if cache.num_blocks is not None:
        _check_fits("num_blocks", cache.num_blocks, cache.num_blocks * bytes_per_block, available)
        return KVSize(num_blocks=cache.num_blocks, reason=f"{cache.num_blocks} blocks as asked")
    if cache.kv_cache_memory_bytes is not None:
        _check_fits("kv_cache_memory_bytes", cache.kv_cache_memory_bytes, cache.kv_cache_memory_bytes, available)
        budget, why = cache.kv_cache_memory_bytes, "as asked"
    else:
        budget = int(available * cache.memory_fraction)
        why = f"{cache.memory_fraction:g} of the {_size(available)} free after loading the weights"
    num_blocks = budget // bytes_per_block
    if num_blocks < 2:
        raise ConfigError(
            "memory_fraction" if cache.kv_cache_memory_bytes is None else "kv_cache_memory_bytes",
            cache.memory_fraction if cache.kv_cache_memory_bytes is None else cache.kv_cache_memory_bytes,
            f"enough for at least two KV blocks of {_size(bytes_per_block)}; only {_size(budget)} came of it",
        )
    if num_blocks > most_blocks:
        why = f"all that max_num_seqs x max_model_len can use, less than {why}"
    num_blocks = min(num_blocks, most_blocks)
    return KVSize(
        num_blocks=num_blocks,
        reason=f"{_size(num_blocks * bytes_per_block)} = {num_blocks} blocks of {_size(bytes_per_block)}: {why}",
    )


def _check_fits(field: str, value: int, needed: int, available: int) -> None:
    if needed > available:
        raise ConfigError(field, value, f"at most what is free: it needs {_size(needed)} of {_size(available)}")


def _size(num_bytes: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.4g} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.2f} GiB"


def _meminfo_available() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise ConfigError("memory_fraction", "automatic", "given as kv_cache_memory_bytes: /proc/meminfo tells nothing")


def _cgroup_room() -> int | None:
    """Bytes left below the memory limit of this process's cgroup (v2, else v1); None without a limit."""
    pairs = (
        ("memory.max", "memory.current", Path("/sys/fs/cgroup")),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", Path("/sys/fs/cgroup/memory")),
    )
    for limit_name, used_name, folder in pairs:
        try:
            limit, used = (folder / limit_name).read_text().strip(), (folder / used_name).read_text()
        except OSError:
            continue
        if limit.isdigit() and int(limit) < 1 << 60:
            return max(0, int(limit) - int(used))
    return None
