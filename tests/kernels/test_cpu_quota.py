"""Quotas of the cgroups a process is in: its own may lie far below the top of the hierarchy."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from octavo import _native

CPUS = len(os.sched_getaffinity(0))


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def v1(folder: str, quota: int) -> dict[str, str]:
    return {f"{folder}/cpu.cfs_quota_us": f"{quota}\n", f"{folder}/cpu.cfs_period_us": "100000\n"}


@pytest.mark.parametrize(
    ("memberships", "files", "limited"),
    [
        ("0::/system.slice/octavo.service\n", {"system.slice/octavo.service/cpu.max": "100000 100000\n"}, True),
        ("0::/a/b/c\n", {"a/cpu.max": "100000 100000\n", "a/b/c/cpu.max": "max 100000\n"}, True),
        ("0::/a\n", {"b/cpu.max": "100000 100000\n", "a/cpu.max": "max 100000\n"}, False),
        ("0::/../elsewhere\n", {"cpu.max": "100000 100000\n"}, True),
        ("12:cpuset:/\n1:name=systemd:/\n0::/x\n", {"unified/x/cpu.max": "100000 100000\n"}, True),
        ("3:cpu,cpuacct:/docker/1\n", v1("cpu,cpuacct/docker/1", 100000), True),
        ("3:cpu,cpuacct:/docker/1\n", v1("cpu/docker", 100000), True),
        ("3:cpuacct,cpu:/x\n", v1("cpu/x", -1), False),
        ("3:cpuset:/x\n", v1("cpuset/x", 100000), False),
        ("", v1("cpu", 100000), True),
        ("0::/a\n", {"a/cpu.max": "199000 100000\n"}, True),
        ("0::/a\n", {"a/cpu.max": "5000 100000\n"}, True),
        ("no colons\n:\n::\n0::relative\n", {"relative/cpu.max": "100000 100000\n"}, False),
    ],
)
def test_every_cgroup_above_the_process_counts(
    tmp_path: Path, memberships: str, files: dict[str, str], limited: bool
) -> None:
    write(tmp_path, {"self": memberships, **{f"fs/{name}": text for name, text in files.items()}})
    assert _native.usable_cpus(str(tmp_path / "fs"), str(tmp_path / "self")) == (1 if limited else CPUS)


def test_several_callers_may_share_a_pool() -> None:
    pool = _native.ThreadPool(2)
    results: list[list[int]] = []
    callers = [
        threading.Thread(target=lambda: results.extend(_native.count_tiles(pool, 40) for _ in range(300)))
        for _ in range(3)
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert results == [[1] * 40] * 900
