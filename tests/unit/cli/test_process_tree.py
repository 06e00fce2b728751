"""CPU time and memory of a process and its children."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

from octavo.cli.process_tree import cpu_s, pss_bytes, rss_bytes, tree, watch_memory

# A child that holds 40 MB and has spent CPU time, under a parent that only waits; both end with their input.
CHILD = "data = bytearray(40 << 20); sum(range(3_000_000)); print('ready', flush=True); input()"
PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {CHILD!r}])"


def test_a_tree_is_counted_with_its_children() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout and process.stdout.readline() == b"ready\n"
        pids = tree(process.pid)
        assert pids[0] == process.pid and len(pids) == 2
        rss, child_rss = rss_bytes(process.pid), rss_bytes(pids[1])
        assert child_rss > 40 << 20 and rss > child_rss
        assert 40 << 20 < pss_bytes(process.pid) <= rss
        assert cpu_s(process.pid) >= cpu_s(pids[1]) > 0

        async def watch() -> int:
            async with watch_memory(process.pid) as peak:
                await asyncio.sleep(0)
            return peak.rss_bytes

        assert asyncio.run(watch()) > 40 << 20
        process.communicate(b"\n")
    assert tree(process.pid) == [] and cpu_s(process.pid) == 0.0 and rss_bytes(process.pid) == 0


def test_nothing_to_watch() -> None:
    async def watch() -> int:
        async with watch_memory(None) as peak:
            await asyncio.sleep(0)
        return peak.rss_bytes

    assert asyncio.run(watch()) == 0
    assert tree(os.getpid())[0] == os.getpid()
