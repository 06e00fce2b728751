"""Executors that compute nothing: each token is a fixed function of everything before it.

Real executors to the core and the hosts: named as "support.scripted:ScriptedExecutor" in the configuration, they run
in any host, also in another process. A wrong, lost or repeated token changes every token after it.
"""

from __future__ import annotations

import os
import time
import zlib
from concurrent.futures import Future

import msgspec

from octavo.config import EngineConfig
from octavo.core.kv_spec import KVGroup, KVSpec
from octavo.core.step import PromptLogprobs, RowSetup, StepPlan, StepResult
from octavo.errors import ConfigError, ModelFileError
from octavo.messages import EngineInfo, TokenLogprobs
from octavo.weights.sources import ModelFiles
from support.infos import tiny_info

POISON = 77


def next_token(token_ids: list[int], seed: int, index: int) -> int:
    """A small letter, spelled by its byte in the tinystories vocabulary."""
    return 3 + ord("a") + zlib.crc32(repr((token_ids, seed, index)).encode()) % 26


def answer(prompt: list[int], seed: int, count: int, index: int = 0) -> list[int]:
    """What the executor answers to a prompt."""
    token_ids = list(prompt)
    for _ in range(count):
        token_ids.append(next_token(token_ids, seed, index))
    return token_ids[len(prompt) :]


def _logprobs(token_id: int, count: int, best: float = -1.0) -> TokenLogprobs:
    top = [(token_id + i, best - i) for i in range(count)]
    return TokenLogprobs(token_id, best, 1, top)


class _Row:
    def __init__(self, setup: RowSetup) -> None:
        self.setup = setup
        self.token_ids = list(setup.token_ids)
        self.num_computed = setup.num_computed_tokens


class ScriptedExecutor:
    """See the top of this file."""

    step_s = 0.0

    def __init__(self, config: EngineConfig) -> None:
        block_size = config.cache.block_size or 16
        self.num_blocks = config.cache.num_blocks or 256
        self.num_host_blocks = 0
        self.kv_spec = KVSpec(groups=(KVGroup(layers=(0,)),), block_size=block_size, bytes_per_block=block_size)
        self.info: EngineInfo = tiny_info(
            num_blocks=self.num_blocks,
            block_size=block_size,
            max_num_seqs=config.scheduler.max_num_seqs,
            max_num_batched_tokens=config.scheduler.max_num_batched_tokens,
        )
        self._rows: dict[int, _Row] = {}

    @classmethod
    def load(cls, config: EngineConfig, files: ModelFiles) -> ScriptedExecutor:
        return cls(config)

    def submit(self, plan: StepPlan) -> Future[StepResult]:
        time.sleep(self.step_s)
        for row in plan.released_rows:
            del self._rows[row]
        for setup in plan.setups:
            self._rows[setup.row] = _Row(setup)
        for fork in plan.forks:
            setup = msgspec.structs.replace(self._rows[fork.source_row].setup, sequence_index=fork.sequence_index)
            self._rows[fork.row] = _Row(setup)
        prompt_logprobs = [
            chunk
            for row, count in zip(plan.rows, plan.num_new_tokens, strict=True)
            if (chunk := self._compute(row, count)) is not None
        ]
        for row, source in zip(plan.sample_rows, plan.sample_sources, strict=False):
            self._rows[row].num_computed = self._rows[source].num_computed
        token_ids = [self._sample(row) for row in plan.sample_rows]
        wanted = [self._rows[row].setup.sampling.logprobs for row in plan.sample_rows]
        logprobs = [
            None if count is None else _logprobs(token_id, count, self._logprob_of(token_id))
            for token_id, count in zip(token_ids, wanted, strict=True)
        ]
        done: Future[StepResult] = Future()
        done.set_result(
            StepResult(plan.step_id, token_ids, logprobs if any(logprobs) else None, prompt_logprobs or None)
        )
        return done

    def _compute(self, row: int, count: int) -> PromptLogprobs | None:
        state = self._rows[row]
        start, state.num_computed = state.num_computed, state.num_computed + count
        wanted = state.setup.sampling.prompt_logprobs
        end = min(state.num_computed + 1, state.setup.num_prompt_tokens)
        if wanted is None or start + 1 >= end:
            return None
        positions = [_logprobs(token_id, wanted) for token_id in state.token_ids[start + 1 : end]]
        return PromptLogprobs(row, start + 1, positions)

    def _sample(self, row: int) -> int:
        state = self._rows[row]
        assert state.num_computed == len(state.token_ids), "a token is sampled before all before it are computed"
        token_id = next_token(state.token_ids, state.setup.seed, state.setup.sequence_index)
        state.token_ids.append(token_id)
        return token_id

    def _logprob_of(self, token_id: int) -> float:
        return -1.0

    def close(self) -> None:
        self._rows.clear()


class VariedExecutor(ScriptedExecutor):
    """Finds some letters likelier than others."""

    def _logprob_of(self, token_id: int) -> float:
        return -(token_id % 7) / 8


class SlowExecutor(ScriptedExecutor):
    """Takes its time, so that a test can act in the middle of an answer."""

    step_s = 0.005


class HangingExecutor(ScriptedExecutor):
    """Hangs for a while whenever a prompt that begins with POISON is computed."""

    hangs_s = 1.5

    def submit(self, plan: StepPlan) -> Future[StepResult]:
        if any(setup.token_ids[0] == POISON for setup in plan.setups):
            time.sleep(self.hangs_s)
        return super().submit(plan)


class DyingExecutor(ScriptedExecutor):
    """Ends its process at the 20th step, as a crash in native code would."""

    _steps = 0

    def submit(self, plan: StepPlan) -> Future[StepResult]:
        self._steps += 1
        if self._steps == 20:
            os.abort()
        return super().submit(plan)


class PoisonedExecutor(ScriptedExecutor):
    """Ends its process whenever a prompt that begins with POISON is computed."""

    def submit(self, plan: StepPlan) -> Future[StepResult]:
        if any(setup.token_ids[0] == POISON for setup in plan.setups):
            os._exit(1)
        return super().submit(plan)


class RaisingExecutor(ScriptedExecutor):
    """Fails a whole step."""

    def submit(self, plan: StepPlan) -> Future[StepResult]:
        raise RuntimeError("the device is gone")


class BadConfigExecutor(ScriptedExecutor):
    @classmethod
    def load(cls, config: EngineConfig, files: ModelFiles) -> ScriptedExecutor:
        raise ConfigError("max_model_len", 7, "at least 8")


class BadFileExecutor(ScriptedExecutor):
    @classmethod
    def load(cls, config: EngineConfig, files: ModelFiles) -> ScriptedExecutor:
        raise ModelFileError("model.gguf", "header", "is cut off")


class BrokenExecutor(ScriptedExecutor):
    @classmethod
    def load(cls, config: EngineConfig, files: ModelFiles) -> ScriptedExecutor:
        raise ZeroDivisionError("division by zero")
