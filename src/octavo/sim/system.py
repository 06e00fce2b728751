"""A serving system under simulation: settings of the real core, and the memory it has."""

from __future__ import annotations

import msgspec


class System(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of an EngineCore; names and meanings are those of `octavo.core.engine_core.EngineCore`."""

    num_blocks: int
    """KV blocks without the null block."""
    kv_policy: str = "paged"
    """"paged", "orca-oracle", "orca-pow2", "orca-max" or "fastertransformer"; see `core.kv_policies`."""
    block_size: int = 16
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2560
    max_model_len: int = 2048
    num_host_blocks: int = 0
    """Slots to swap to."""
    enable_prefix_caching: bool = False
    preemption: str = "recompute"
    admission: str = "fcfs"
    depth: int = 1
    window: int | None = None
    """Sliding window of every layer, in tokens; None for full attention."""

    @property
    def shares_prompts(self) -> bool:
        """Whether the beams of a search share what was computed of their prompt. A baseline cannot share KV, and
        computes the prompt once for each beam, as each of several answers."""
        return self.kv_policy == "paged"
