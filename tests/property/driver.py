"""Many random histories, each from its seed: the same operations as the hypothesis machine's, without its cost.

python -m property.driver --seed 7        # from tests/: one history again, shrunk if it fails
python -m property.driver --operations 20000000 --first-seed 1000000
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from property.world import History, draw_history, play

OPERATIONS_PER_HISTORY = (10, 40, 40, 40, 150)
OPERATIONS_PER_PART = 200_000


@dataclass
class Report:
    num_operations: int = 0
    num_histories: int = 0
    events: Counter[str] = field(default_factory=Counter)


def history_of(seed: int) -> History:
    choose = random.Random(seed).choice
    return draw_history(choose, choose(OPERATIONS_PER_HISTORY))


def drive(num_operations: int, first_seed: int = 0, **shape: Any) -> Report:
    """Live histories until so many operations were done: calls of an operation, and steps of a core.

    Args:
        shape: What all of them have in common; see `world.SHAPE`.

    Raises:
        Whatever a history raises, with a note that says how to live it again.
    """
    report = Report()
    while report.num_operations < num_operations:
        seed = first_seed + report.num_histories
        try:
            drawn, operations = history_of(seed)
            world = play((drawn | shape, operations))
        except Exception as error:
            error.add_note(f"again: cd tests; python -m property.driver --seed {seed}")
            raise
        report.num_operations += world.num_operations
        report.num_histories += 1
        report.events.update(world.events())
    return report


def soak(num_operations: int, first_seed: int) -> Report:
    """The same in all processors, in parts; says after each how far it is."""
    total = Report()
    started = time.monotonic()
    num_parts = -(-num_operations // OPERATIONS_PER_PART)
    seeds = range(first_seed, first_seed + num_parts * OPERATIONS_PER_PART, OPERATIONS_PER_PART)
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        for report in pool.map(drive, [OPERATIONS_PER_PART] * num_parts, seeds):
            total.num_operations += report.num_operations
            total.num_histories += report.num_histories
            total.events.update(report.events)
            seconds = time.monotonic() - started
            print(
                f"{total.num_operations} operations in {total.num_histories} histories, {seconds:.0f} s, "
                f"{total.num_operations / seconds:.0f} per second",
                flush=True,
            )
    return total


def failure_of(history: History) -> Exception | None:
    try:
        play(history)
    except Exception as error:
        return error
    return None


def shrink(history: History) -> History:
    """Leave operations out, many at a time first, as long as the history fails."""
    shape, operations = history
    size = max(1, len(operations) // 2)
    while size:
        start = 0
        while start < len(operations):
            fewer = operations[:start] + operations[start + size :]
            if failure_of((shape, fewer)) is not None:
                operations = fewer
            else:
                start += size
        size //= 2
    return shape, operations


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, help="live this one history, and shrink it if it fails")
    parser.add_argument("--operations", type=int, default=200_000)
    parser.add_argument("--first-seed", type=int, default=0)
    options = parser.parse_args()
    if options.seed is None:
        print(dict(soak(options.operations, options.first_seed).events))
        return
    history = history_of(options.seed)
    if failure_of(history) is None:
        print("nothing failed")
        return
    shape, operations = shrink(history)
    print(f"shape = {shape}\noperations = [")
    for operation in operations:
        print(f"    {operation},")
    print("]")
    play((shape, operations))


if __name__ == "__main__":
    main()
