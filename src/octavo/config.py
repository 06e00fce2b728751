"""Settings. Frozen; the command line, `--help` and the documentation are generated from these fields.

A field's docstring line is its help text (in `metadata["help"]`); `metadata["aliases"]` are other flag names people's
scripts already carry; `metadata["flag"]` is the flag's name where it is not the field's. Automatic values are None
here; whoever knows the model and the machine settles them and reports what it chose in `messages.EngineInfo`.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any

from octavo.errors import ConfigError
from octavo.http_config import HTTPConfig
from octavo.settings import check_choice, check_choices, check_range, json_object, setting

__all__ = [
    "CacheConfig",
    "DraftingConfig",
    "EngineConfig",
    "ExecutionConfig",
    "HTTPConfig",
    "ModelConfig",
    "SchedulerConfig",
    "SpeculationConfig",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    """Which model, and in what form."""

    model: str = setting("smollm2-135m", "catalogue name, Hugging Face folder, .gguf file or hub id")
    tokenizer: str | None = setting(None, "tokenizer.json or a folder that has one, instead of the model's own")
    revision: str | None = setting(None, "branch, tag or commit of a hub model")
    download_dir: str | None = setting(None, "where models are kept (default: the user cache)")
    dtype: str = setting(
        "auto",
        "weights and arithmetic; auto is bfloat16 where the CPU has it, else float32",
        choices=("auto", "bfloat16", "float32"),
    )
    quantization: str = setting(
        "auto",
        "matrices in memory: auto keeps what is stored in small integers, none expands it to the dtype, int8 and int4 "
        "round everything stored in more bits (int4 leaves embedding and logits at 8)",
        choices=("auto", "none", "int8", "int4"),
        aliases=("-q",),
    )
    max_model_len: int | None = setting(None, "longest prompt plus answer, in tokens (default: the model's context)")
    allow_long_max_model_len: bool = setting(
        False, "let max_model_len exceed the context that the model was trained for; answers out there may be poor"
    )
    hf_overrides: str = setting(
        "{}", "JSON object of keys in the place of those of the model's config.json (or of a GGUF file's metadata)"
    )
    chat_template: str | None = setting(None, "Jinja file to use instead of the model's own chat template")

    def __post_init__(self) -> None:
        if isinstance(self.hf_overrides, dict):
            object.__setattr__(self, "hf_overrides", json.dumps(self.hf_overrides))
        _ = self.overrides  # which checks them
        check_choices(self)
        check_range("max_model_len", self.max_model_len, 1, 1 << 24, " tokens")

    @property
    def overrides(self) -> dict[str, Any]:
        """`hf_overrides` as an object."""
        given = json_object("hf_overrides", self.hf_overrides)
        if "quantization_config" in given:
            allowed = "left out: the format of weights is what their files have"
            raise ConfigError("hf_overrides.quantization_config", given["quantization_config"], allowed)
        return given


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheConfig:
    """KV memory."""

    block_size: int | None = setting(
        None, "tokens per KV block, a power of two from 1 to 256 (default: 8 to 64, by model and workload)"
    )
    expected_tokens: int = setting(512, "prompt plus answer of a typical request; helps to choose the block size")
    kv_cache_dtype: str = setting(
        "auto",
        "KV in memory; auto follows the weights, int8 has one scale per token and head",
        choices=("auto", "bfloat16", "float32", "int8"),
    )
    kv_policy: str = setting(
        "paged",
        "how KV is kept: in pages, or as the systems do that the PagedAttention paper compares with, which reserve one "
        "piece of memory for a whole sequence: its max_tokens (orca-oracle), rounded up to a power of two (orca-pow2), "
        "or the whole context (orca-max; fastertransformer also batches requests whole)",
        choices=("paged", "orca-oracle", "orca-pow2", "orca-max", "fastertransformer"),
    )
    enable_prefix_caching: bool | None = setting(
        None, "reuse the KV of prompts and answers that begin alike (default: on where KV is paged)"
    )
    eviction: str = setting(
        "lru",
        "which cached block makes room first: least recently used, or cheapest to do without",
        choices=("lru", "cost"),
    )
    preemption: str = setting(
        "auto",
        "how a request gives way: swap to host memory, recompute later, or whichever measured cheaper",
        choices=("auto", "swap", "recompute"),
        aliases=("preemption-mode",),
    )
    swap_space_bytes: int | None = setting(
        None, "host memory to swap KV to, in bytes (default: a quarter of the KV memory)"
    )
    erase_freed_blocks: bool = setting(False, "zero every KV block as soon as it is freed")
    kv_cache_memory_bytes: int | None = setting(None, "bytes of KV memory (default: from what is really free)")
    memory_fraction: float = setting(
        0.5, "share of the free memory that KV may take", aliases=("gpu-memory-utilization",)
    )
    num_blocks: int | None = setting(
        None, "KV blocks, instead of sizing by memory", aliases=("num-gpu-blocks-override",)
    )

    def __post_init__(self) -> None:
        check_choices(self)
        size = self.block_size
        if size is not None and (not 1 <= size <= 256 or size & (size - 1)):
            raise ConfigError("block_size", self.block_size, "a power of two from 1 to 256")
        if not 0.0 < self.memory_fraction <= 1.0:
            raise ConfigError("memory_fraction", self.memory_fraction, "above 0 and at most 1")
        check_range("kv_cache_memory_bytes", self.kv_cache_memory_bytes, 1, 1 << 50, " bytes")
        check_range("num_blocks", self.num_blocks, 2, 1 << 31)
        check_range("expected_tokens", self.expected_tokens, 1, 1 << 24, " tokens")
        check_range("swap_space_bytes", self.swap_space_bytes, 0, 1 << 50, " bytes")
        if self.enable_prefix_caching and self.kv_policy != "paged":
            raise ConfigError("enable_prefix_caching", True, f"off with kv_policy {self.kv_policy}: nothing is shared")
        if self.swap_space_bytes and self.kv_policy != "paged":
            allowed = f"0 with kv_policy {self.kv_policy}: nobody is preempted"
            raise ConfigError("swap_space_bytes", self.swap_space_bytes, allowed)

    @property
    def caches_prefixes(self) -> bool:
        """Whether KV is reused, the automatic value settled."""
        return self.kv_policy == "paged" if self.enable_prefix_caching is None else self.enable_prefix_caching


@dataclass(frozen=True, kw_only=True, slots=True)
class SchedulerConfig:
    """What one step may hold."""

    max_num_seqs: int = setting(64, "sequences running at once")
    max_num_batched_tokens: int = setting(
        128, "tokens computed in one step; longer prompts are split, so that nobody who streams waits long"
    )
    admission: str = setting(
        "fcfs",
        "who is admitted next: first come first served; skip: who fits now may pass who does not, 64 times at most; or "
        "priority: by the number that requests name, lower first",
        choices=("fcfs", "skip", "priority"),
        aliases=("scheduling-policy",),
    )
    depth: int = setting(1, "steps planned ahead: 1, or 2 to overlap planning with computing")
    max_waiting: int = setting(1024, "requests that may wait before new ones get 503", aliases=("max-num-queued-reqs",))
    max_queued_tokens: int = setting(
        1 << 20,
        "prompt tokens of requests whose answer has not begun, before new ones get 503",
        aliases=("max-num-queued-tokens",),
    )

    def __post_init__(self) -> None:
        check_choices(self)
        check_range("max_num_seqs", self.max_num_seqs, 1, 1 << 16)
        check_range("max_num_batched_tokens", self.max_num_batched_tokens, 1, 1 << 20, " tokens")
        check_range("depth", self.depth, 1, 2)
        check_range("max_waiting", self.max_waiting, 1, 1 << 24)
        check_range("max_queued_tokens", self.max_queued_tokens, 1, 1 << 40, " tokens")


@dataclass(frozen=True, kw_only=True, slots=True)
class ExecutionConfig:
    """What computes, and where."""

    backend: str = setting("cpu", "back end", choices=("cpu", "reference", "torch"))
    host: str = setting("process", "where the engine runs", flag="engine-host", choices=("inline", "thread", "process"))
    executor: str = setting("local", "who runs the plans: a registered name, or module:attribute")
    num_threads: int | None = setting(None, "compute threads (default: the cores this process may use)")
    isa: str | None = setting(None, "force a CPU kernel path: avx512, avx2 or portable (also OCTAVO_ISA)")

    def __post_init__(self) -> None:
        check_choices(self)
        check_range("num_threads", self.num_threads, 1, 1024)
        if self.isa is not None:
            check_choice("isa", self.isa, ("avx512", "avx2", "portable"))


@dataclass(frozen=True, kw_only=True, slots=True)
class DraftingConfig:
    """What `speculative_config` says, its defaults filled in. Names follow vLLM's."""

    method: str
    """"ngram" looks the last tokens up in the sequence itself; "draft_model" asks a smaller model."""
    model: str | None = None
    """The draft model, named as the model is."""
    num_speculative_tokens: int = 4
    """Most tokens guessed for a sequence in a step."""
    prompt_lookup_max: int = 5
    """Last tokens to look up, at most."""
    prompt_lookup_min: int = 2
    """And at least."""
    adaptive: bool = True
    """Guess only as many tokens as measured acceptance and step times say will pay; else always all."""

    def __post_init__(self) -> None:
        for name, kind, allowed in (
            ("method", str, "a text"),
            ("model", str, "a text"),
            ("num_speculative_tokens", int, "an integer"),
            ("prompt_lookup_max", int, "an integer"),
            ("prompt_lookup_min", int, "an integer"),
            ("adaptive", bool, "true or false"),
        ):
            value = getattr(self, name)
            is_missing = name == "model" and value is None
            if not is_missing and (not isinstance(value, kind) or (kind is int and isinstance(value, bool))):
                raise ConfigError(f"speculative_config.{name}", value, allowed)
        check_choice("speculative_config.method", self.method, ("ngram", "draft_model"))
        for name, low, high in (
            ("num_speculative_tokens", 1, 64),
            ("prompt_lookup_max", 1, 64),
            ("prompt_lookup_min", 1, self.prompt_lookup_max),
        ):
            check_range(f"speculative_config.{name}", getattr(self, name), low, high)
        if (self.method == "draft_model") != (self.model is not None):
            allowed = "the draft model, with the method draft_model" if self.model is None else "left out with ngram"
            raise ConfigError("speculative_config.model", self.model, allowed)


@dataclass(frozen=True, kw_only=True, slots=True)
class SpeculationConfig:
    """Speculative decoding."""

    speculative_config: str | None = setting(
        None,
        'JSON: {"method": "ngram" or "draft_model", "model", "num_speculative_tokens", ...} (default: off)',
        aliases=("-sc",),
    )

    def __post_init__(self) -> None:
        if isinstance(self.speculative_config, dict):
            object.__setattr__(self, "speculative_config", json.dumps(self.speculative_config))
        _ = self.drafting  # which checks it

    @property
    def drafting(self) -> DraftingConfig | None:
        """None without speculation."""
        text = self.speculative_config
        if text is None:
            return None
        given = json_object("speculative_config", text)
        names = [f.name for f in dataclasses.fields(DraftingConfig)]
        for name, value in given.items():
            if name not in names:
                raise ConfigError(f"speculative_config.{name}", value, "left out; known are " + ", ".join(names))
        if given.get("model") is not None:
            given.setdefault("method", "draft_model")
        longest, shortest = given.get("prompt_lookup_max"), given.get("prompt_lookup_min")
        if isinstance(longest, int) and shortest is None:
            given["prompt_lookup_min"] = min(2, longest)
        if isinstance(shortest, int) and longest is None:
            given["prompt_lookup_max"] = max(5, shortest)
        if "method" not in given:
            raise ConfigError("speculative_config.method", None, "one of ngram, draft_model")
        return DraftingConfig(**given)


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineConfig:
    """Everything an engine needs."""

    model: ModelConfig = field(default_factory=ModelConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    execution: ExecutionConfig = field(default_factory=ExecutionConfig)
    speculation: SpeculationConfig = field(default_factory=SpeculationConfig)

    def __post_init__(self) -> None:
        if self.speculation.speculative_config is not None and self.scheduler.depth != 1:
            allowed = "1 with speculative_config: what comes of drafts decides the next step"
            raise ConfigError("depth", self.scheduler.depth, allowed)
        if self.speculation.speculative_config is not None and self.cache.kv_policy != "paged":
            allowed = f"left out with kv_policy {self.cache.kv_policy}: drafts take blocks and return them"
            raise ConfigError("speculative_config", self.speculation.speculative_config, allowed)

    @classmethod
    def of(cls, **settings: Any) -> EngineConfig:
        """From flat names, as flags and `LLM(...)` give them: `EngineConfig.of(model="m.gguf", block_size=32)`.

        Raises:
            ConfigError: For a name that no group has, or a value out of range.
        """
        return _from_flat(cls, settings)


def _from_flat(cls: type[EngineConfig], settings: dict[str, Any]) -> EngineConfig:
    groups: dict[str, Any] = {}
    left = dict(settings)
    for group in dataclasses.fields(cls):
        kind: Any = group.default_factory
        names = {f.name for f in dataclasses.fields(kind)}
        groups[group.name] = kind(**{name: left.pop(name) for name in list(left) if name in names})
    if left:
        name, value = next(iter(left.items()))
        raise ConfigError(name, value, "left out: there is no such setting")
    return cls(**groups)
