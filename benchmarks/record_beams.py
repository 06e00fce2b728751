"""Record which beams survive in real beam searches, for the simulator to replay: `octavo.traces.beams` reads the file.

    python benchmarks/record_beams.py QUESTIONS.jsonl [...] --out beams.jsonl.gz [--model smollm2-135m] [--steps 200]

Questions are lines of FastChat's `question.jsonl` files (MT-Bench, Vicuna bench); the first turn of each is the prompt,
as plain text without a chat template, as the paper's OPT took Alpaca's instructions. Those of more than
`--max-prompt-tokens` tokens are left out. Every prompt is searched with every width for exactly `--steps` steps, past
any end-of-sequence token. The real EngineCore on the real model searches; after each step its beam groups are looked
at: a new beam's answer without its last token is its parent's.
"""

from __future__ import annotations

import argparse
import gzip
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from octavo.config import EngineConfig
from octavo.core.engine_core import EngineCore
from octavo.engine.build import build_engine, find_files
from octavo.engine.front_end import FrontEnd
from octavo.messages import EngineRequest, SamplingParams

DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
"""A parent's rank is one digit."""


def read_questions(paths: list[Path]) -> list[str]:
    rows = [msgspec.json.decode(line) for path in paths for line in path.read_bytes().splitlines() if line.strip()]
    return [row["turns"][0] for row in rows]


class Watcher:
    """Parents of every step of the searches in a core."""

    def __init__(self, core: EngineCore) -> None:
        self._core = core
        self._beams: dict[int, list[tuple[int, ...]]] = {}
        self.parents: dict[int, list[list[int]]] = {}
        """By request: for each step, the parent's rank of each survivor, best first."""

    def look(self) -> None:
        """Call after each step of the core."""
        for group in self._core.scheduler.beam_groups():
            number = group.source.request_id
            beams = [tuple(beam.answer) for beam in group.beams]
            before = self._beams.get(number, [()])
            if len(beams[0]) == len(before[0]):
                continue
            ranks = {answer: rank for rank, answer in enumerate(before)}
            self.parents.setdefault(number, []).append([ranks[answer[:-1]] for answer in beams])
            self._beams[number] = beams


def requests(prompts: list[list[int]], width: int, steps: int) -> Iterator[EngineRequest]:
    for number, tokens in enumerate(prompts):
        # The last token ends all beams at once, so it has no survivors.
        yield EngineRequest(
            request_id=number,
            token_ids=tokens,
            num_prompt_tokens=len(tokens),
            sampling=SamplingParams(beam_width=width, max_tokens=steps + 1, ignore_eos=True),
            seed=0,
            max_tokens=steps + 1,
        )


def record(config: EngineConfig, prompts: list[list[int]], width: int, steps: int) -> list[list[list[int]]]:
    """Parents by prompt, step and survivor."""
    core, _, close = build_engine(config, find_files(config))
    watcher = Watcher(core)
    for request in requests(prompts, width, steps):
        core.add(request)
    while core.has_work:
        core.step(0.0)
        watcher.look()
    assert core.stats().num_preemptions == 0, "a search that began again would be recorded twice"
    close()
    found = [watcher.parents[number] for number in range(len(prompts))]
    assert all(len(parents) == steps and all(len(step) == width for step in parents) for parents in found)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("questions", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--widths", type=int, nargs="+", default=[2, 4, 6], metavar="N")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--max-prompt-tokens", type=int, default=64)
    parser.add_argument("--chat", action="store_true", help="put each question into the model's chat template")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="take every Nth of the prompts")
    parser.add_argument("--num-threads", type=int, help="default: all that the machine has")
    args = parser.parse_args()
    settings = {"num_blocks": 8192, "max_num_seqs": 48, "max_model_len": 512, "num_threads": args.num_threads}
    config = EngineConfig.of(model=args.model, **settings)
    front_end = FrontEnd.load(config, find_files(config))
    texts = [
        text
        for text in read_questions(args.questions)
        if len(front_end.tokenizer.encode(text)) <= args.max_prompt_tokens
    ][:: args.every]
    prompts = [
        front_end.render_chat([{"role": "user", "content": text}]) if args.chat else front_end.tokenizer.encode(text)
        for text in texts
    ]
    lines = []
    for width in args.widths:
        started = time.monotonic()
        for tokens, parents in zip(prompts, record(config, prompts, width, args.steps), strict=True):
            digits = "".join(DIGITS[parent] for step in parents for parent in step)
            lines.append({"width": width, "prompt_tokens": len(tokens), "parents": digits})
        print(f"width {width}: {len(prompts)} searches in {time.monotonic() - started:.0f} s", flush=True)
    text = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
    args.out.write_bytes(gzip.compress(text, mtime=0))
    print(f"{args.out}: {args.out.stat().st_size} bytes, {len(lines)} searches")


if __name__ == "__main__":
    main()
