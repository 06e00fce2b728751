"""Workloads by name, for `octavo simulate` and `octavo plan`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import msgspec

from octavo.errors import ConfigError
from octavo.sim import arrivals as arrival_processes
from octavo.sim import workload as workloads
from octavo.sim.request import TimedRequest
from octavo.sim.workload import Conversation
from octavo.traces.azure import read_azure
from octavo.traces.conversations import read_conversations, sharegpt_conversations
from octavo.traces.lengths import alpaca, read_lengths, sharegpt, wmt
from octavo.traces.mooncake import mooncake_requests, read_mooncake

ARRIVALS = ("poisson", "bursty", "artifact", "trace")

_Item = TypeVar("_Item")


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What a named workload is made from. Every workload takes the first six; a workload ignores the others it has no
    use for."""

    duration_s: float
    """Length of the workload; the last request arrives before it."""
    rate: float | None = None
    """Requests a second. A recorded trace keeps its own when None."""
    seed: int = 0
    arrivals: str | None = None
    """"poisson", "bursty", "artifact" or "trace"; None is "trace" for recorded traces and "poisson" for all others."""
    cv: float = 4.0
    """Coefficient of variation of the gaps between bursty arrivals."""
    trace: Path | None = None
    """File to read in place of the bundled one."""
    max_model_len: int | None = None
    """Leave out requests with more tokens than this, prompt and answer."""
    n: int = 2
    """parallel: samples for each prompt."""
    beam_width: int = 4
    """beam: beams of each search."""
    block_size: int = 16
    """shared-prefix: the prefix is cut to whole blocks."""
    new_prob: float = 0.1
    """chat, multi-turn: probability that an arrival begins a conversation."""
    tell: Callable[[str], None] = lambda note: None
    """Told what is to be known of the file, such as that its lines were not in order of time."""

    def __post_init__(self) -> None:
        for field in ("n", "beam_width", "block_size", "max_model_len"):
            value = getattr(self, field)
            if value is not None and value < 1:
                raise ConfigError(field, value, "at least 1")


class Workload(msgspec.Struct, frozen=True):
    """One entry of the catalogue."""

    summary: str
    """A line for people."""
    file: str
    """What `Settings.trace` may name, and where that comes from."""
    build: Callable[[Settings], list[TimedRequest]]
    needs_trace: bool = False
    """No file comes with the package."""
    shares_prefixes: bool = False
    """Prompts begin alike: a system under test should cache prefixes."""
    uses: tuple[str, ...] = ()
    """Of the settings that few workloads have a use for, `n` and `beam_width`: those that this one has."""


def workload(
    name: str, rate: float | None = None, duration_s: float = 600.0, seed: int = 0, **settings: Any
) -> list[TimedRequest]:
    """Make the requests of a workload, in order of arrival; the same arguments always make the same requests.

    Args:
        name: One of `CATALOGUE`.
        settings: Other fields of `Settings`.

    Raises:
        ConfigError: If the name is unknown, a setting is out of range, or the file is missing or bad.
    """
    entry = lookup(name)
    chosen = Settings(rate=rate, duration_s=duration_s, seed=seed, **settings)
    if entry.needs_trace and chosen.trace is None:
        raise ConfigError("trace", None, f"given for {name}: {entry.file}")
    return entry.build(chosen)


def lookup(name: str) -> Workload:
    """The entry called `name`.

    Raises:
        ConfigError: If there is none; the message lists those that there are.
    """
    if name not in CATALOGUE:
        raise ConfigError("workload", name, "one of " + ", ".join(CATALOGUE))
    return CATALOGUE[name]


def _lengths(
    pairs: Callable[[], list[tuple[int, int]]], settings: Settings, *, n: int = 1, beam_width: int | None = None
) -> list[TimedRequest]:
    found = _kept(pairs() if settings.trace is None else read_lengths(settings.trace), settings, sum)
    return workloads.from_lengths(found, _arrivals(settings), _rng(settings, "lengths"), n=n, beam_width=beam_width)


def _shared_prefix(num_prefix_tokens: int) -> Callable[[Settings], list[TimedRequest]]:
    def build(settings: Settings) -> list[TimedRequest]:
        found = wmt() if settings.trace is None else read_lengths(settings.trace)
        return workloads.shared_prefix(
            _kept(found, settings, lambda pair: num_prefix_tokens + sum(pair)),
            _arrivals(settings),
            _rng(settings, "lengths"),
            num_prefix_tokens=num_prefix_tokens,
            block_size=settings.block_size,
        )

    return build


def _chat(settings: Settings) -> list[TimedRequest]:
    return workloads.chat_rounds(
        _conversations(settings), _arrivals(settings), _rng(settings, "rounds"), new_prob=settings.new_prob
    )


def _multi_turn(settings: Settings) -> list[TimedRequest]:
    return workloads.multi_turn(
        _conversations(settings),
        _arrivals(settings),
        _rng(settings, "rounds"),
        new_prob=settings.new_prob,
        max_model_len=settings.max_model_len or 2048,
    )


def _conversations(settings: Settings) -> list[Conversation]:
    return sharegpt_conversations() if settings.trace is None else read_conversations(settings.trace)


def _azure(settings: Settings) -> list[TimedRequest]:
    records = read_azure(_trace(settings), settings.tell)
    kept = _kept(records, settings, lambda record: record.num_input_tokens + record.num_output_tokens)
    times = _arrivals(settings, [record.time_s for record in kept])
    pairs = [(record.num_input_tokens, record.num_output_tokens) for record in kept]
    return workloads.in_order(pairs, times, _rng(settings, "seeds"))


def _mooncake(settings: Settings) -> list[TimedRequest]:
    records = read_mooncake(_trace(settings), settings.tell)
    kept = _kept(records, settings, lambda record: record.input_length + record.output_length)
    times = _arrivals(settings, [record.timestamp / 1000 for record in kept])
    return mooncake_requests(kept, times, _rng(settings, "seeds"))


CATALOGUE: dict[str, Workload] = {
    "sharegpt": Workload(
        "first rounds of ShareGPT conversations, as in the paper",
        "a CSV file with columns input_tokens and output_tokens",
        lambda settings: _lengths(sharegpt, settings),
    ),
    "alpaca": Workload(
        "Alpaca instructions and answers, as in the paper",
        "a CSV file with columns input_tokens and output_tokens",
        lambda settings: _lengths(alpaca, settings),
    ),
    "parallel": Workload(
        "Alpaca with n samples for each prompt (paper 6.3)",
        "a CSV file with columns input_tokens and output_tokens",
        lambda settings: _lengths(alpaca, settings, n=settings.n),
        uses=("n",),
    ),
    "beam": Workload(
        "Alpaca with a beam search for each prompt (paper 6.3)",
        "a CSV file with columns input_tokens and output_tokens",
        lambda settings: _lengths(alpaca, settings, beam_width=settings.beam_width),
        uses=("beam_width",),
    ),
    "shared-prefix-1shot": Workload(
        "translations behind a common prefix of 80 tokens (paper 6.4)",
        "a CSV file with columns input_tokens and output_tokens, without the prefix",
        _shared_prefix(80),
        shares_prefixes=True,
    ),
    "shared-prefix-5shot": Workload(
        "translations behind a common prefix of 341 tokens (paper 6.4)",
        "a CSV file with columns input_tokens and output_tokens, without the prefix",
        _shared_prefix(341),
        shares_prefixes=True,
    ),
    "chat": Workload(
        "ShareGPT conversations round by round, last 1024 tokens as the prompt (paper 6.5)",
        "a CSV file with columns conversation, turn, role and tokens",
        _chat,
    ),
    "multi-turn": Workload(
        "ShareGPT conversations round by round, whole history as the prompt",
        "a CSV file with columns conversation, turn, role and tokens",
        _multi_turn,
        shares_prefixes=True,
    ),
    "azure-code": Workload(
        "Azure's trace of code completion, November 2023",
        "AzureLLMInferenceTrace_code.csv from https://github.com/Azure/AzurePublicDataset (folder data)",
        _azure,
        needs_trace=True,
    ),
    "azure-conv": Workload(
        "Azure's trace of conversation, November 2023",
        "AzureLLMInferenceTrace_conv.csv from https://github.com/Azure/AzurePublicDataset (folder data)",
        _azure,
        needs_trace=True,
    ),
    "mooncake": Workload(
        "Mooncake's trace of a long-context chat service with shared prefixes",
        "a .jsonl file from https://github.com/kvcache-ai/Mooncake (folder FAST25-release/traces)",
        _mooncake,
        needs_trace=True,
        shares_prefixes=True,
    ),
}
"""All workloads by name."""


def _trace(settings: Settings) -> Path:
    assert settings.trace is not None, "`workload` has checked it"
    return settings.trace


def _kept(items: list[_Item], settings: Settings, num_tokens: Callable[[_Item], int]) -> list[_Item]:
    """Those that fit the model."""
    limit = settings.max_model_len
    kept = items if limit is None else [item for item in items if num_tokens(item) <= limit]
    if not kept:
        raise ConfigError("max_model_len", limit, "enough for some request of the workload")
    return kept


def _rng(settings: Settings, part: str) -> Random:
    """Parts of a workload draw from generators of their own: another process of arrivals leaves lengths alone.

    With the authors' arrivals come their lengths, shuffled by a generator that was seeded with a number.
    """
    if settings.arrivals == "artifact":
        return Random(settings.seed)
    return Random(f"{settings.seed} {part}")


def _arrivals(settings: Settings, recorded: list[float] | None = None) -> list[float]:
    kind = settings.arrivals or ("poisson" if recorded is None else "trace")
    if kind not in ARRIVALS:
        raise ConfigError("arrivals", kind, "one of " + ", ".join(ARRIVALS))
    if kind == "trace":
        if recorded is None:
            raise ConfigError("arrivals", kind, "poisson, bursty or artifact: this workload has no recorded times")
        return arrival_processes.from_trace(recorded, settings.duration_s, settings.rate)
    if settings.rate is None:
        raise ConfigError("rate", None, "given, in requests a second")
    if kind == "artifact":
        return arrival_processes.artifact(settings.rate, settings.duration_s, settings.seed)
    rng = _rng(settings, "arrivals")
    if kind == "poisson":
        return arrival_processes.poisson(settings.rate, settings.duration_s, rng)
    return arrival_processes.bursty(settings.rate, settings.duration_s, rng, settings.cv)
