"""`octavo bench quality`: perplexity of a text under each format of weights and KV, beside the same weights in float32.

The text is cut into windows of a stated length that slide by a stated stride. A window scores the tokens that no window
before it has scored, so each token after the first is scored once, and all but those of the first window have at least
`window - stride` tokens of context.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import math
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from octavo.cli.bench_arguments import add_result_arguments
from octavo.cli.flags import ENGINE_GROUPS, add_flags, engine_config, flags_of, is_set, set_flag
from octavo.cli.parser import integer
from octavo.config import CacheConfig, EngineConfig, ModelConfig
from octavo.errors import ConfigError, OctavoError

AXES: dict[str, tuple[type, str]] = {
    "dtype": (ModelConfig, "float32"),
    "quantization": (ModelConfig, "none"),
    "kv_cache_dtype": (CacheConfig, "float32"),
}
"""Settings that a run combines: the group each is in, and its value in the run that the others are compared with."""

_WINDOWS_AT_ONCE = 8
"""Prompts in flight; their logprobs are Python objects until they are read."""


class Window(msgspec.Struct, frozen=True):
    """Tokens `start:end` of the text are read; those from `first` on are scored."""

    start: int
    end: int
    first: int


class Scores(msgspec.Struct, frozen=True):
    """One entry for each token of the text after the first."""

    logprobs: list[float]
    top_ids: list[int]
    """The likeliest token in its place."""

    @property
    def nats(self) -> float:
        """Mean negative logprob."""
        return -statistics.fmean(self.logprobs)


def windows(num_tokens: int, length: int, stride: int) -> Iterator[Window]:
    """The windows of a text, in order; each token from 1 on is scored by exactly one."""
    first, start = 1, 0
    while first < num_tokens:
        end = min(start + length, num_tokens)
        yield Window(start, end, first)
        first, start = end, start + stride


def score(llm: Any, token_ids: list[int], length: int, stride: int) -> Scores:
    """Score a text with the engine, by the logprobs of its prompts.

    Raises:
        OctavoError: If the engine scores another token than the one that stands there, or leaves one unscored.
    """
    from octavo.messages import SamplingParams

    logprobs = [math.nan] * len(token_ids)
    top_ids = [-1] * len(token_ids)
    sampling = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=1, detokenize=False)
    for batch in _batches(list(windows(len(token_ids), length, stride))):
        outputs = llm.generate([token_ids[w.start : w.end] for w in batch], sampling)
        for window, output in zip(batch, outputs, strict=True):
            for at in range(window.first, window.end):
                entry = output.prompt_logprobs[at - window.start]
                if entry.token_id != token_ids[at]:
                    raise OctavoError(f"token {at} of the text is {token_ids[at]}; the engine scored {entry.token_id}")
                logprobs[at], top_ids[at] = entry.logprob, entry.top[0][0]
    if not all(map(math.isfinite, logprobs[1:])):
        raise OctavoError("the model's scores of this text are not all finite numbers")
    return Scores(logprobs[1:], top_ids[1:])


def _batches(found: list[Window]) -> Iterator[list[Window]]:
    return (found[i : i + _WINDOWS_AT_ONCE] for i in range(0, len(found), _WINDOWS_AT_ONCE))


def compare(exact: Scores, other: Scores) -> dict[str, float]:
    """The figures of one format beside those of float32."""
    return {
        "nats_per_token": other.nats,
        "perplexity": math.exp(other.nats),
        "relative_change": math.expm1(other.nats - exact.nats),
        "mean_abs_dlogprob": statistics.fmean(abs(a - b) for a, b in zip(other.logprobs, exact.logprobs, strict=True)),
        "top1_agreement": statistics.fmean(a == b for a, b in zip(other.top_ids, exact.top_ids, strict=True)),
    }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model_tag", nargs="?", metavar="MODEL", help="catalogue name, folder, .gguf file or hub id")
    group = parser.add_argument_group("Text")
    group.add_argument("--text", metavar="FILE", help="the text in UTF-8, plain or .gz; tinyshakespeare is customary")
    group.add_argument("--window", type=integer, default=512, metavar="N", help="tokens of a window (default: 512)")
    group.add_argument("--stride", type=integer, metavar="N", help="tokens it slides by (default: half a window)")
    group.add_argument(
        "--num-tokens", type=integer, default=16384, metavar="N", help="tokens read; 0 is all (default: 16384)"
    )
    group = parser.add_argument_group("Formats, combined with each other and compared with float32")
    for flag, default in _axes():
        group.add_argument(
            f"--{flag.name}", nargs="+", choices=flag.choices, default=[default], dest=flag.field,
            metavar="{" + ",".join(flag.choices) + "}", help=f"{flag.help} (default: {default})",
        )  # fmt: skip
    add_result_arguments(parser)
    add_flags(parser, ENGINE_GROUPS, without=AXES)


def _axes() -> Iterator[tuple[Any, Any]]:
    """The flags of the axes that the configuration has, with their defaults."""
    for group in dict.fromkeys(group for group, _ in AXES.values()):
        for flag in flags_of(group):
            if flag.field in AXES:
                yield flag, flag.default


def combinations(args: argparse.Namespace) -> list[dict[str, str]]:
    """What is to be measured, by setting; the float32 run first."""
    names = [flag.field for flag, _ in _axes()]
    exact = {name: AXES[name][1] for name in names}
    asked = [dict(zip(names, values, strict=True)) for values in itertools.product(*(getattr(args, n) for n in names))]
    return [exact, *(one for one in asked if one != exact)]


def run(args: argparse.Namespace) -> int:
    from octavo.cli.bench_report import result_path, save
    from octavo.cli.output_files import check_result

    stride = args.stride or max(1, args.window // 2)
    if args.window < 2:
        raise ConfigError("window", args.window, "at least 2 tokens")
    if not 1 <= stride <= args.window - 1:
        raise ConfigError("stride", stride, f"from 1 to {args.window - 1}, one less than the window")
    if args.text is None:
        raise ConfigError("text", None, "given: a file with text")
    check_result(args)
    text = read_text(Path(args.text))
    rows: list[dict[str, Any]] = []
    exact: Scores | None = None
    for formats in combinations(args):
        about, scores = _score_with(args, formats, text, stride)
        exact = exact or scores
        rows.append(formats | about | compare(exact, scores))
        print(_line(rows[-1]), flush=True)
    setup = {"text": Path(args.text).name, "num_tokens": rows[0]["num_tokens"], "window": args.window, "stride": stride}
    print_table(f"{rows[0]['model_id']}, {setup['text']}: {setup['num_tokens']} tokens, window {args.window}", rows)
    if args.save_result:
        path = result_path(args.result_dir, args.result_filename, "quality")
        save(path, setup, {"formats": rows})
        print(f"written to {path}")
    return 0


def read_text(path: Path) -> str:
    """The text of a file, unpacked if its name ends in .gz.

    Raises:
        ConfigError: If it cannot be read, or is not UTF-8.
    """
    try:
        data = path.read_bytes()
        return (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise ConfigError("text", str(path), f"a readable text file ({error})") from None


def _score_with(
    args: argparse.Namespace, formats: dict[str, str], text: str, stride: int
) -> tuple[dict[str, Any], Scores]:
    from octavo.cli.bench_offline import flat
    from octavo.engine.llm import LLM

    settings = flat(_config(args)) | formats
    with LLM(**settings) as llm:
        token_ids = llm.tokenizer.encode(text)[: args.num_tokens or None]
        if len(token_ids) < 2:
            raise ConfigError("text", args.text, "at least two tokens long")
        if args.window >= llm.info.max_model_len:
            raise ConfigError("window", args.window, f"below the model's context of {llm.info.max_model_len} tokens")
        scores = score(llm, token_ids, args.window, stride)
        about = {
            "model_id": llm.info.model,
            "weights": llm.info.weight_dtype,
            "kv": llm.info.kv_dtype,
            "num_tokens": len(token_ids) - 1,
        }
    return about, scores


def _config(args: argparse.Namespace) -> EngineConfig:
    """The settings that all runs share."""
    if not is_set(args, "engine-host"):
        set_flag(args, "engine-host", "inline")
    if not is_set(args, "max-num-batched-tokens"):
        set_flag(args, "max-num-batched-tokens", 512)
    if not is_set(args, "enable-prefix-caching"):
        set_flag(args, "enable-prefix-caching", False)
    return engine_config(args, model=args.model_tag)


def _line(row: dict[str, Any]) -> str:
    formats = ", ".join(f"{name} {row[name]}" for name in AXES if name in row)
    return f"{formats}: {row['nats_per_token']:.5f} nats, perplexity {row['perplexity']:.4f}"


def print_table(title: str, rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    table.add_column("weights, KV")
    for heading in ("nats/token", "perplexity", "change", "|dlogprob|", "top-1"):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            f"{row['weights']}, {row['kv']}",
            f"{row['nats_per_token']:.5f}",
            f"{row['perplexity']:.4f}",
            f"{row['relative_change']:+.3%}",
            f"{row['mean_abs_dlogprob']:.5f}",
            f"{row['top1_agreement']:.2%}",
        )
    Console(highlight=False).print(table)
