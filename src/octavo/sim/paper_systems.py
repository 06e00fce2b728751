"""The systems that the paper compares, on its models and machines: settings of the real core, and what steps take."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from octavo.errors import ConfigError
from octavo.sim.cost_model import CostModel
from octavo.sim.devices import DEVICES
from octavo.sim.model_shape import PAPER_MODELS
from octavo.sim.roofline import ARTIFACT, NATIVE, PaddedCost, RooflineCost
from octavo.sim.system import System

PAGED = "paged"
REQUEST_LEVEL = "fastertransformer"
POLICIES = (PAGED, "orca-oracle", "orca-pow2", "orca-max", REQUEST_LEVEL)

_MAX_NUM_BATCHED_TOKENS = 2560
_MAX_NUM_SEQS = {PAGED: 2048}
_ORCA_MAX_NUM_SEQS = 256
"""The artifact's caps: 2048 sequences for the paged engine, its default of 256 for the baselines on the same engine."""
BATCH_SIZES = {
    # FasterTransformer's, as the artifact sets them: model -> (ShareGPT, Alpaca).
    "opt-13b": (5, 14),
    "opt-66b": (2, 8),
    "opt-175b": (24, 80),
}


class PaperSystem(NamedTuple):
    """What `octavo.sim.simulator.simulate` takes first. Not to be used for two runs: the cost model may keep state."""

    system: System
    cost: CostModel


def paper_system(
    model: str,
    kv_policy: str,
    *,
    block_size: int = 16,
    slow_small_blocks: bool = True,
    batch_size: int | None = None,
    preemption: str = "recompute",
    num_host_blocks: int = 0,
    enable_prefix_caching: bool = False,
) -> PaperSystem:
    """One of the compared systems.

    Args:
        model: A name of `PAPER_MODELS`.
        kv_policy: One of `POLICIES`.
        block_size: Tokens per KV block.
        slow_small_blocks: As in `RooflineCost`.
        batch_size: Requests in a batch of "fastertransformer"; by default the artifact's for ShareGPT.
        preemption: Of the paged system. The paper recomputes requests with one sequence and swaps those with several.
        num_host_blocks: Where the paged system swaps to.
        enable_prefix_caching: Of the paged system.

    Raises:
        ConfigError: For a name that is not known.
    """
    if model not in PAPER_MODELS:
        raise ConfigError("model", model, "one of " + ", ".join(PAPER_MODELS))
    if kv_policy not in POLICIES:
        raise ConfigError("kv_policy", kv_policy, "one of " + ", ".join(POLICIES))
    known = PAPER_MODELS[model]
    system = System(
        num_blocks=known.num_blocks(block_size),
        kv_policy=kv_policy,
        block_size=block_size,
        max_num_seqs=_MAX_NUM_SEQS.get(kv_policy, _ORCA_MAX_NUM_SEQS),
        max_num_batched_tokens=_MAX_NUM_BATCHED_TOKENS,
        max_model_len=known.shape.max_len,
        enable_prefix_caching=enable_prefix_caching and kv_policy == PAGED,
        preemption=preemption,
        num_host_blocks=num_host_blocks if kv_policy == PAGED else 0,
    )
    device = DEVICES[known.device]
    if kv_policy != REQUEST_LEVEL:
        cost = RooflineCost(
            known.shape,
            device,
            known.num_devices,
            block_size=block_size,
            slow_small_blocks=slow_small_blocks,
            host=ARTIFACT,
        )
        return PaperSystem(system, cost)
    if batch_size is None:
        batch_size = BATCH_SIZES.get(model, (8, 8))[0]
    system = _whole_batches(system, batch_size)
    base = RooflineCost(known.shape, device, known.num_devices, kernel="contiguous", host=NATIVE)
    return PaperSystem(system, PaddedCost(base))


def _whole_batches(system: System, batch_size: int) -> System:
    """The prompts of a batch are computed in one step."""
    return msgspec.structs.replace(
        system, max_num_seqs=batch_size, max_num_batched_tokens=batch_size * system.max_model_len
    )
