"""How much KV memory is taken, with /proc and the cgroup tree written by the test."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.config import CacheConfig
from octavo.errors import ConfigError
from octavo.worker import kv_memory
from octavo.worker.kv_memory import HostSize, available_bytes, size_host_tier, size_pool

GIB = 1 << 30


class Machine:
    """A /proc and a /sys/fs/cgroup."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.proc, self.cgroup = root / "proc", root / "cgroup"
        (self.proc / "self").mkdir(parents=True)
        monkeypatch.setattr(kv_memory, "PROC", self.proc)
        monkeypatch.setattr(kv_memory, "CGROUP_ROOT", self.cgroup)
        (self.proc / "meminfo").write_text(f"MemTotal: 999 kB\nMemAvailable:   {8 * GIB // 1024} kB\n")

    def v2(self, path: str, limit: int | str, used: int, cached: int = 0) -> None:
        folder = self.cgroup / path
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "memory.max").write_text(f"{limit}\n")
        (folder / "memory.current").write_text(f"{used}\n")
        (folder / "memory.stat").write_text(f"anon 5\ninactive_file {cached}\nactive_file 1\n")

    def v1(self, path: str, limit: int, used: int, cached: int = 0) -> None:
        folder = self.cgroup / "memory" / path
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "memory.limit_in_bytes").write_text(f"{limit}\n")
        (folder / "memory.usage_in_bytes").write_text(f"{used}\n")
        (folder / "memory.stat").write_text(f"inactive_file 3\ntotal_inactive_file {cached}\n")

    def is_in(self, *lines: str) -> None:
        (self.proc / "self" / "cgroup").write_text("".join(f"{line}\n" for line in lines))


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def test_without_cgroups_what_the_kernel_calls_available(machine: Machine) -> None:
    assert available_bytes() == 8 * GIB


def test_a_container_sees_its_limit_at_the_root(machine: Machine) -> None:
    machine.is_in("0::/")
    machine.v2("", 2 * GIB, GIB)
    assert available_bytes() == GIB


def test_a_limit_above_what_is_free_changes_nothing(machine: Machine) -> None:
    machine.v2("", 64 * GIB, GIB)
    assert available_bytes() == 8 * GIB


def test_the_tightest_limit_on_the_way_up_counts(machine: Machine) -> None:
    machine.is_in("0::/user.slice/octavo.service/worker")
    machine.v2("user.slice", 4 * GIB, 2 * GIB)
    machine.v2("user.slice/octavo.service", 3 * GIB, 2 * GIB)
    machine.v2("user.slice/octavo.service/worker", "max", GIB)
    machine.v2("user.slice/other", 1000, 999)
    assert available_bytes() == GIB


def test_file_cache_that_the_kernel_would_drop_is_room(machine: Machine) -> None:
    machine.v2("", 2 * GIB, 2 * GIB, cached=GIB)
    assert available_bytes() == GIB


def test_the_first_version_of_cgroups(machine: Machine) -> None:
    machine.is_in("5:cpu:/elsewhere", "4:memory:/docker/abc", "1:name=systemd:/x")
    machine.v1("docker/abc", 3 * GIB, 2 * GIB, cached=GIB // 2)
    machine.v1("", (1 << 63) - 4096, GIB)
    assert available_bytes() == GIB * 3 // 2


def test_a_path_that_only_the_host_sees_is_passed_over(machine: Machine) -> None:
    machine.is_in("0::/../../kubepods/pod7")
    machine.v2("", 2 * GIB, GIB)
    assert available_bytes() == GIB


def test_more_used_than_allowed_leaves_nothing(machine: Machine) -> None:
    machine.v2("", 1000, 5000)
    assert available_bytes() == 0


def test_a_system_that_tells_nothing(machine: Machine) -> None:
    (machine.proc / "meminfo").unlink()
    assert available_bytes() is None
    machine.v2("", 2 * GIB, GIB)
    assert available_bytes() == GIB


def size(
    available: int | None = 1000, most_blocks: int = 100, workspace: int = 0, **settings: object
) -> kv_memory.KVSize:
    cache = CacheConfig(**settings)  # type: ignore[arg-type]
    return size_pool(
        cache,
        bytes_per_block=10,
        fewest_blocks=3,
        most_blocks=most_blocks,
        free=None if available is None else available - workspace,
        workspace=workspace,
    )


def test_a_share_of_what_is_free() -> None:
    found = size(memory_fraction=0.5, workspace=200)
    assert found.num_blocks == 40
    assert found.reason == (
        "400 B = 40 blocks of 10 B: 0.5 of the 800 B free after loading the weights and leaving 200 B for steps"
    )


def test_steps_need_memory_too() -> None:
    assert size(num_blocks=80, workspace=200).num_blocks == 80
    with pytest.raises(ConfigError, match="num_blocks = 81: must be at most what is free: it needs 810 B of 800 B"):
        size(num_blocks=81, workspace=200)


def test_without_knowing_what_is_free_only_what_is_asked_for_is_taken() -> None:
    assert size(None, num_blocks=9).num_blocks == 9
    assert size(None, kv_cache_memory_bytes=90).num_blocks == 9
    with pytest.raises(ConfigError, match="kv_cache_memory_bytes = None: must be given: this system does not tell"):
        size(None)


def test_never_more_than_can_be_used() -> None:
    found = size(most_blocks=20)
    assert found.num_blocks == 20
    assert "max_num_seqs x max_model_len" in found.reason


def test_bytes_as_asked() -> None:
    assert size(kv_cache_memory_bytes=255).num_blocks == 25


def test_blocks_as_asked() -> None:
    assert size(num_blocks=7).num_blocks == 7


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"num_blocks": 101}, "num_blocks"),
        ({"num_blocks": 2}, "num_blocks"),
        ({"kv_cache_memory_bytes": 1001}, "kv_cache_memory_bytes"),
        ({"kv_cache_memory_bytes": 29}, "kv_cache_memory_bytes"),
        ({"memory_fraction": 0.029}, "memory_fraction"),
    ],
)
def test_what_does_not_fit_is_named(settings: dict[str, object], field: str) -> None:
    with pytest.raises(ConfigError) as error:
        size(**settings)
    assert error.value.field == field
    assert str(error.value.value) in str(error.value)


def host(free: int | None = 1000, **settings: object) -> HostSize:
    cache = CacheConfig(**settings)  # type: ignore[arg-type]
    return size_host_tier(cache, bytes_per_block=10, kv_bytes=400, free=free)


@pytest.mark.parametrize("free", [1000, 100, None])
def test_a_quarter_of_the_kv_memory_to_swap_to(free: int | None) -> None:
    assert host(free) == HostSize(num_blocks=10, reason="100 B to swap to = 10 blocks: a quarter of the KV memory")


def test_swap_space_stays_within_what_is_free() -> None:
    found = host(57)
    assert found.num_blocks == 5
    assert found.reason == (
        "50 B to swap to = 5 blocks: all that is free beside the KV memory, less than a quarter of the KV memory"
    )
    assert host(0).num_blocks == 0


def test_swap_space_as_asked() -> None:
    found = host(swap_space_bytes=205)
    assert (found.num_blocks, found.reason) == (20, "200 B to swap to = 20 blocks: 205 B as asked")
    assert host(swap_space_bytes=0).num_blocks == 0
    assert host(None, swap_space_bytes=5000).num_blocks == 500
    with pytest.raises(ConfigError, match="swap_space_bytes = 1001: must be at most what is free") as error:
        host(swap_space_bytes=1001)
    assert error.value.field == "swap_space_bytes"


def test_no_swap_space_where_nothing_is_ever_swapped() -> None:
    assert host(preemption="recompute") == HostSize(
        num_blocks=0, reason="0 B to swap to = 0 blocks: preemption recomputes"
    )
    assert host(preemption="recompute", swap_space_bytes=50).num_blocks == 5
    assert host(preemption="swap").num_blocks == 10
