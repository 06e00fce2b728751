"""What guessing tokens gives: acceptance, tokens per step, and CPU time per token against none, one stream and several.

    python benchmarks/speculation.py [--model MODEL] [--draft MODEL] [--streams 1 4] [--rounds 2] [--json FILE]

    extract   a passage of this repository's documentation, to be repeated: what comes stands in the prompt.
    code      a function of this repository, to be written again with a name changed.
    chat      a question; hardly anything in the answer stands in the prompt.

Three engines answer the same greedy requests in turns, round after round: without guessing, guessing always, and
guessing where it pays. Their answers must be equal. Time is CPU time of this process on one thread per engine, median
of the rounds, because machines do other things too; it is counted from the first token on, so prompts are left out.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

from octavo.cli.bench_report import save
from octavo.config import EngineConfig
from octavo.core.engine_core import EngineCore
from octavo.engine.build import build_engine, find_files
from octavo.engine.front_end import FrontEnd
from octavo.messages import EngineRequest, EngineStats, SamplingParams

ROOT = Path(__file__).parents[1]


def texts() -> dict[str, list[str]]:
    """The last user turn of each request, by kind."""
    page = (ROOT / "docs" / "where-every-block-is.md").read_text()
    passages = [p for p in page.split("\n\n") if 300 < len(p) < 900][:4]
    source = (ROOT / "src" / "octavo" / "worker" / "sampler.py").read_text().split("\n\n\n")
    functions = [part for part in source if part.startswith("def ") and 250 < len(part) < 1100][:4]
    questions = (
        "Why is the sky blue?",
        "Give me an idea for dinner with potatoes.",
        "Tell me a short story about a fox.",
        "What should I see in Rome?",
    )
    return {
        "extract": [f"Repeat this text word for word:\n\n{passage}" for passage in passages],
        "code": [f"Rename `state` to `rows` in this code and print all of it:\n\n{code}" for code in functions],
        "chat": list(questions),
    }


class Engine:
    """One way of guessing."""

    def __init__(self, model: str, speculation: dict[str, Any] | None, streams: int, num_tokens: int) -> None:
        self.num_tokens = num_tokens
        """Of each answer."""
        self.config = EngineConfig.of(
            model=model,
            num_threads=1,
            max_model_len=1024,
            max_num_seqs=streams,
            kv_cache_memory_bytes=256 << 20,
            enable_prefix_caching=False,
            speculative_config=speculation,
        )
        self.core: EngineCore
        self.core, _, self.close = build_engine(self.config, find_files(self.config))

    def answer(self, prompts: list[list[int]]) -> tuple[list[list[int]], float, int, EngineStats]:
        """Answers, CPU seconds and steps of the decoding, and what was counted in it."""
        core, before = self.core, self.core.stats()
        for i, tokens in enumerate(prompts):
            params = SamplingParams(temperature=0.0, max_tokens=self.num_tokens, ignore_eos=True)
            core.add(
                EngineRequest(
                    request_id=i,
                    token_ids=tokens,
                    num_prompt_tokens=len(tokens),
                    sampling=params,
                    seed=i,
                    max_tokens=self.num_tokens,
                )
            )
        answers: list[list[int]] = [[] for _ in prompts]
        started, first_step = 0.0, 0
        while core.has_work:
            for delta in core.step(0.0):
                answers[delta.request_id] += delta.token_ids
            if not started and all(answers):
                started, first_step = time.process_time(), core.stats().num_steps
        seconds, after = time.process_time() - started, core.stats()
        counted = EngineStats(
            num_drafts=after.num_drafts - before.num_drafts,
            num_draft_tokens=after.num_draft_tokens - before.num_draft_tokens,
            num_accepted_tokens=after.num_accepted_tokens - before.num_accepted_tokens,
        )
        return answers, seconds, after.num_steps - first_step, counted


def measure(engines: dict[str, Engine], prompts: list[list[int]], streams: int, rounds: int) -> dict[str, Any]:
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    found: dict[str, Any] = {}
    num_tokens = engines["off"].num_tokens
    batches = [prompts[i : i + streams] for i in range(0, len(prompts), streams)]
    for _ in range(rounds):
        answers = {}
        for name, engine in engines.items():
            parts = [engine.answer(batch) for batch in batches]
            answers[name] = [answer for part in parts for answer in part[0]]
            seconds[name].append(sum(part[1] for part in parts))
            num_drafts = sum(part[3].num_draft_tokens for part in parts)
            num_accepted = sum(part[3].num_accepted_tokens for part in parts)
            num_steps = sum(part[2] for part in parts) - len(parts)  # the last one only releases rows
            found[name] = {
                "acceptance": num_accepted / num_drafts if num_drafts else None,
                "drafts_per_token": num_drafts / (len(prompts) * num_tokens),
                "tokens_per_step_and_stream": len(prompts) * (num_tokens - 1) / num_steps / streams,
            }
        assert all(answer == answers["off"] for answer in answers.values()), "guessing changed an answer"
    off = statistics.median(seconds["off"])
    for name, figures in found.items():
        figures["cpu_ms_per_token"] = 1e3 * statistics.median(seconds[name]) / (len(prompts) * (num_tokens - 1))
        figures["times_faster"] = off / statistics.median(seconds[name])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--draft", help="guess by this model instead of by prompt lookup")
    parser.add_argument("--tokens", type=int, default=6, help="most tokens guessed in a step")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--requests", type=int, default=4, help="of each kind, at most 4")
    parser.add_argument("--answer-tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--kinds", nargs="+", default=["extract", "code", "chat"])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    how = {"model": options.draft} if options.draft else {"method": "ngram"}
    how["num_speculative_tokens"] = options.tokens
    results: dict[str, Any] = {}
    for streams in options.streams:
        ways = {"off": None, "always": {**how, "adaptive": False}, "where it pays": how}
        engines = {name: Engine(options.model, way, streams, options.answer_tokens) for name, way in ways.items()}
        config = engines["off"].config
        front_end = FrontEnd.load(config, find_files(config))
        for kind, turns in texts().items():
            if kind not in options.kinds:
                continue
            prompts = [as_prompt(front_end, turn) for turn in turns[: options.requests]]
            results[f"{kind}, {streams} streams"] = found = measure(engines, prompts, streams, options.rounds)
            for name, f in found.items():
                accepted = "" if f["acceptance"] is None else f"{f['acceptance']:.0%} of drafts accepted, "
                print(
                    f"{kind:8} {streams:2} streams  {name:14} {accepted}"
                    f"{f['tokens_per_step_and_stream']:.2f} tokens a step and stream, "
                    f"{f['cpu_ms_per_token']:.2f} ms CPU a token, {f['times_faster']:.2f} times as fast",
                    flush=True,
                )
        for engine in engines.values():
            engine.close()
    if options.json:
        save(options.json, {"model": options.model, "how": how}, results)


def as_prompt(front_end: FrontEnd, turn: str) -> list[int]:
    return front_end.tokenizer.encode(
        f"<|im_start|>user\n{turn}<|im_end|>\n<|im_start|>assistant\n", add_special_tokens=False
    )


if __name__ == "__main__":
    main()
