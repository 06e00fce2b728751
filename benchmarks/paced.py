"""An executor that computes nothing and takes as long as a step does: what is left is everything around the kernels.

    octavo serve MODEL --executor paced:PacedExecutor        (with this folder in PYTHONPATH)

A step takes STEP_S seconds of sleep and no CPU time, whatever is in it, and every row gets one of a thousand tokens.
"""

from __future__ import annotations

import time

from octavo.config import EngineConfig
from octavo.core.kv_spec import KVGroup, KVSpec
from octavo.core.step import StepPlan, StepResult
from octavo.messages import EngineInfo
from octavo.models.families import decoder_spec
from octavo.weights.sources import ModelFiles, open_checkpoint

STEP_S = 0.015
"""As long as a decode step of 16 sequences of SmolLM2-135M in bfloat16 on two cores."""

BLOCK_SIZE, NUM_BLOCKS = 32, 4096
FIRST_TOKEN, NUM_TOKENS = 300, 1000


class _Done:
    def __init__(self, answer: StepResult) -> None:
        self._answer = answer

    def result(self) -> StepResult:
        return self._answer


class PacedExecutor:
    """See the top of this file."""

    num_blocks = NUM_BLOCKS
    num_host_blocks = 0
    kv_spec = KVSpec(groups=(KVGroup(layers=(0,)),), block_size=BLOCK_SIZE, bytes_per_block=BLOCK_SIZE)

    def __init__(self, info: EngineInfo) -> None:
        self.info = info

    @classmethod
    def load(cls, config: EngineConfig, files: ModelFiles) -> PacedExecutor:
        """Reads the model's settings, none of its weights."""
        checkpoint = open_checkpoint(files)
        try:
            spec = decoder_spec(checkpoint.config)
        finally:
            checkpoint.close()
        scheduler = config.scheduler
        info = EngineInfo(
            model=files.name,
            max_model_len=spec.max_position,
            vocab_size=spec.vocab_size,
            block_size=BLOCK_SIZE,
            num_blocks=NUM_BLOCKS,
            num_threads=0,
            kernel_path="none",
            weight_dtype="none",
            kv_dtype="none",
            weight_bytes=0,
            kv_bytes=0,
            kv_bytes_per_token=1,
            max_num_seqs=scheduler.max_num_seqs,
            max_num_batched_tokens=scheduler.max_num_batched_tokens,
            kv_reason="",
            eos_token_ids=spec.eos_token_ids,
        )
        return cls(info)

    def submit(self, plan: StepPlan) -> _Done:
        time.sleep(STEP_S)
        tokens = [FIRST_TOKEN + (plan.step_id * 31 + row * 17) % NUM_TOKENS for row in plan.sample_rows]
        return _Done(StepResult(plan.step_id, tokens))

    def close(self) -> None:
        """Nothing to free."""
