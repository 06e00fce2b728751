"""A real model whose grammars go wrong on request."""

from __future__ import annotations

from typing import Any

import numpy as np

from octavo.config import EngineConfig
from octavo.core.step import StepHandle, StepPlan
from octavo.executor.local import LocalExecutor
from octavo.weights.sources import ModelFiles

DOOMED_SEED = 13
DOOMED_AFTER = 4
"""The matcher of a request with this seed is told of another token than was sampled, at this place of the answer."""


class RefusingExecutor:
    """A `LocalExecutor` with a fault in it."""

    def __init__(self, inner: LocalExecutor) -> None:
        self.kv_spec, self.num_blocks, self.info = inner.kv_spec, inner.num_blocks, inner.info
        self.num_host_blocks, self.grammars = inner.num_host_blocks, inner.grammars
        self._inner = inner
        rows: Any = inner._runner._grammars
        state = inner._runner._state
        accept = rows.accept

        def accept_another(numbers: Any, token_ids: Any) -> None:
            doomed = (state.seed[numbers] == DOOMED_SEED) & (
                state.num_tokens[numbers] - state.num_prompt[numbers] == DOOMED_AFTER
            )
            accept(numbers, np.where(doomed, 0, token_ids))  # a control token

        rows.accept = accept_another

    @classmethod
    def load(cls, config: EngineConfig, files: ModelFiles) -> RefusingExecutor:
        return cls(LocalExecutor.load(config, files))

    def submit(self, plan: StepPlan) -> StepHandle:
        return self._inner.submit(plan)

    def close(self) -> None:
        self._inner.close()
