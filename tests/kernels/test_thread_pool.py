"""The thread pool: every tile once, no CPU while idle, as many threads as are allowed, none left behind."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from octavo import _native

COUNTS = (*range(70), 127, 1000, 4096, 100_003)


def run_python(code: str, timeout_s: float = 60) -> str:
    """The output of a Python process of its own."""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=timeout_s)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_every_tile_runs_once(size: int) -> None:
    pool = _native.ThreadPool(size)
    assert pool.size == size
    for count in COUNTS:
        assert _native.count_tiles(pool, count) == [1] * count


@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_every_tile_of_unequal_shares_runs_once(size: int) -> None:
    """Shares may be empty, one of them may hold everything, and whoever has none takes others'."""
    pool, rng = _native.ThreadPool(size), random.Random(size)
    for _ in range(200):
        count = rng.choice((1, 2, size, 97))
        ends = [*sorted(rng.choice((0, count, rng.randint(0, count))) for _ in range(size - 1)), count]
        assert _native.count_tiles(pool, count, ends) == [1] * count
    for ends in ([1] * (size - 1) + [2], [5] * (size + 1), [*range(size - 1), -1]):
        with pytest.raises(ValueError, match="ends must rise to count"):
            _native.count_tiles(pool, 5, ends)


def test_many_short_loops() -> None:
    pool = _native.ThreadPool(3)
    for i in range(5000):
        assert _native.count_tiles(pool, i % 5) == [1] * (i % 5)


def test_loops_after_the_workers_fell_asleep() -> None:
    pool = _native.ThreadPool(3)
    for pause_s in (0.0, 1e-5, 1e-4, 1e-3, 1e-2) * 10:
        time.sleep(pause_s)
        assert _native.count_tiles(pool, 50) == [1] * 50


def test_an_idle_pool_takes_no_cpu() -> None:
    pool = _native.ThreadPool(4)
    _native.count_tiles(pool, 1000)
    time.sleep(0.05)
    before = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - before < 0.02


def test_a_step_that_is_over_leaves_no_thread_awake() -> None:
    """Within a step the workers do not sleep."""
    pool = _native.ThreadPool(4)
    assert 0 < _native.fork_join(pool) < 1
    before = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - before < 0.02


def test_one_thread_after_another_may_use_a_pool() -> None:
    pool, results = _native.ThreadPool(2), []
    for _ in range(20):
        user = threading.Thread(target=lambda: results.extend(_native.count_tiles(pool, 30) for _ in range(50)))
        user.start()
        user.join()
    assert results == [[1] * 30] * 1000


def test_pools_leave_no_threads_behind() -> None:
    """A thread that was joined may stand in /proc a moment longer."""
    output = run_python(
        "import time\n"
        "from pathlib import Path\n"
        "from octavo import _native\n"
        "def num_threads():\n"
        "    return len(list(Path('/proc/self/task').iterdir()))\n"
        "before = num_threads()\n"
        "for i in range(50):\n"
        "    pool = _native.ThreadPool(4)\n"
        "    assert num_threads() == before + 3\n"
        "    if i % 2:\n"
        "        _native.count_tiles(pool, 10)\n"
        "    del pool\n"
        "    while num_threads() > before:\n"
        "        time.sleep(0.001)\n"
        "print('none left')\n"
    )
    assert output == "none left\n"


@pytest.mark.parametrize("size", [-1, 1025, -(2**31), 2**31 - 1])
def test_sizes_are_bounded(size: int) -> None:
    with pytest.raises(ValueError, match=rf"^num_threads = {size}: must be from 1 to 1024"):
        _native.ThreadPool(size)


def test_threads_that_cannot_be_had_are_an_error_not_an_end() -> None:
    """With no address space for their stacks."""
    output = run_python(
        "import resource, time\n"
        "from pathlib import Path\n"
        "from octavo import _native\n"
        "limit = int(Path('/proc/self/statm').read_text().split()[0]) * resource.getpagesize() + (64 << 20)\n"
        "resource.setrlimit(resource.RLIMIT_AS, (limit, limit))\n"
        "try:\n"
        "    _native.ThreadPool(1000)\n"
        "except RuntimeError as error:\n"
        "    print(error)\n"
        "while len(list(Path('/proc/self/task').iterdir())) > 1:\n"
        "    time.sleep(0.001)\n"
        "print(_native.count_tiles(_native.ThreadPool(2), 3))\n"
    )
    error, rest = output.splitlines()
    assert error.startswith("num_threads = 1000: the system grants only ")
    assert rest == "[1, 1, 1]"


def test_a_forked_child_computes_alone_and_ends() -> None:
    """Whether the workers spin, fall asleep or sleep when the process forks."""
    output = run_python(
        "import os, time, warnings\n"
        "from octavo import _native\n"
        "warnings.simplefilter('ignore', DeprecationWarning)\n"
        "pool, codes = _native.ThreadPool(3), set()\n"
        "for i in range(40):\n"
        "    _native.count_tiles(pool, 10)\n"
        "    time.sleep(i % 10 * 2e-5)\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        assert _native.count_tiles(pool, 100) == [1] * 100\n"
        "        del pool\n"
        "        os._exit(7)\n"
        "    codes.add(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
        "print(codes, _native.count_tiles(pool, 3))\n",
        timeout_s=30,
    )
    assert output == "{7} [1, 1, 1]\n"


# --- how many threads ------------------------------------------------------------------------------------------------


def test_the_affinity_bounds_the_default() -> None:
    cpus = sorted(os.sched_getaffinity(0))
    for count in {1, len(cpus)}:
        output = run_python(
            "import os\n"
            "from octavo import _native\n"
            f"os.sched_setaffinity(0, {cpus[:count]})\n"
            "print(_native.usable_cpus('/nowhere'), _native.ThreadPool().size <= "
            f"{count}, _native.ThreadPool(7).size)\n"
        )
        assert output == f"{count} True 7\n"


def test_the_default_is_what_is_usable() -> None:
    assert _native.ThreadPool().size == _native.ThreadPool(0).size == _native.usable_cpus()
    assert 1 <= _native.usable_cpus() <= len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("limit", "cpus"),
    [
        *[("max 100000", 99), ("", 99), ("nonsense", 99), ("100000", 99), ("100000 0", 99), ("-1 100000", 99)],
        *[("10000 100000", 1), ("100000 100000", 1), ("140000 100000", 1), ("25000 50000", 1)],
        *[("190000 100000", 1), ("200000 100000", 2), ("900000000 100000", 99)],
    ],
)
def test_the_quota_of_a_cgroup_bounds_the_default(tmp_path: Path, limit: str, cpus: int) -> None:
    """Rounded down to whole CPUs, at least one; an unreadable limit is none. Version 2 and version 1."""
    expected = min(cpus, len(os.sched_getaffinity(0)))
    v2, v1 = tmp_path / "v2", tmp_path / "v1"
    (v1 / "cpu").mkdir(parents=True)
    v2.mkdir()
    (v2 / "cpu.max").write_text(limit + "\n")
    assert _native.usable_cpus(str(v2)) == expected
    quota, _, period = limit.partition(" ")
    (v1 / "cpu" / "cpu.cfs_quota_us").write_text(quota.replace("max", "-1") + "\n")
    (v1 / "cpu" / "cpu.cfs_period_us").write_text(period + "\n")
    assert _native.usable_cpus(str(v1)) == expected
