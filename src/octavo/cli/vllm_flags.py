"""Flags of `vllm serve` that people's scripts carry and Octavo has under another name, or not at all.

A flag that would change answers or capacity is refused by name, unless it asks for what is so anyway. One that would
change neither is accepted with a line that says why it does nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from octavo.cli.parser import integer
from octavo.config import CacheConfig, HTTPConfig, SchedulerConfig


@dataclass(frozen=True)
class OldFlag:
    """One flag of vLLM's.

    Args:
        name: Without the dashes in front.
        is_switch: Whether it takes no value, and has a `--no-` twin.
        why: One line for the user.
        only: The values that are accepted; None accepts every one. A switch has the values "true" and "false".
        dest, convert: The setting it stands for here, where there is one, and how its value is to be read.
        settings: Reads a value that stands for several settings, by `dest`; raises ValueError saying what cannot be.
    """

    name: str
    why: str
    is_switch: bool = False
    only: tuple[str, ...] | None = None
    dest: str = ""
    convert: Callable[[str], Any] | None = None
    settings: Callable[[str], dict[str, Any]] | None = None
    short: str = ""


def _gibibytes(text: str) -> int:
    return round(float(text) * (1 << 30))


def _structured_outputs(text: str) -> dict[str, Any]:
    """vLLM's settings of structured outputs: those that choose among its libraries or ways to write the same values
    have no effect."""
    try:
        parts = json.loads(text)
    except ValueError:
        parts = None
    if not isinstance(parts, dict):
        raise ValueError("must be a JSON object")
    found = {}
    for name, value in parts.items():
        if name == "reasoning_parser":
            found[f"{HTTPConfig.__name__}.reasoning_parser"] = value or "none"
        elif name in ("disable_additional_properties", "enable_in_reasoning") and value:
            raise ValueError(f"{name} is not supported")
        elif name not in _NO_EFFECT:
            raise ValueError(f"there is no {name[:40]!r}; there are reasoning_parser and {', '.join(_NO_EFFECT)}")
    return found


_NO_EFFECT = (
    *("backend", "disable_fallback", "disable_any_whitespace", "disable_additional_properties"),
    *("enable_in_reasoning", "reasoning_parser_plugin"),
)
_ONE_PROCESS = "one process computes; there is nothing to spread"
_NO_ADAPTERS = "there are no adapters yet"
_TEXT_ONLY = "there are no images or sounds yet"
_NOT_LOGGED = "prompts and answers are never logged"

OLD_FLAGS: tuple[OldFlag, ...] = (
    # Here under another name.
    OldFlag(
        "swap-space",
        "it is --swap-space-bytes here",
        dest=f"{CacheConfig.__name__}.swap_space_bytes",
        convert=_gibibytes,
    ),
    OldFlag(
        "kv-offloading-size",
        "host memory for KV is --swap-space-bytes here",
        dest=f"{CacheConfig.__name__}.swap_space_bytes",
        convert=_gibibytes,
    ),
    OldFlag(
        "async-scheduling",
        "it is --depth 2 here",
        is_switch=True,
        dest=f"{SchedulerConfig.__name__}.depth",
        convert=lambda value: 2 if value == "true" else 1,
    ),
    OldFlag(
        "max-num-active-seqs",
        "it is --max-num-seqs here",
        dest=f"{SchedulerConfig.__name__}.max_num_seqs",
        convert=integer,
    ),
    # So anyway, and refused when asked to be otherwise.
    OldFlag("enable-chunked-prefill", "long prompts are always computed in pieces", is_switch=True, only=("true",)),
    OldFlag(
        "scheduler-reserve-full-isl",
        "a prompt is admitted only when all of it fits",
        is_switch=True,
        only=("true",),
    ),
    OldFlag("scheduler-cls", "there is one scheduler", only=()),
    OldFlag("long-prefill-token-threshold", "--max-num-batched-tokens bounds the pieces of a prompt", only=("0",)),
    OldFlag("watermark", "admission reserves what a prompt needs, and no more", only=("0", "0.0")),
    OldFlag("logprobs-mode", "logprobs are those of the model's own distribution", only=("raw_logprobs",)),
    OldFlag("load-format", "the format is seen from the files", only=("auto", "safetensors", "gguf", "hf")),
    OldFlag("tokenizer-mode", "there is one tokenizer library", only=("auto", "hf", "slow", "fast")),
    OldFlag("runner", "models generate", only=("auto", "generate")),
    OldFlag("convert", "models generate", only=("auto", "none")),
    OldFlag("task", "models generate", only=("auto", "generate")),
    OldFlag("response-role", "answers come from the assistant", only=("assistant",)),
    OldFlag("chat-template-content-format", "text parts are joined into a text", only=("auto", "string")),
    OldFlag("tensor-parallel-size", _ONE_PROCESS, only=("1",), short="-tp"),
    OldFlag("pipeline-parallel-size", _ONE_PROCESS, only=("1",), short="-pp"),
    OldFlag("data-parallel-size", _ONE_PROCESS, only=("1",), short="-dp"),
    OldFlag("api-server-count", "one front end serves", only=("1",), short="-asc"),
    OldFlag("enable-expert-parallel", _ONE_PROCESS, is_switch=True, only=("false",), short="-ep"),
    OldFlag("distributed-executor-backend", _ONE_PROCESS, only=("auto", "uni", "mp")),
    OldFlag("cpu-offload-gb", "weights stay in the machine's memory", only=("0", "0.0")),
    OldFlag("kv-transfer-config", "KV is not sent to other servers", only=()),
    OldFlag("kv-events-config", "where KV is, is at /v1/kv", only=()),
    OldFlag("kv-offloading-backend", "preempted requests are swapped to host memory", only=("native",)),
    OldFlag("enable-lora", _NO_ADAPTERS, is_switch=True, only=("false",)),
    OldFlag("lora-modules", _NO_ADAPTERS, only=()),
    OldFlag("enable-sleep-mode", "a server that shall sleep is stopped", is_switch=True, only=("false",)),
    OldFlag("middleware", "no code is loaded into the server: put a proxy before it", only=("[]",)),
    OldFlag("otlp-traces-endpoint", "there are no traces yet", only=()),
    # Without effect here.
    OldFlag("enforce-eager", "there are no graphs to capture", is_switch=True),
    OldFlag("trust-remote-code", "code that comes with a model is never run", is_switch=True),
    OldFlag("enable-prompt-tokens-details", "cached_tokens is always reported", is_switch=True),
    OldFlag("enable-request-id-headers", "X-Request-Id is always sent back", is_switch=True),
    OldFlag("enable-log-requests", _NOT_LOGGED, is_switch=True),
    OldFlag("disable-log-requests", _NOT_LOGGED, is_switch=True),
    OldFlag("enable-log-outputs", _NOT_LOGGED, is_switch=True),
    OldFlag("max-log-len", _NOT_LOGGED),
    OldFlag("disable-log-stats", "figures are at /metrics, not in the log", is_switch=True),
    OldFlag("disable-uvicorn-access-log", "requests are logged only at --log-level debug", is_switch=True),
    OldFlag("kv-cache-metrics", "where every block is, is at /v1/kv/stats", is_switch=True),
    OldFlag("kv-cache-metrics-sample", "where every block is, is at /v1/kv/stats"),
    OldFlag("use-v2-block-manager", "there is one block manager", is_switch=True),
    OldFlag("disable-frontend-multiprocessing", "--engine-host says where the engine runs", is_switch=True),
    OldFlag("prefix-caching-hash-algo", "blocks are always keyed by BLAKE2b with a secret"),
    OldFlag("guided-decoding-backend", "there is one grammar library"),
    OldFlag(
        "structured-outputs-config",
        "there is one grammar library; its reasoning_parser is --reasoning-parser here",
        settings=_structured_outputs,
    ),
    OldFlag("attention-backend", "kernels follow the CPU; --isa forces a path"),
    OldFlag("max-loras", _NO_ADAPTERS),
    OldFlag("max-lora-rank", _NO_ADAPTERS),
    OldFlag("limit-mm-per-prompt", _TEXT_ONLY),
    OldFlag("optimization-level", "there is nothing to compile", short="-O"),
    OldFlag("performance-mode", "there is one"),
    OldFlag("fingerprint-mode", "system_fingerprint names all that decides an answer"),
    OldFlag("root-path", "no answer names a path of the server"),
)


def add_old_flags(parser: argparse.ArgumentParser) -> None:
    """Add them, out of sight of `--help`. A name that the parser has already stays as it is."""
    known = parser._option_string_actions
    for flag in OLD_FLAGS:
        names = [f"--{flag.name}", *([flag.short] if flag.short else [])]
        names += [f"--no-{flag.name}"] if flag.is_switch else []
        if not any(name in known for name in names):
            nargs = 0 if flag.is_switch else None
            hidden = argparse.SUPPRESS
            parser.add_argument(*names, action=_OldFlagAction, flag=flag, help=hidden, dest=hidden, nargs=nargs)


class _OldFlagAction(argparse.Action):
    def __init__(self, *args: Any, flag: OldFlag, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._flag = flag

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        given = option_string or ""
        value = values if isinstance(values, str) else str(not given.startswith("--no-")).lower()
        shown = given if self._flag.is_switch else f"{given} {value[:40]}"
        if self._flag.only is not None and value not in self._flag.only:
            parser.error(f"{shown} is not supported: {self._flag.why}")
        if self._flag.settings is not None:
            try:
                for dest, setting in self._flag.settings(value).items():
                    setattr(namespace, dest, setting)
            except ValueError as error:
                parser.error(f"argument {given}: {error}")
        if self._flag.convert is not None:
            try:
                setattr(namespace, self._flag.dest, self._flag.convert(value))
            except (ValueError, OverflowError):
                parser.error(f"argument {given}: {value[:40]!r} must be a number")
        print(f"{parser.prog}: note: {shown}: {self._flag.why}", file=sys.stderr)
