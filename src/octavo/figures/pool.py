"""Jobs in worker processes, the longest first; those that measure time afterwards, here and alone."""

from __future__ import annotations

import multiprocessing
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

from octavo.errors import OctavoError
from octavo.figures.figure import Job, Numbers


class Done(NamedTuple):
    """A finished job."""

    numbers: Numbers
    seconds: float
    """Processor time of its process: what else the machine does leaves it alone."""


Watcher = Callable[[Job, Done], None]

_LOOK_S = 0.2
"""Between looks whether Ctrl-C was pressed."""


def run_jobs(jobs: Iterable[Job], num_workers: int, watch: Watcher = lambda job, done: None) -> dict[Job, Done]:
    """Run each distinct job once.

    Args:
        jobs: Equal ones are one.
        num_workers: Processes; with 1 everything runs in this one.
        watch: Told of each job that is done.

    Raises:
        OctavoError: If a job failed or its process died; it names the job. No worker is left behind, whatever happens.
    """
    distinct = sorted(dict.fromkeys(jobs), key=lambda job: -job.weight)
    together = [job for job in distinct if not job.is_alone]
    alone = [job for job in distinct if job.is_alone]
    results: dict[Job, Done] = {}

    def keep(job: Job, done: Done) -> None:
        results[job] = done
        watch(job, done)

    num_workers = min(num_workers, len(together))
    if num_workers > 1:
        _run_apart(together, num_workers, keep)
    else:
        _run_here(together, keep)
    _run_here(alone, keep)
    return results


def _run_here(jobs: list[Job], keep: Watcher) -> None:
    for job in jobs:
        begin = time.process_time()
        numbers = job.run()
        keep(job, Done(numbers, time.process_time() - begin))


def _run_apart(jobs: list[Job], num_workers: int, keep: Watcher) -> None:
    # A fresh interpreter each: a fork would copy whatever threads and locks this process has.
    context = multiprocessing.get_context("spawn")
    workers: dict[Connection, BaseProcess] = {}
    waiting, busy = jobs[::-1], dict[Connection, Job]()
    with _noted_ctrl_c() as look:
        try:
            for _ in range(num_workers):
                ours, theirs = context.Pipe()
                process = context.Process(target=_work, args=(theirs,), daemon=True)
                with _deaf_children():
                    process.start()
                workers[ours] = process
                theirs.close()
                _hand_out(ours, waiting, busy)
                look()
            while busy:
                for pipe in wait(list(busy), timeout=_LOOK_S):
                    assert isinstance(pipe, Connection)
                    keep(*_receive(pipe, busy))
                    _hand_out(pipe, waiting, busy)
                look()
        finally:
            _stop(workers)


@contextmanager
def _noted_ctrl_c() -> Iterator[Callable[[], None]]:
    """A function that raises KeyboardInterrupt if Ctrl-C was pressed, which by itself raises nothing meanwhile: in the
    middle of a start it would leave half a child, and in a finaliser it would be swallowed."""
    pressed: list[int] = []

    def look() -> None:
        if pressed:
            raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield look
        return
    before = signal.signal(signal.SIGINT, lambda number, frame: pressed.append(number))
    try:
        yield look
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _deaf_children() -> Iterator[None]:
    """Processes started meanwhile never hear Ctrl-C, which reaches the whole group: the parent ends its workers itself.
    Children inherit the mask."""
    resource_tracker.ensure_running()  # else the first start does it, and unblocks the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _hand_out(pipe: Connection, waiting: list[Job], busy: dict[Connection, Job]) -> None:
    if waiting:
        busy[pipe] = job = waiting.pop()
        pipe.send(job)


def _receive(pipe: Connection, busy: dict[Connection, Job]) -> tuple[Job, Done]:
    job = busy.pop(pipe)
    try:
        answer: Any = pipe.recv()
    except EOFError:
        raise OctavoError(f"the process that ran {job.label} died; was there too little memory?") from None
    if isinstance(answer, str):
        raise OctavoError(f"{job.label} failed:\n{answer}")
    return job, answer


def _stop(workers: dict[Connection, BaseProcess]) -> None:
    for pipe, process in workers.items():
        pipe.close()
        process.terminate()
    for process in workers.values():
        process.join()


def _work(pipe: Connection) -> None:
    """A worker: jobs in, what came of them out, until the other end is closed."""
    while True:
        try:
            job: Job = pipe.recv()
        except EOFError:
            return
        begin = time.process_time()
        try:
            answer: Done | str = Done(job.run(), time.process_time() - begin)
        except Exception:
            answer = traceback.format_exc()
        try:
            pipe.send(answer)
        except OSError:  # nobody waits for it any more
            return
