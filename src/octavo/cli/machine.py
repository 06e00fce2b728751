"""What this machine is and what it lets us use: CPU, affinity, cgroup limits, memory.

Everything here reads small text files of Linux; elsewhere the value is None.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PROC = Path("/proc")
CGROUP_ROOT = Path("/sys/fs/cgroup")

_NO_LIMIT = 1 << 60
"""cgroup v1 writes "no limit" as a number near 2^63."""

_SHOWN_FEATURES = (
    "sse4_2", "avx", "f16c", "fma", "avx2", "avx_vnni", "avx512f", "avx512bw", "avx512vl", "avx512dq",
    "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16", "asimd", "bf16", "i8mm", "sve",
)  # fmt: skip


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


def cpu_model() -> str:
    """The CPU's own name."""
    for key, value in _cpuinfo():
        if key in ("model name", "Hardware", "Model"):
            return value
    return platform.processor() or platform.machine()


def cpu_features() -> list[str]:
    """Instruction-set extensions that matter here, of those the CPU has."""
    for key, value in _cpuinfo():
        if key in ("flags", "Features"):
            present = set(value.split())
            return [name for name in _SHOWN_FEATURES if name in present]
    return []


def _cpuinfo() -> Iterator[tuple[str, str]]:
    for line in (_read(PROC / "cpuinfo") or "").splitlines():
        key, _, value = line.partition(":")
        yield key.strip(), value.strip()


def affinity() -> int:
    """CPUs this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cgroup_folders(controller: str) -> Iterator[Path]:
    """Folders of this process's cgroup and its ancestors, innermost first; version 2, or version 1's controller."""
    for line in (_read(PROC / "self/cgroup") or "").splitlines():
        _, controllers, name = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        base = CGROUP_ROOT / controllers if controllers else CGROUP_ROOT
        folder = base / name.lstrip("/")
        while folder.is_relative_to(base):
            yield folder
            if folder == base:
                break
            folder = folder.parent


def cpu_quota() -> float | None:
    """CPUs' worth of time the tightest cgroup grants, None without a limit."""
    return min((quota for folder in _cgroup_folders("cpu") if (quota := _quota(folder)) is not None), default=None)


def _quota(folder: Path) -> float | None:
    words = (_read(folder / "cpu.max") or "").split()
    if not words:
        words = [_read(folder / "cpu.cfs_quota_us") or "-1", _read(folder / "cpu.cfs_period_us") or "0"]
    if words[0] == "max" or int(words[0]) <= 0 or int(words[1]) <= 0:
        return None
    return int(words[0]) / int(words[1])


def memory_total() -> int | None:
    """Bytes of memory in the machine."""
    return _meminfo("MemTotal")


def memory_available() -> int | None:
    """Bytes the kernel thinks can be had without swapping."""
    return _meminfo("MemAvailable")


def _meminfo(key: str) -> int | None:
    for line in (_read(PROC / "meminfo") or "").splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    return None


def memory_limit() -> int | None:
    """Bytes the tightest cgroup allows, None without a limit."""
    limits = []
    for folder in _cgroup_folders("memory"):
        text = _read(folder / "memory.max") or _read(folder / "memory.limit_in_bytes") or "max"
        if text != "max" and int(text) < _NO_LIMIT:
            limits.append(int(text))
    return min(limits, default=None)


def versions(*distributions: str) -> dict[str, str | None]:
    """Installed versions, None for what is not installed."""
    from importlib.metadata import PackageNotFoundError, version

    found: dict[str, str | None] = {}
    for name in distributions:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def commit() -> str | None:
    """The commit that this package's source was checked out at, and whether it was changed since; None elsewhere."""
    import subprocess

    git = ["git", "-C", str(Path(__file__).parent)]
    try:  # an installed copy may lie inside somebody else's checkout
        subprocess.run([*git, "ls-files", "--error-unmatch", __file__], capture_output=True, check=True)
        found = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
        changed = subprocess.run([*git, "status", "--porcelain", "-uno"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return found.stdout.strip() + (" with changes" if changed.stdout.strip() else "")


def fingerprint() -> dict[str, Any]:
    """What a benchmark result must be read with. Holds nothing that names the machine or its user."""
    from octavo import __version__

    return {
        "octavo": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "architecture": platform.machine(),
        "cpu": cpu_model(),
        "cpu_features": cpu_features(),
        "cpus": affinity(),
        "cpu_quota": cpu_quota(),
        "memory_bytes": memory_total(),
        "memory_limit_bytes": memory_limit(),
        "load_average": os.getloadavg()[0] if sys.platform != "win32" else None,
    }
