"""Where a forward pass goes: the time of every kind of op, as the CPU back end runs them and one by one.

    python benchmarks/forward_profile.py [MODEL] [--sequences 1 16] [--context 512] [--threads 1] [--cpu-time]

A step is one new token for each sequence, or `--new-tokens` of them, after `--context` earlier ones. Both programs are
compiled from the same weights and run in turn: `joined` as served, `apart` with every op of the protocol by itself.
The medians of `--repeats` steps are summed by kind of op; "steps" is the median of whole steps without a clock in them.
`sampling` is one greedy `sample` of the step's logits, and "greedy steps" are steps that give tokens instead of logits.

With `--cpu-time`, which needs `--threads 1`, the clock is the thread's CPU time: it says the same on a busy machine.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from octavo.backends import cpu
from octavo.backends.cpu import CpuBackend, CpuProgram
from octavo.backends.protocol import KVShape, SampleBatch, StepBatch
from octavo.cli.bench_report import save
from octavo.config import EngineConfig
from octavo.engine.build import find_files
from octavo.models.decoder import decoder
from octavo.models.families import decoder_spec
from octavo.models.loader import load
from octavo.weights.sources import open_checkpoint

BLOCK_SIZE = 32
WHOLE = ("sampling", "steps", "greedy steps")


class Model:
    """The weights, and programs over one KV memory, fused and not."""

    def __init__(self, args: argparse.Namespace) -> None:
        num_seqs, length = max(args.sequences), args.context + args.new_tokens
        files = find_files(EngineConfig.of(model=args.model))
        self.dtype = CpuBackend.default_dtype(args.isa)
        self.backend = CpuBackend(self.dtype, num_threads=args.threads, isa=args.isa)
        checkpoint = open_checkpoint(files, num_threads=args.threads)
        self.spec = decoder_spec(checkpoint.config)
        weights = load(checkpoint, self.spec, self.backend, self.dtype, args.quantization)
        checkpoint.close()
        per_seq = -(-length // BLOCK_SIZE)
        shape = KVShape(
            layer_groups=tuple(0 for _ in range(self.spec.num_layers)),
            num_kv_heads=self.spec.num_kv_heads,
            head_dim=self.spec.head_dim,
            dtype=self.dtype,
            block_size=BLOCK_SIZE,
            num_blocks=1 + num_seqs * per_seq,
            max_num_seqs=num_seqs,
            max_blocks_per_seq=per_seq,
        )
        kv = self.backend.allocate_kv(shape)
        for block in range(shape.num_blocks):  # memory never written is one page that caches hold
            kv.import_block(block, bytes(shape.bytes_per_block))
        kv.block_tables[0] = 1 + np.arange(num_seqs * per_seq, dtype=np.int32).reshape(num_seqs, per_seq)
        build = decoder(self.spec, weights)
        max_tokens = num_seqs * args.new_tokens
        self.programs = {"joined": self.backend.compile(build, kv, max_tokens)}
        with mock.patch.object(cpu, "fuse", lambda calls, result: calls):
            self.programs["apart"] = self.backend.compile(build, kv, max_tokens)

    def step(self, num_seqs: int, context: int, new: int) -> StepBatch:
        tokens = np.random.default_rng(0).integers(0, self.spec.vocab_size, num_seqs * new)
        starts = np.arange(num_seqs + 1, dtype=np.int32) * new
        return StepBatch(
            token_ids=tokens.astype(np.int32),
            positions=np.tile(np.arange(context, context + new, dtype=np.int32), num_seqs),
            batch_rows=np.arange(num_seqs, dtype=np.int32),
            query_start_loc=starts,
            seq_lens=np.full(num_seqs, context + new, np.int32),
            logits_tokens=starts[1:] - 1,
        )


def op_seconds(
    programs: dict[str, CpuProgram], batch: StepBatch, repeats: int, cpu_time: bool
) -> dict[str, dict[str, float]]:
    """Median seconds of each op, summed by its name, for each program."""
    runs: dict[str, list[list[tuple[str, float]]]] = defaultdict(list)
    for name, program in [*programs.items()] * repeats:
        program._native.start_profile(cpu_time)
        program.run(batch)
        runs[name].append(program._native.profile())
        program._native.stop_profile()
    total: dict[str, dict[str, float]] = {name: defaultdict(float) for name in programs}
    for name, profiles in runs.items():
        for ops in zip(*profiles, strict=True):
            total[name][ops[0][0]] += statistics.median(seconds for _, seconds in ops)
    return total


def greedy(num_rows: int) -> SampleBatch:
    """Nothing but the largest logit."""
    zeros, ones = np.zeros(num_rows, np.float32), np.ones(num_rows, np.float32)
    ints, none = np.zeros(num_rows, np.int32), np.zeros(0, np.int32)
    starts = np.zeros(num_rows + 1, np.int64)
    return SampleBatch(
        temperature=zeros,
        top_k=ints,
        top_p=ones,
        min_p=zeros,
        repetition_penalty=ones,
        presence_penalty=zeros,
        frequency_penalty=zeros,
        seed=np.zeros(num_rows, np.int64),
        sequence_index=ints,
        position=ints,
        history_start=starts,
        history=none,
        num_prompt=ints,
        bias_start=starts,
        bias_ids=none,
        bias_values=np.zeros(0, np.float32),
        banned_start=starts,
        banned_ids=none,
        mask_index=ints - 1,
        masks=np.zeros((0, 0), np.uint32),
        num_logprobs=ints - 1,
    )


def timed(run: Callable[[], Any], clock: Callable[[], float]) -> float:
    start = clock()
    run()
    return clock() - start


def measure(model: Model, num_seqs: int, args: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Milliseconds by program and kind of op."""
    clock = time.thread_time if args.cpu_time else time.perf_counter
    batch = model.step(num_seqs, args.context, args.new_tokens)
    steps: dict[str, list[float]] = defaultdict(list)
    greedy_steps: dict[str, list[float]] = defaultdict(list)
    for name, program in [*model.programs.items()] * (args.repeats + 1):
        steps[name].append(timed(partial(program.run, batch), clock))
        greedy_steps[name].append(timed(partial(program.run_greedy, batch), clock))
    result = op_seconds(model.programs, batch, args.repeats, args.cpu_time)
    for name, seconds in result.items():
        sample = partial(model.backend.sample, model.programs[name].run(batch), greedy(num_seqs))
        seconds["sampling"] = statistics.median(timed(sample, clock) for _ in range(9))
        seconds["steps"] = statistics.median(steps[name][1:])
        seconds["greedy steps"] = statistics.median(greedy_steps[name][1:])
    return {name: {op: s * 1e3 for op, s in seconds.items()} for name, seconds in result.items()}


def show(num_seqs: int, ms: dict[str, dict[str, float]]) -> None:
    print(f"\n{num_seqs} sequences: {'op':32}" + "".join(f"{name + ', ms':>12}" for name in ms))
    names = list(dict.fromkeys(op for table in ms.values() for op in table if op not in WHOLE))
    for op in [*names, *WHOLE]:
        print(f"{'':14}{op:32}" + "".join(f"{table[op]:12.3f}" if op in table else f"{'':12}" for table in ms.values()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--new-tokens", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--isa")
    parser.add_argument("--quantization", default="auto", help="as for octavo serve")
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    if args.cpu_time and args.threads != 1:
        parser.error("--cpu-time needs --threads 1: threads that wait spend time too")
    model = Model(args)
    print(f"{args.model}, {model.backend.isa}, {model.dtype}, quantization {args.quantization}, {args.threads} threads")
    tables = {}
    for num_seqs in args.sequences:
        tables[num_seqs] = measure(model, num_seqs, args)
        show(num_seqs, tables[num_seqs])
    if args.json:
        settings = {name: value for name, value in vars(args).items() if name != "json"}
        save(Path(args.json), settings, {"ms": tables})


if __name__ == "__main__":
    main()
