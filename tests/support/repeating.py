"""An executor whose model repeats its prompt: forces any tokens through the real engine and server.

Run as `--executor support.repeating:RepeatingExecutor`. Every sequence generates the tokens of its own prompt, begin of
sequence left out, and then the model's end-of-sequence token. A prompt given as token ids is thus a script. Biases of
+100 and filters are not applied; masks of the end-of-sequence tokens are, as any sampler must.
"""

from __future__ import annotations

from dataclasses import dataclass

from octavo.config import EngineConfig
from octavo.core.kv_spec import KVGroup, KVSpec
from octavo.core.step import RowSetup, StepPlan, StepResult
from octavo.engine.front_end import FrontEnd
from octavo.messages import EngineInfo, TokenLogprobs
from octavo.weights.sources import ModelFiles

BLOCK_SIZE = 16
NUM_BLOCKS = 256
MAX_MODEL_LEN = 1024


@dataclass
class _Row:
    setup: RowSetup
    script: list[int]
    num_generated: int

    def next_token(self, otherwise: int) -> int:
        at = self.num_generated
        self.num_generated += 1
        if at < len(self.script):
            return self.script[at]
        masked = at < self.setup.sampling.min_tokens
        return otherwise if masked or not self.setup.eos_token_ids else self.setup.eos_token_ids[0]


class _Done:
    def __init__(self, result: StepResult) -> None:
        self._result = result

    def result(self) -> StepResult:
        return self._result


class RepeatingExecutor:
    """See the module."""

    def __init__(self, vocab_size: int, bos_id: int | None) -> None:
        group = KVGroup(layers=(0,))
        self.kv_spec = KVSpec(groups=(group,), block_size=BLOCK_SIZE, bytes_per_block=BLOCK_SIZE)
        self.num_blocks = NUM_BLOCKS
        self.num_host_blocks = 0
        self.info = EngineInfo(
            model="repeating",
            max_model_len=MAX_MODEL_LEN,
            vocab_size=vocab_size,
            block_size=BLOCK_SIZE,
            num_blocks=NUM_BLOCKS,
            num_threads=1,
            kernel_path="none",
            weight_dtype="none",
            kv_dtype="none",
            weight_bytes=0,
            kv_bytes=BLOCK_SIZE * NUM_BLOCKS,
            kv_bytes_per_token=1,
            max_num_seqs=32,
            max_num_batched_tokens=512,
            kv_reason="a repeating model keeps nothing",
        )
        self._bos_id = bos_id
        self._rows: dict[int, _Row] = {}

    @classmethod
    def load(cls, config: EngineConfig, files: ModelFiles) -> RepeatingExecutor:
        tokenizer = FrontEnd.load(config, files).tokenizer
        return cls(tokenizer.vocab_size, tokenizer.bos_id)

    def submit(self, plan: StepPlan) -> _Done:
        for row in plan.released_rows:
            self._rows.pop(row, None)
        for setup in plan.setups:
            prompt = setup.token_ids[: setup.num_prompt_tokens]
            script = prompt[1:] if prompt[:1] == [self._bos_id] else prompt
            self._rows[setup.row] = _Row(setup, script, len(setup.token_ids) - setup.num_prompt_tokens)
        for fork in plan.forks:
            twin = self._rows[fork.source_row]
            self._rows[fork.row] = _Row(twin.setup, twin.script, twin.num_generated)
        rows = [self._rows[row] for row in plan.sample_rows]
        token_ids = [row.next_token(row.script[-1]) for row in rows]
        logprobs: list[TokenLogprobs | None] | None = None
        if any(row.setup.sampling.logprobs is not None for row in rows):
            logprobs = [TokenLogprobs(token_id, -0.25, 1, [(token_id, -0.25)]) for token_id in token_ids]
        return _Done(StepResult(plan.step_id, token_ids, logprobs))

    def close(self) -> None:
        self._rows.clear()
