"""Block operations per second in pure Python: admit, grow, release; the same whatever the size of the pool.

    python benchmarks/allocator.py [--sizes 1000 1000000] [--json FILE]

A block operation is one block bound to a sequence or given back by it. 15 sequences at a time are admitted with a
prompt of 32 blocks, grow by 32 more, one at a time as a decode does, and are released. Both sizes take turns, and the
least CPU time of each counts. Three ways, so that what hashing and accounts cost stands apart:

    blocks    the pool alone: acquire and release, with the reference counts and the account of the tenant
    sequences the whole manager without a prefix index: promises, block tables, the plan's entries
    indexed   the same with the index, in a pool full of cached blocks: each block is hashed, looked up and made known,
              and each new one evicts an old one
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

from octavo.cli.bench_report import save
from octavo.core.accounts import Account, Accounts
from octavo.core.block_keys import ModelFingerprint
from octavo.core.block_pool import BlockPool
from octavo.core.kv_cache_manager import KVCacheManager
from octavo.core.kv_spec import KVGroup, KVSpec
from octavo.core.prefix_index import PrefixIndex
from octavo.core.request import Sequence, make_sequences
from octavo.core.step import StepPlan
from octavo.messages import EngineRequest, SamplingParams

BLOCK_SIZE, NUM_SEQS, PROMPT_BLOCKS, ANSWER_BLOCKS = 16, 15, 32, 32
GATE = 1_000_000
SPEC = KVSpec(groups=(KVGroup(layers=(0,)),), block_size=BLOCK_SIZE, bytes_per_block=1)
OPERATIONS = NUM_SEQS * (PROMPT_BLOCKS + ANSWER_BLOCKS) * 2
"""Of one turn: every block is bound once and given back once."""


class Turns:
    """Gives each turn a text of its own, so that with an index nothing is a hit and every turn evicts."""

    def __init__(self, num_blocks: int, is_indexed: bool) -> None:
        self.pool = BlockPool(num_blocks + 1)
        index = None
        if is_indexed:
            fingerprint = ModelFingerprint(
                weights="", kv_dtype="", block_size=BLOCK_SIZE, layout_version=0, kernel_path=""
            )
            index = PrefixIndex(SPEC, fingerprint, b"a secret of the benchmark")
        self.kv = KVCacheManager(SPEC, self.pool, index, max_chunk=1 << 20, depth=1)
        self.account = Accounts().open("tenant")
        self._num_turns = 0

    def sequences(self) -> list[Sequence]:
        self._num_turns += 1
        return [_sequence(self._num_turns * NUM_SEQS + i, self.account) for i in range(NUM_SEQS)]


def _sequence(number: int, account: Account) -> Sequence:
    length = PROMPT_BLOCKS * BLOCK_SIZE
    request = EngineRequest(
        request_id=number,
        token_ids=[number & 0xFFFF, number >> 16, *range(length - 2)],
        num_prompt_tokens=length,
        sampling=SamplingParams(max_tokens=ANSWER_BLOCKS * BLOCK_SIZE),
        seed=0,
        max_tokens=ANSWER_BLOCKS * BLOCK_SIZE,
    )
    (sequence,) = make_sequences(request, number, 1, account)
    sequence.row = number % NUM_SEQS
    sequence.answer = list(range(ANSWER_BLOCKS * BLOCK_SIZE))
    sequence.num_tokens = length
    return sequence


def blocks(turns: Turns) -> float:
    """Seconds of a turn of the pool alone."""
    pool, account = turns.pool, turns.account
    begin = time.process_time()
    tables = [pool.acquire(PROMPT_BLOCKS, account) for _ in range(NUM_SEQS)]
    for _ in range(ANSWER_BLOCKS):
        for table in tables:
            table += pool.acquire(1, account)
    for table in tables:
        pool.release(table)
    return time.process_time() - begin


def sequences(turns: Turns) -> float:
    """Seconds of a turn of the manager; making the requests is not counted."""
    kv, pool = turns.kv, turns.pool
    made = turns.sequences()
    plan = StepPlan(1, [], [], [], [], [], [])
    prompt, end = PROMPT_BLOCKS * BLOCK_SIZE, (PROMPT_BLOCKS + ANSWER_BLOCKS) * BLOCK_SIZE
    begin = time.process_time()
    for sequence in made:
        kv.identify(sequence)
        kv.admit(sequence, kv.match(sequence), prompt, plan)
        kv.commit(sequence, prompt)
    for length in range(prompt + BLOCK_SIZE, end + 1, BLOCK_SIZE):
        for sequence in made:
            sequence.num_tokens = sequence.num_computed_tokens = length
            kv.grow(sequence, length, plan)
            kv.commit(sequence, length)
    for sequence in made:
        pool.release(kv.detach(sequence))
    return time.process_time() - begin


WAYS: dict[str, tuple[bool, Callable[[Turns], float]]] = {
    "blocks": (False, blocks),
    "sequences": (False, sequences),
    "indexed": (True, sequences),
}


def measure(sizes: list[int], repeats: int) -> dict[str, dict[int, float]]:
    """Block operations per second, by way and size of the pool."""
    figures: dict[str, dict[int, float]] = {}
    for name, (is_indexed, run) in WAYS.items():
        turns = {size: Turns(size, is_indexed) for size in sizes}
        for each in turns.values():
            while is_indexed and each.pool.num_free > OPERATIONS // 2:  # in service a pool is full of cached blocks
                run(each)
        best = dict.fromkeys(sizes, float("inf"))
        for _ in range(repeats):
            for size in sizes:
                best[size] = min(best[size], run(turns[size]))
        figures[name] = {size: OPERATIONS / seconds for size, seconds in best.items()}
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=[1_000, 1_000_000], metavar="N", help="blocks in the pool"
    )
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    fewest = NUM_SEQS * (PROMPT_BLOCKS + ANSWER_BLOCKS)
    if min(args.sizes) < fewest:
        parser.error(f"argument --sizes: a pool needs {fewest} blocks at least")
    figures = measure(args.sizes, args.repeats)
    print(f"{'million operations/s':<22}" + "".join(f"{size:>12,}" for size in args.sizes) + f"{'last/first':>12}")
    for name, found in figures.items():
        rates = [found[size] for size in args.sizes]
        print(f"{name:<22}" + "".join(f"{rate / 1e6:>12.2f}" for rate in rates) + f"{rates[-1] / rates[0]:>12.2f}")
    verdict = "met" if min(figures["sequences"].values()) >= GATE else "missed"
    print(f"gate of {GATE / 1e6:g} million admit, grow and release operations a second: {verdict}")
    if args.json:
        save(Path(args.json), {"operations": OPERATIONS, "repeats": args.repeats}, {"operations_per_s": figures})


if __name__ == "__main__":
    main()
