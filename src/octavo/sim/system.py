"""A serving system under simulation: settings of the real core, and the memory it has."""

from __future__ import annotations

import msgspec

from octavo.core.kv_spec import KVGroup, KVSpec
from octavo.sim.reach import Reach


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
    kv_groups: tuple[KVGroup, ...] = (KVGroup(layers=(0,)),)
    """Layers that share block tables, with their windows. How many they are matters only where windows differ."""

    @property
    def kv_spec(self) -> KVSpec:
        """Of pages of one byte: nothing is stored in a simulation."""
        return KVSpec(groups=self.kv_groups, block_size=self.block_size, bytes_per_block=1)

    @property
    def reach(self) -> Reach:
        """How far the layers look back."""
        return Reach.of(self.kv_groups)

    def held_slots(self, num_tokens: float) -> float:
        """Slots of blocks that a sequence of so many tokens fills, over all groups."""
        return sum(min(num_tokens, group.window or num_tokens) for group in self.kv_groups)

    @property
    def shares_prompts(self) -> bool:
        """Whether the beams of a search share what was computed of their prompt. A baseline cannot share KV, and
        computes the prompt once for each beam, as each of several answers."""
        return self.kv_policy == "paged"
