"""How much KV memory to take. The answer comes with its arithmetic."""

from __future__ import annotations

from pathlib import Path

import msgspec

from octavo.config import CacheConfig
from octavo.errors import ConfigError

PROC = Path("/proc")
CGROUP_ROOT = Path("/sys/fs/cgroup")
_NO_LIMIT = 1 << 60
"""cgroup v1 writes "no limit" as a number near 2^63."""


class KVSize(msgspec.Struct, frozen=True, kw_only=True):
    """The pool's size, the null block included."""

    num_blocks: int
    reason: str
    """How it came about, in a sentence."""


def available_bytes() -> int | None:
    """Memory this process could still use: what the kernel calls available, within the cgroups' limits.

    None where neither is known.
    """
    known = [room for room in (_meminfo_available(), _cgroup_room()) if room is not None]
    return min(known, default=None)


def size_pool(
    cache: CacheConfig,
    *,
    bytes_per_block: int,
    fewest_blocks: int,
    most_blocks: int,
    free: int | None,
    workspace: int,
) -> KVSize:
    """Choose the number of blocks.

    Args:
        bytes_per_block: Of one block, all layers of its group.
        fewest_blocks: What a sequence of one token needs, the null block included.
        most_blocks: What `max_num_seqs` sequences of `max_model_len` tokens could hold; more would never be used.
        free: Bytes that steps leave of what is free now, weights already loaded; None where the system does not tell.
        workspace: Bytes that steps may take, for the sentence.

    Raises:
        ConfigError: If the memory does not even hold `fewest_blocks`, or a size asked for is more than there is.
    """
    if cache.num_blocks is not None:
        _check_fits("num_blocks", cache.num_blocks, cache.num_blocks * bytes_per_block, free)
        if cache.num_blocks < fewest_blocks:
            raise ConfigError("num_blocks", cache.num_blocks, f"at least {fewest_blocks}, the null block included")
        return KVSize(num_blocks=cache.num_blocks, reason=f"{cache.num_blocks} blocks as asked")
    if cache.kv_cache_memory_bytes is not None:
        _check_fits("kv_cache_memory_bytes", cache.kv_cache_memory_bytes, cache.kv_cache_memory_bytes, free)
        field, budget, why = "kv_cache_memory_bytes", cache.kv_cache_memory_bytes, "as asked"
    elif free is None:
        raise ConfigError("kv_cache_memory_bytes", None, "given: this system does not tell how much memory is free")
    else:
        field, budget = "memory_fraction", int(free * cache.memory_fraction)
        why = (
            f"{cache.memory_fraction:g} of the {size_text(free)} free "
            f"after loading the weights and leaving {size_text(workspace)} for steps"
        )
    num_blocks = min(budget // bytes_per_block, most_blocks)
    if num_blocks < fewest_blocks:
        raise ConfigError(
            field,
            getattr(cache, field),
            f"enough for at least {fewest_blocks} KV blocks of {size_text(bytes_per_block)}; "
            f"only {size_text(budget)} came of it",
        )
    if num_blocks < budget // bytes_per_block:
        why = f"all that max_num_seqs x max_model_len can use, less than {why}"
    taken = size_text(num_blocks * bytes_per_block)
    return KVSize(num_blocks=num_blocks, reason=f"{taken} = {num_blocks} blocks of {size_text(bytes_per_block)}: {why}")


class HostSize(msgspec.Struct, frozen=True, kw_only=True):
    """The host tier's size."""

    num_blocks: int
    reason: str
    """How it came about, in a sentence."""


def size_host_tier(cache: CacheConfig, *, bytes_per_block: int, kv_bytes: int, free: int | None) -> HostSize:
    """Choose the number of slots to swap to: what was asked for, or a quarter of the KV memory as far as it fits.

    Args:
        kv_bytes: Of the pool.
        free: Bytes left beside weights, steps and the pool; None where the system does not tell.

    Raises:
        ConfigError: If more was asked for than there is.
    """
    asked = cache.swap_space_bytes
    if asked is not None:
        _check_fits("swap_space_bytes", asked, asked, free)
        budget, why = asked, f"{size_text(asked)} as asked"
    elif cache.kv_policy != "paged":
        budget, why = 0, f"nobody is preempted with kv_policy {cache.kv_policy}"
    elif cache.preemption == "recompute":
        budget, why = 0, "preemption recomputes"
    else:
        budget, why = kv_bytes // 4, "a quarter of the KV memory"
        if free is not None and free < budget:
            budget, why = free, f"all that is free beside the KV memory, less than {why}"
    num_blocks = budget // bytes_per_block
    taken = size_text(num_blocks * bytes_per_block)
    return HostSize(num_blocks=num_blocks, reason=f"{taken} to swap to = {num_blocks} blocks: {why}")


def _check_fits(field: str, value: int, needed: int, free: int | None) -> None:
    if free is not None and needed > free:
        raise ConfigError(field, value, f"at most what is free: it needs {size_text(needed)} of {size_text(free)}")


def size_text(num_bytes: float) -> str:
    """Bytes for people."""
    for unit in ("B", "KiB", "MiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.4g} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.2f} GiB"


def _meminfo_available() -> int | None:
    try:
        lines = (PROC / "meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def _cgroup_room() -> int | None:
    """Bytes left below the tightest memory limit on the way from this process's cgroup to the root; None without."""
    rooms = [room for kind, folder in _cgroup_folders() if (room := _room(kind, folder)) is not None]
    return min(rooms, default=None)


class _CgroupFiles(msgspec.Struct, frozen=True):
    """Names in one version of the cgroup file system."""

    limit: str
    used: str
    reclaimable: str
    """Key in memory.stat: file cache that the kernel drops before it refuses memory."""


_V2 = _CgroupFiles("memory.max", "memory.current", "inactive_file")
_V1 = _CgroupFiles("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def _cgroup_folders() -> list[tuple[_CgroupFiles, Path]]:
    """This process's cgroup and all above it. In a container the path may name folders that only the host sees."""
    try:
        lines = (PROC / "self/cgroup").read_text().splitlines()
    except OSError:
        lines = []
    found = [(_V2, CGROUP_ROOT), (_V1, CGROUP_ROOT / "memory")]
    for line in lines:
        controllers, _, path = line.partition(":")[2].partition(":")
        if controllers not in ("", "memory"):
            continue
        kind, root = found[0] if controllers == "" else found[1]
        own = root / path.strip("/")
        found += [(kind, folder) for folder in (own, *own.parents) if folder.is_relative_to(root) and folder != root]
    return found


def _room(kind: _CgroupFiles, folder: Path) -> int | None:
    try:
        limit = (folder / kind.limit).read_text().strip()
        used = int((folder / kind.used).read_text())
        stat = (folder / "memory.stat").read_text()
    except (OSError, ValueError):
        return None
    if not limit.isdigit() or int(limit) >= _NO_LIMIT:
        return None
    reclaimable = next(
        (int(line.split()[1]) for line in stat.splitlines() if line.startswith(f"{kind.reclaimable} ")), 0
    )
    return max(0, int(limit) - max(0, used - reclaimable))
