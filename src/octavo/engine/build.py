"""From settings and a model's files to a running core."""

from __future__ import annotations

from collections.abc import Callable

from octavo import registry
from octavo.config import EngineConfig
from octavo.core.engine_core import EngineCore
from octavo.messages import EngineInfo
from octavo.weights.sources import ModelFiles, resolve


def find_files(config: EngineConfig) -> ModelFiles:
    """The model's files, fetched if they are not on this machine.

    Raises:
        ModelError: If there is no such model, or it cannot be fetched.
    """
    model = config.model
    return resolve(model.model, revision=model.revision, download_dir=model.download_dir)


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
        core = EngineCore(
            executor,
            max_num_seqs=info.max_num_seqs,
            max_num_batched_tokens=info.max_num_batched_tokens,
            max_model_len=info.max_model_len,
            depth=config.scheduler.depth,
        )
    except BaseException:
        executor.close()
        raise
    return core, info, executor.close
