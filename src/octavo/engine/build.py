"""From settings and a model's files to a running core."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from octavo import registry
from octavo.config import EngineConfig
from octavo.messages import EngineInfo
from octavo.structured import Vocabulary
from octavo.weights.sources import ModelFiles, find

if TYPE_CHECKING:
    from octavo.core.block_keys import ModelFingerprint
    from octavo.core.engine_core import EngineCore
    from octavo.core.step import Executor, Grammars

SECRET_BYTES = 32
"""Keys of cached blocks are secret, and die with the process that drew this."""


def find_files(config: EngineConfig) -> ModelFiles:
    """The model's files, fetched if they are not on this machine.

    Raises:
        ModelError: If there is no such model, or it cannot be fetched.
    """
    return find(config.model)


def build_engine(config: EngineConfig, files: ModelFiles) -> tuple[EngineCore, EngineInfo, Callable[[], None]]:
    """A core with its executor.

    Returns:
        The core, what it settled on, and a function that stops its threads and frees its memory.

    Raises:
        ConfigError, ModelError: If the model cannot be run as asked.
    """
    executor = registry.resolve("executors", config.execution.executor).load(config, files)
    info: EngineInfo = executor.info
    try:
        core = build_core(config, executor, info)
    except BaseException:
        executor.close()
        raise
    return core, info, executor.close


def grammars_of(core: EngineCore, config: EngineConfig, files: ModelFiles, info: EngineInfo) -> Grammars | None:
    """What compiles grammars for a core; None where its executor cannot."""
    grammars: Grammars | None = getattr(core.executor, "grammars", None)
    if grammars is not None:
        grammars.use_vocabulary(lambda: load_vocabulary(config, files, info))
    return grammars


def load_vocabulary(config: EngineConfig, files: ModelFiles, info: EngineInfo) -> Vocabulary:
    """The tokens of a model as bytes. Takes some tenths of a second; called when there is a first grammar."""
    from octavo.engine.front_end import FrontEnd
    from octavo.engine.vocabulary import vocabulary

    return vocabulary(FrontEnd.load(config, files).tokenizer, info.vocab_size, info.eos_token_ids)


def build_core(config: EngineConfig, executor: Executor, info: EngineInfo) -> EngineCore:
    """A core with the configured policies, on an executor that settled on `info`.

    Raises:
        ConfigError: If a setting is out of range.
    """
    from octavo.core.engine_core import EngineCore  # not for those who only look for files

    drafting = config.speculation.drafting
    return EngineCore(
        executor,
        max_num_seqs=info.max_num_seqs,
        max_num_batched_tokens=info.max_num_batched_tokens,
        max_model_len=info.max_model_len,
        depth=config.scheduler.depth,
        kv_policy=config.cache.kv_policy,
        admission=config.scheduler.admission,
        enable_prefix_caching=config.cache.enable_prefix_caching,
        eviction=config.cache.eviction,
        preemption=config.cache.preemption,
        erase_freed_blocks=config.cache.erase_freed_blocks,
        num_draft_tokens=0 if drafting is None else drafting.num_speculative_tokens,
        drafting="auto" if drafting is None or drafting.adaptive else "always",
        secret=os.urandom(SECRET_BYTES),
        fingerprint=fingerprint(info),
    )


def fingerprint(info: EngineInfo) -> ModelFingerprint:
    """What decides the bits in a block: what the executor says, or else what can be told from outside."""
    from octavo.core.block_keys import ModelFingerprint

    known = info.extras.get("kv_fingerprint")
    if known is not None:
        return ModelFingerprint(**known)
    return ModelFingerprint(
        weights=f"{info.model} in {info.weight_dtype}",
        kv_dtype=info.kv_dtype,
        block_size=info.block_size,
        layout_version=0,
        kernel_path=info.kernel_path,
    )
