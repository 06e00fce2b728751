"""Reading the machine: cgroup trees of both versions, written out in a folder."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from octavo.cli import machine


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty /sys/fs/cgroup and /proc."""
    monkeypatch.setattr(machine, "CGROUP_ROOT", tmp_path / "cgroup")
    monkeypatch.setattr(machine, "PROC", tmp_path / "proc")
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def test_nothing_to_read_means_no_limit(system: Path) -> None:
    assert machine.cpu_quota() is None and machine.memory_limit() is None and machine.memory_available() is None
    assert machine.cpu_features() == []


def test_version_2_takes_the_tightest_limit_on_the_way_up(system: Path) -> None:
    write(system / "proc/self/cgroup", "0::/a/b")
    write(system / "cgroup/a/b/cpu.max", "max 100000")
    write(system / "cgroup/a/cpu.max", "150000 100000")
    write(system / "cgroup/cpu.max", "400000 100000")
    write(system / "cgroup/a/b/memory.max", "3000000000")
    write(system / "cgroup/a/memory.max", "max")
    assert machine.cpu_quota() == 1.5
    assert machine.memory_limit() == 3_000_000_000


def test_version_1(system: Path) -> None:
    write(system / "proc/self/cgroup", "4:memory:/job\n3:cpu,cpuacct:/job\n1:name=systemd:/job")
    write(system / "cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "50000")
    write(system / "cgroup/cpu,cpuacct/job/cpu.cfs_period_us", "100000")
    write(system / "cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1")
    write(system / "cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000")
    write(system / "cgroup/memory/job/memory.limit_in_bytes", "9223372036854771712")
    write(system / "cgroup/memory/memory.limit_in_bytes", "1000000000")
    assert machine.cpu_quota() == 0.5
    assert machine.memory_limit() == 1_000_000_000


def test_a_container_sees_its_own_limit_at_the_root(system: Path) -> None:
    write(system / "proc/self/cgroup", "0::/")
    write(system / "cgroup/cpu.max", "200000 100000")
    assert machine.cpu_quota() == 2.0


def test_cpuinfo_and_meminfo(system: Path) -> None:
    write(system / "proc/cpuinfo", "processor : 0\nmodel name : Fast CPU\nflags : fpu avx2 avx512_bf16 fma")
    write(system / "proc/meminfo", "MemTotal: 1000 kB\nMemAvailable: 500 kB")
    assert machine.cpu_model() == "Fast CPU"
    assert machine.cpu_features() == ["fma", "avx2", "avx512_bf16"]
    assert (machine.memory_total(), machine.memory_available()) == (1_024_000, 512_000)


def test_the_fingerprint_is_json_and_names_no_one() -> None:
    import getpass
    import socket

    text = json.dumps(machine.fingerprint())
    assert socket.gethostname() not in text and f'"{getpass.getuser()}"' not in text
    assert machine.fingerprint()["cpus"] >= 1


def test_versions_of_what_is_and_is_not_installed() -> None:
    found = machine.versions("octavo", "no-such-distribution")
    assert found["octavo"] and found["no-such-distribution"] is None


def test_the_commit_is_named_only_where_the_source_is_checked_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    source = tmp_path / "machine.py"
    monkeypatch.setattr(machine, "__file__", str(source))
    source.write_text("1")
    assert machine.commit() is None, "no checkout"
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "x"], check=True)
    assert machine.commit() is None, "somebody else's checkout"
    subprocess.run([*git, "add", "machine.py"], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "y"], check=True)
    head = subprocess.run([*git, "rev-parse", "--short", "HEAD"], check=True, capture_output=True, text=True)
    assert machine.commit() == head.stdout.strip()
    source.write_text("2")
    assert machine.commit() == head.stdout.strip() + " with changes"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert machine.commit() is None, "no git"
