"""A real model that takes its time, so that a test can act in the middle of an answer."""

from __future__ import annotations

import time

from octavo.config import EngineConfig
from octavo.core.step import StepHandle, StepPlan
from octavo.executor.local import LocalExecutor
from octavo.weights.sources import ModelFiles


class SlowLocalExecutor:
    """A `LocalExecutor` that waits 3 ms before each step."""

    def __init__(self, inner: LocalExecutor) -> None:
        self.kv_spec, self.num_blocks, self.info = inner.kv_spec, inner.num_blocks, inner.info
        self.num_host_blocks = inner.num_host_blocks
        self._inner = inner

    @classmethod
    def load(cls, config: EngineConfig, files: ModelFiles) -> SlowLocalExecutor:
        return cls(LocalExecutor.load(config, files))

    def submit(self, plan: StepPlan) -> StepHandle:
        time.sleep(0.003)
        return self._inner.submit(plan)

    def close(self) -> None:
        self._inner.close()
