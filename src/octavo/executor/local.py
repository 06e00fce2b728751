"""LocalExecutor: the model in this process."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import msgspec

from octavo import registry
from octavo.backends.protocol import Backend, KVShape
from octavo.config import EngineConfig
from octavo.core.kv_spec import KVSpec
from octavo.core.step import StepHandle, StepPlan, StepResult
from octavo.errors import ConfigError
from octavo.executor.sizing import Sizes, Sizing, engine_info, length_limit
from octavo.messages import EngineInfo
from octavo.models.decoder import decoder
from octavo.models.families import decoder_spec
from octavo.models.loader import WeightSize, load, weight_size
from octavo.models.overrides import overridden_spec
from octavo.models.spec import DecoderSpec
from octavo.weights.checkpoint import Checkpoint
from octavo.weights.sources import ModelFiles, open_checkpoint
from octavo.worker.batch_state import BatchState
from octavo.worker.drafter import DraftSettings, DraftSource
from octavo.worker.grammar_store import GrammarStore
from octavo.worker.kv_memory import HostSize, available_bytes, size_text
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

    def __init__(
        self,
        runner: ModelRunner,
        backend: Backend,
        kv_spec: KVSpec,
        info: EngineInfo,
        depth: int,
        grammars: GrammarStore | None = None,
    ) -> None:
        self.kv_spec = kv_spec
        self.num_blocks = info.num_blocks
        self.num_host_blocks = info.num_host_blocks
        self.info = info
        self.grammars = GrammarStore() if grammars is None else grammars
        """Compiles what answers shall obey."""
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

    @classmethod
    def preview(cls, config: EngineConfig, files: ModelFiles) -> tuple[EngineInfo, KVSpec]:
        """What `load` would settle on with the memory that is free now: the engine's facts, and how it would keep KV.
        No weights are loaded.

        Raises:
            ModelError: If the model cannot be loaded.
            ConfigError: If a setting does not fit the model or the machine; or with speculation, whose draft model
                takes memory that only loading it tells.
        """
        if config.speculation.drafting is not None:
            allowed = "left out: what a drafter takes is known once it is loaded"
            raise ConfigError("speculative_config", config.speculation.speculative_config, allowed)
        checkpoint = open_checkpoint(files, num_threads=config.execution.num_threads)
        try:
            loading = _Loading(config, files, checkpoint)
            try:
                return loading.preview()
            finally:
                loading.backend.close()
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
        self.spec: DecoderSpec = decoder_spec(checkpoint.config, config.model.max_model_len)
        self._check_overrides()
        execution, wanted = config.execution, config.cache.kv_cache_dtype
        backend_class = registry.resolve("backends", execution.backend)
        automatic = config.model.dtype == "auto"
        self.dtype = backend_class.default_dtype(execution.isa) if automatic else config.model.dtype
        self.kv_dtype = self.dtype if wanted == "auto" else wanted
        self.backend: Backend = backend_class(self.dtype, num_threads=execution.num_threads, isa=execution.isa)

    def finish(self, started: float) -> LocalExecutor:
        scheduler, limit = self.config.scheduler, length_limit(self.config, self.spec)
        weights = load(self.checkpoint, self.spec, self.backend, self.dtype, self.config.model.quantization)
        drafts = self._draft_source(limit)
        draft_bytes = 0 if drafts is None else drafts.num_bytes
        sizes = self._sizing(draft_bytes).sizes(available_bytes())
        kv = self.backend.allocate_kv(sizes.shape)
        program = self.backend.compile(decoder(self.spec, weights), kv, scheduler.max_num_batched_tokens)
        state = BatchState(scheduler.max_num_seqs, sizes.max_model_len)
        drafter = None if drafts is None else drafts.make(state)
        host_tier = self._host_tier(sizes.host, sizes.shape)
        grammars = GrammarStore()
        runner = ModelRunner(self.backend, program, kv, state, host_tier, drafter, grammars)
        size = WeightSize(num_bytes=weights.num_bytes, formats=weights.formats, unused=weights.unused)
        info = self._info(sizes, size, time.perf_counter() - started)
        return LocalExecutor(runner, self.backend, sizes.kv_spec, info, scheduler.depth, grammars)

    def preview(self) -> tuple[EngineInfo, KVSpec]:
        """What `finish` would tell, the weights taken off what is free now."""
        quantization = self.config.model.quantization
        weights = weight_size(self.checkpoint, self.spec, self.backend, self.dtype, quantization)
        available = available_bytes()
        if available is not None and weights.num_bytes >= available:
            allowed = f"one whose weights fit: they take {size_text(weights.num_bytes)}"
            raise ConfigError("model", self.files.name, f"{allowed}, and {size_text(available)} are free")
        left = None if available is None else available - weights.num_bytes
        sizes = self._sizing().sizes(left)
        return self._info(sizes, weights, 0.0), sizes.kv_spec

    def _check_overrides(self) -> None:
        """A misspelt key would change nothing, without a word."""
        if self.files.overrides:
            stored = open_checkpoint(msgspec.structs.replace(self.files, overrides={}))
            stored.close()
            overridden_spec(stored.config, self.files.overrides, self.config.model.max_model_len)

    def _sizing(self, draft_bytes: int = 0) -> Sizing:
        return Sizing(self.config, self.spec, self.backend, self.kv_dtype, draft_bytes)

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

    def _host_tier(self, size: HostSize, shape: KVShape) -> HostTier:
        cache = self.config.cache
        try:
            return HostTier(size.num_blocks, shape.bytes_per_block, erase=cache.erase_freed_blocks)
        except OSError as error:
            allowed = f"less: the system gives no address space for {size.reason} ({error.strerror})"
            raise ConfigError("swap_space_bytes", cache.swap_space_bytes, allowed) from error

    def _info(self, sizes: Sizes, weights: WeightSize, load_s: float) -> EngineInfo:
        return engine_info(
            self.config,
            self.files.name,
            self.spec,
            self.backend,
            sizes,
            kv_dtype=self.kv_dtype,
            weights=weights,
            load_s=load_s,
            fingerprint=self.files.fingerprint(self.checkpoint),
        )
