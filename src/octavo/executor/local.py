"""LocalExecutor: the model in this process."""

from __future__ import annotations

import time
from bisect import bisect_right
from concurrent.futures import ThreadPoolExecutor

import msgspec

from octavo import registry
from octavo.backends.protocol import Backend, KVShape
from octavo.config import EngineConfig
from octavo.core.kv_spec import KVGroup, KVSpec
from octavo.core.step import StepHandle, StepPlan, StepResult
from octavo.errors import ConfigError
from octavo.messages import EngineInfo
from octavo.models.decoder import DecoderWeights, decoder
from octavo.models.families import decoder_spec
from octavo.models.loader import load
from octavo.models.spec import DecoderSpec
from octavo.weights.checkpoint import Checkpoint
from octavo.weights.sources import ModelFiles, open_checkpoint
from octavo.worker.batch_state import BatchState, state_bytes
from octavo.worker.block_size import BlockSize, choose_block_size
from octavo.worker.drafter import DraftSettings, DraftSource
from octavo.worker.kv_memory import HostSize, KVSize, available_bytes, size_host_tier, size_pool, size_text
from octavo.worker.model_runner import ModelRunner
from octavo.worker.tier_store import HostTier


class _Done:
    """A step that was made at once. A Future would cost as much as planning the step."""

    __slots__ = ("_result",)

    def __init__(self, result: StepResult) -> None:
        self._result = result

    def result(self) -> StepResult:
        return self._result


class _Failed:
    """A step that failed at once: it is told where the caller waits for it."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def result(self) -> StepResult:
        raise self._error


class LocalExecutor:
    """Runs plans on the caller's thread at depth 1, on a thread of its own at depth 2."""

    def __init__(self, runner: ModelRunner, backend: Backend, kv_spec: KVSpec, info: EngineInfo, depth: int) -> None:
        self.kv_spec = kv_spec
        self.num_blocks = info.num_blocks
        self.num_host_blocks = info.num_host_blocks
        self.info = info
        self._runner = runner
        self._backend = backend
        self._thread = ThreadPoolExecutor(1, "octavo-worker") if depth > 1 else None

    @classmethod
    def load(cls, config: EngineConfig, files: ModelFiles) -> LocalExecutor:
        """Load the model and reserve the KV memory.

        Raises:
            ModelError: If the model cannot be loaded.
            ConfigError: If a setting does not fit the model or the machine.
        """
        started = time.perf_counter()
        checkpoint = open_checkpoint(files, num_threads=config.execution.num_threads)
        try:
            loading = _Loading(config, files, checkpoint)
            try:
                return loading.finish(started)
            except BaseException:
                loading.backend.close()
                raise
        finally:
            checkpoint.close()

    def submit(self, plan: StepPlan) -> StepHandle:
        if self._thread is not None:
            return self._thread.submit(self._runner.execute, plan)
        try:
            return _Done(self._runner.execute(plan))
        except Exception as error:
            return _Failed(error)

    def close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown()
        self._backend.close()


class _Loading:
    """The steps from a checkpoint to an executor, sharing what each finds out."""

    def __init__(self, config: EngineConfig, files: ModelFiles, checkpoint: Checkpoint) -> None:
        self.config = config
        self.files = files
        self.checkpoint = checkpoint
        self.spec: DecoderSpec = decoder_spec(checkpoint.config)
        execution, wanted = config.execution, config.cache.kv_cache_dtype
        backend_class = registry.resolve("backends", execution.backend)
        automatic = config.model.dtype == "auto"
        self.dtype = backend_class.default_dtype(execution.isa) if automatic else config.model.dtype
        self.kv_dtype = self.dtype if wanted == "auto" else wanted
        self.backend: Backend = backend_class(self.dtype, num_threads=execution.num_threads, isa=execution.isa)

    def finish(self, started: float) -> LocalExecutor:
        spec, scheduler = self.spec, self.config.scheduler
        limit = self._length_limit()
        weights = load(self.checkpoint, spec, self.backend, self.dtype, self.config.model.quantization)
        self.drafts = self._draft_source(limit)
        block_size = self._block_size(limit)
        kv_spec = self._kv_spec(block_size.num_tokens, limit)
        free = self._free_bytes(limit)
        size = self._size_pool(kv_spec, limit, free)
        max_model_len = self._max_model_len(kv_spec, limit, size)
        shape = self._shape(block_size.num_tokens, size.num_blocks, max_model_len)
        host = self._size_host_tier(shape, free)
        kv = self.backend.allocate_kv(shape)
        program = self.backend.compile(decoder(spec, weights), kv, scheduler.max_num_batched_tokens)
        state = BatchState(scheduler.max_num_seqs, max_model_len)
        drafter = None if self.drafts is None else self.drafts.make(state)
        runner = ModelRunner(self.backend, program, kv, state, self._host_tier(host, shape), drafter)
        if max_model_len < limit:
            shorter = f"{size.reason}; enough for a context of {max_model_len} of the model's {limit} tokens"
            size = msgspec.structs.replace(size, reason=shorter)
        info = self._info(weights, block_size, size, host, shape, max_model_len, time.perf_counter() - started)
        return LocalExecutor(runner, self.backend, kv_spec, info, scheduler.depth)

    def _draft_source(self, limit: int) -> DraftSource | None:
        """What guesses tokens, its weights loaded before the pool is sized."""
        drafting = self.config.speculation.drafting
        if drafting is None:
            return None
        settings = DraftSettings(
            config=self.config,
            drafting=drafting,
            spec=self.spec,
            backend=self.backend,
            dtype=self.dtype,
            kv_dtype=self.kv_dtype,
            limit=limit,
        )
        source: DraftSource = registry.resolve("drafters", drafting.method)(settings)
        return source

    def _length_limit(self) -> int:
        asked, trained = self.config.model.max_model_len, self.spec.max_position
        if asked is not None and asked > trained:
            raise ConfigError("max_model_len", asked, f"at most the model's trained context of {trained} tokens")
        return asked or trained

    def _block_size(self, limit: int) -> BlockSize:
        cache, windows = self.config.cache, self.spec.windows
        if cache.block_size is not None:
            return BlockSize(num_tokens=cache.block_size, reason=f"{cache.block_size} tokens as asked")
        # A group with full attention keeps everything; where all have windows, the longest is kept at most.
        kept = limit if None in windows else max(w for w in windows if w is not None)
        one = self._shape(1, 2, limit)
        return choose_block_size(
            num_tokens=min(cache.expected_tokens, kept, limit),
            bytes_per_token=one.bytes_per_block // (one.layers_per_page * one.num_kv_heads),
            kernel_path=self.backend.describe()["kernel_path"],
        )

    def _shape(self, block_size: int, num_blocks: int, max_len: int) -> KVShape:
        return KVShape(
            layer_groups=self.spec.layer_groups,
            num_kv_heads=self.spec.num_kv_heads,
            head_dim=self.spec.head_dim,
            dtype=self.kv_dtype,
            block_size=block_size,
            num_blocks=num_blocks,
            max_num_seqs=self.config.scheduler.max_num_seqs,
            # One slot past the context: see BatchState.tokens.
            max_blocks_per_seq=max_len // block_size + 1,
        )

    def _kv_spec(self, block_size: int, max_len: int) -> KVSpec:
        shape = self._shape(block_size, 2, max_len)
        groups = tuple(
            KVGroup(layers=tuple(i for i, g in enumerate(shape.layer_groups) if g == index), window=window)
            for index, window in enumerate(self.spec.windows)
        )
        return KVSpec(groups=groups, block_size=shape.block_size, bytes_per_block=shape.bytes_per_block)

    def _peak_blocks(self, kv_spec: KVSpec, num_tokens: int) -> int:
        """Most blocks that one sequence holds, as the core counts them."""
        scheduler = self.config.scheduler
        return kv_spec.peak_blocks(num_tokens, scheduler.depth * scheduler.max_num_batched_tokens)

    def _free_bytes(self, max_len: int) -> int | None:
        """What steps leave of the memory that is free now; None where the system does not tell."""
        available, workspace = available_bytes(), self._workspace_bytes(max_len)
        if available is not None and workspace >= available:
            raise ConfigError(
                "max_num_batched_tokens",
                self.config.scheduler.max_num_batched_tokens,
                f"smaller: such steps may take {size_text(workspace)}, and {size_text(available)} are free",
            )
        return None if available is None else available - workspace

    def _size_pool(self, kv_spec: KVSpec, max_len: int, free: int | None) -> KVSize:
        scheduler = self.config.scheduler
        return size_pool(
            self.config.cache,
            bytes_per_block=kv_spec.bytes_per_block,
            fewest_blocks=1 + self._peak_blocks(kv_spec, 1),
            most_blocks=1 + self._peak_blocks(kv_spec, max_len + 1) * scheduler.max_num_seqs,
            free=free,
            workspace=self._workspace_bytes(max_len),
        )

    def _size_host_tier(self, shape: KVShape, free: int | None) -> HostSize:
        kv_bytes = shape.num_blocks * shape.bytes_per_block
        return size_host_tier(
            self.config.cache,
            bytes_per_block=shape.bytes_per_block,
            kv_bytes=kv_bytes,
            free=None if free is None else max(0, free - kv_bytes),
        )

    def _host_tier(self, size: HostSize, shape: KVShape) -> HostTier:
        cache = self.config.cache
        try:
            return HostTier(size.num_blocks, shape.bytes_per_block, erase=cache.erase_freed_blocks)
        except OSError as error:
            allowed = f"less: the system gives no address space for {size.reason} ({error.strerror})"
            raise ConfigError("swap_space_bytes", cache.swap_space_bytes, allowed) from error

    def _workspace_bytes(self, max_len: int) -> int:
        """What steps take at most, all their logits wanted, and what the worker remembers of its rows."""
        scheduler = self.config.scheduler
        num_tokens = min(scheduler.max_num_batched_tokens, scheduler.max_num_seqs * max_len)
        drafts = 0 if self.drafts is None else self.drafts.num_bytes
        return self.spec.activation_bytes(num_tokens) + state_bytes(scheduler.max_num_seqs, max_len) + drafts

    def _max_model_len(self, kv_spec: KVSpec, limit: int, size: KVSize) -> int:
        """What the context and the pool allow; an explicit wish that the pool cannot hold is an error."""
        usable = size.num_blocks - 1
        holds = bisect_right(range(limit + 1), usable, key=lambda n: self._peak_blocks(kv_spec, n)) - 1
        if self.config.model.max_model_len is not None and limit > holds:
            allowed = f"at most the {holds} tokens that the KV memory holds ({size.reason})"
            raise ConfigError("max_model_len", limit, allowed)
        return holds

    def _info(
        self,
        weights: DecoderWeights,
        block_size: BlockSize,
        size: KVSize,
        host: HostSize,
        shape: KVShape,
        max_model_len: int,
        load_s: float,
    ) -> EngineInfo:
        facts = self.backend.describe()
        spec, scheduler = self.spec, self.config.scheduler
        weight_dtype, fingerprint = ", ".join(weights.formats), self.checkpoint.fingerprint()
        return EngineInfo(
            model=self.files.name,
            max_model_len=max_model_len,
            vocab_size=spec.vocab_size,
            block_size=shape.block_size,
            num_blocks=size.num_blocks,
            num_threads=int(facts["num_threads"]),
            kernel_path=facts["kernel_path"],
            weight_dtype=weight_dtype,
            kv_dtype=self.kv_dtype,
            weight_bytes=weights.num_bytes,
            kv_bytes=size.num_blocks * shape.bytes_per_block,
            kv_bytes_per_token=shape.bytes_per_block * shape.num_groups // shape.block_size,
            max_num_seqs=scheduler.max_num_seqs,
            max_num_batched_tokens=scheduler.max_num_batched_tokens,
            kv_reason=size.reason,
            block_size_reason=block_size.reason,
            num_host_blocks=host.num_blocks,
            host_reason=host.reason,
            bytes_per_block=shape.bytes_per_block,
            load_s=load_s,
            eos_token_ids=spec.eos_token_ids,
            extras={
                "fingerprint": fingerprint,
                "kv_fingerprint": self._kv_fingerprint(fingerprint, weight_dtype, facts, shape),
                **facts,
            },
        )

    def _kv_fingerprint(
        self, weights: str, weight_dtype: str, facts: dict[str, str], shape: KVShape
    ) -> dict[str, str | int]:
        """All that decides the bits of a block besides its tokens: the fields of the core's ModelFingerprint."""
        return {
            "weights": weights,
            "kv_dtype": self.kv_dtype,
            "block_size": shape.block_size,
            "layout_version": int(facts["kv_layout_version"]),
            "kernel_path": f"{self.backend.name}/{facts['kernel_path']}/{weight_dtype}",
        }
