"""How large everything is: the arithmetic between a model's config and an engine's memory.

The server does it once the weights are loaded; `LocalExecutor.preview` does it before, so that what a planner says is
what the server will print.
"""

from __future__ import annotations

import msgspec

from octavo.backends.protocol import Backend, KVShape
from octavo.config import EngineConfig
from octavo.core.kv_groups import describe_groups, group_layers, layer_groups
from octavo.core.kv_spec import KVGroup, KVSpec
from octavo.errors import ConfigError
from octavo.messages import EngineInfo
from octavo.models.loader import WeightSize
from octavo.models.spec import DecoderSpec
from octavo.worker.batch_state import state_bytes
from octavo.worker.block_size import BlockSize, choose_block_size
from octavo.worker.kv_memory import HostSize, KVSize, size_host_tier, size_pool, size_text


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """What came out."""

    block_size: BlockSize
    pool: KVSize
    host: HostSize
    kv_spec: KVSpec
    shape: KVShape
    max_model_len: int


class Sizing:
    """The arithmetic for one model on one back end.

    Args:
        kv_dtype: Of keys and values in memory.
        draft_bytes: What a drafter will take besides what it holds already.
    """

    def __init__(
        self, config: EngineConfig, spec: DecoderSpec, backend: Backend, kv_dtype: str, draft_bytes: int = 0
    ) -> None:
        self._config = config
        self._spec = spec
        self._windows = [layer.window for layer in spec.layers]
        self._backend = backend
        self._kv_dtype = kv_dtype
        self._draft_bytes = draft_bytes
        self._limit = length_limit(config, spec)
        self._max_unread = config.scheduler.depth * config.scheduler.max_num_batched_tokens

    def sizes(self, available: int | None) -> Sizes:
        """Settle everything.

        Args:
            available: Bytes free beside the weights; None where the system does not tell.

        Raises:
            ConfigError: If a setting does not fit the model or the memory.
        """
        limit = self._limit
        block_size = self._block_size(limit)
        kv_spec = self._kv_spec(block_size.num_tokens, limit)
        free = self._free_bytes(available, limit)
        size = self._size_pool(kv_spec, limit, free)
        max_model_len = self._max_model_len(kv_spec, limit, size)
        shape = self._shape(kv_spec.groups, block_size.num_tokens, size.num_blocks, max_model_len)
        host = self._size_host_tier(shape, free)
        if max_model_len < limit:
            shorter = f"{size.reason}; enough for a context of {max_model_len} of the model's {limit} tokens"
            size = msgspec.structs.replace(size, reason=shorter)
        return Sizes(
            block_size=block_size, pool=size, host=host, kv_spec=kv_spec, shape=shape, max_model_len=max_model_len
        )

    def _block_size(self, limit: int) -> BlockSize:
        cache = self._config.cache
        if cache.block_size is not None:
            return BlockSize(num_tokens=cache.block_size, reason=f"{cache.block_size} tokens as asked")
        num_tokens = min(cache.expected_tokens, limit)
        one = self._shape(self._groups(1, limit), 1, 2, limit)
        return choose_block_size(
            num_tokens=sum(min(w or num_tokens, num_tokens) for w in self._windows) // len(self._windows),
            bytes_per_token=2 * one.bytes_per_vector,
            kernel_path=self._backend.describe()["kernel_path"],
        )

    def _groups(self, block_size: int, limit: int) -> tuple[KVGroup, ...]:
        return group_layers(self._windows, limit, block_size)

    def _shape(self, groups: tuple[KVGroup, ...], block_size: int, num_blocks: int, max_len: int) -> KVShape:
        return KVShape(
            layer_groups=layer_groups(groups),
            num_kv_heads=self._spec.num_kv_heads,
            head_dim=self._spec.head_dim,
            dtype=self._kv_dtype,
            block_size=block_size,
            num_blocks=num_blocks,
            max_num_seqs=self._config.scheduler.max_num_seqs,
            # One slot past the context: see BatchState.tokens.
            max_blocks_per_seq=max_len // block_size + 1,
        )

    def _kv_spec(self, block_size: int, limit: int) -> KVSpec:
        groups = self._groups(block_size, limit)
        shape = self._shape(groups, block_size, 2, limit)
        return KVSpec(groups=groups, block_size=block_size, bytes_per_block=shape.bytes_per_block)

    def _peak_blocks(self, kv_spec: KVSpec, num_tokens: int) -> int:
        """Most blocks that one sequence holds, as the core counts them."""
        return kv_spec.peak_blocks(num_tokens, self._max_unread)

    def _free_bytes(self, available: int | None, max_len: int) -> int | None:
        """What steps leave of the memory that is free; None where the system does not tell."""
        workspace = self._workspace_bytes(max_len)
        if available is not None and workspace >= available:
            raise ConfigError(
                "max_num_batched_tokens",
                self._config.scheduler.max_num_batched_tokens,
                f"smaller: such steps may take {size_text(workspace)}, and {size_text(available)} are free",
            )
        return None if available is None else available - workspace

    def _size_pool(self, kv_spec: KVSpec, max_len: int, free: int | None) -> KVSize:
        scheduler = self._config.scheduler
        return size_pool(
            self._config.cache,
            bytes_per_block=kv_spec.bytes_per_block,
            fewest_blocks=1 + self._peak_blocks(kv_spec, 1),
            most_blocks=1 + self._peak_blocks(kv_spec, max_len + 1) * scheduler.max_num_seqs,
            free=free,
            workspace=self._workspace_bytes(max_len),
        )

    def _size_host_tier(self, shape: KVShape, free: int | None) -> HostSize:
        kv_bytes = shape.num_blocks * shape.bytes_per_block
        return size_host_tier(
            self._config.cache,
            bytes_per_block=shape.bytes_per_block,
            kv_bytes=kv_bytes,
            free=None if free is None else max(0, free - kv_bytes),
        )

    def _workspace_bytes(self, max_len: int) -> int:
        """What steps take at most, all their logits wanted, and what the worker remembers of its rows."""
        scheduler = self._config.scheduler
        num_tokens = min(scheduler.max_num_batched_tokens, scheduler.max_num_seqs * max_len)
        return (
            self._spec.activation_bytes(num_tokens) + state_bytes(scheduler.max_num_seqs, max_len) + self._draft_bytes
        )

    def _max_model_len(self, kv_spec: KVSpec, limit: int, size: KVSize) -> int:
        """What the context and the pool allow; an explicit wish that the pool cannot hold is an error."""
        holds = kv_spec.longest(size.num_blocks - 1, self._max_unread, limit)
        if self._config.model.max_model_len is not None and limit > holds:
            allowed = f"at most the {holds} tokens that the KV memory holds ({size.reason})"
            raise ConfigError("max_model_len", limit, allowed)
        return holds


def length_limit(config: EngineConfig, spec: DecoderSpec) -> int:
    """Tokens of a sequence at most, memory apart.

    Raises:
        ConfigError: If more is asked for than the model was trained for and that is not allowed, or impossible because
            the model has learned its positions one by one.
    """
    asked, trained = config.model.max_model_len, spec.max_position
    if asked is not None and asked > trained:
        allowed = f"at most the model's trained context of {trained} tokens"
        if spec.position_offset is not None:
            raise ConfigError("max_model_len", asked, f"{allowed}: there are no embeddings of later positions")
        if not config.model.allow_long_max_model_len:
            raise ConfigError("max_model_len", asked, f"{allowed}; --allow-long-max-model-len lifts that")
    return asked or trained


def engine_info(
    config: EngineConfig,
    model: str,
    spec: DecoderSpec,
    backend: Backend,
    sizes: Sizes,
    *,
    kv_dtype: str,
    weights: WeightSize,
    load_s: float,
    fingerprint: str,
) -> EngineInfo:
    """What an engine of these sizes tells of itself.

    Args:
        fingerprint: Of the weights.
    """
    facts, shape, scheduler = backend.describe(), sizes.shape, config.scheduler
    weight_dtype = ", ".join(weights.formats)
    return EngineInfo(
        model=model,
        max_model_len=sizes.max_model_len,
        vocab_size=spec.vocab_size,
        block_size=shape.block_size,
        num_blocks=sizes.pool.num_blocks,
        num_threads=int(facts["num_threads"]),
        kernel_path=facts["kernel_path"],
        weight_dtype=weight_dtype,
        kv_dtype=kv_dtype,
        weight_bytes=weights.num_bytes,
        weights_unused="; ".join(weights.unused),
        kv_bytes=sizes.pool.num_blocks * shape.bytes_per_block,
        kv_bytes_per_token=shape.bytes_per_block * shape.num_groups // shape.block_size,
        max_num_seqs=scheduler.max_num_seqs,
        max_num_batched_tokens=scheduler.max_num_batched_tokens,
        kv_reason=sizes.pool.reason,
        block_size_reason=sizes.block_size.reason,
        kv_groups=describe_groups(sizes.kv_spec.groups),
        num_host_blocks=sizes.host.num_blocks,
        host_reason=sizes.host.reason,
        bytes_per_block=shape.bytes_per_block,
        load_s=load_s,
        eos_token_ids=spec.eos_token_ids,
        extras={
            "fingerprint": fingerprint,
            "kv_fingerprint": _kv_fingerprint(fingerprint, weight_dtype, kv_dtype, backend, shape),
            **facts,
        },
    )


def _kv_fingerprint(
    weights: str, weight_dtype: str, kv_dtype: str, backend: Backend, shape: KVShape
) -> dict[str, str | int]:
    """All that decides the bits of a block besides its tokens: the fields of the core's ModelFingerprint."""
    facts = backend.describe()
    return {
        "weights": weights,
        "kv_dtype": kv_dtype,
        "block_size": shape.block_size,
        "layout_version": int(facts["kv_layout_version"]),
        "kernel_path": f"{backend.name}/{facts['kernel_path']}/{weight_dtype}",
    }
