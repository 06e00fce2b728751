"""How KV memory is managed and who is let in: paging, and the systems that the paper compares it with.

A policy is a function from settings to the parts of an engine core that differ; a name here is all that
`EngineCore(kv_policy=...)` and `--kv-policy` know.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import msgspec

from octavo.core.admission import ADMISSION, AdmissionPolicy
from octavo.core.block_keys import ModelFingerprint
from octavo.core.block_pool import BlockPool
from octavo.core.buddy_pool import BuddyPool, power_of_two
from octavo.core.contiguous import ContiguousKVManager, Reservation, exact, next_power, whole_context
from octavo.core.delivery import AtOnce, Delivery, WithTheBatch
from octavo.core.eviction import EVICTION
from octavo.core.kv_cache_manager import KVCacheManager
from octavo.core.kv_spec import KVSpec
from octavo.core.prefix_index import PrefixIndex
from octavo.core.request_level import WholeBatches
from octavo.errors import ConfigError


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine core was given; see `EngineCore`."""

    kv_policy: str
    spec: KVSpec
    num_blocks: int
    num_host_blocks: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    depth: int
    admission: str
    enable_prefix_caching: bool | None
    eviction: str
    erases: bool
    num_draft_tokens: int
    secret: bytes
    fingerprint: ModelFingerprint | None


class Parts(NamedTuple):
    """What a policy decides."""

    kv: KVCacheManager
    admission: AdmissionPolicy
    delivery: Delivery
    num_host_blocks: int
    """Slots to swap to."""


def build(settings: Settings) -> Parts:
    """The parts that the policy of that name asks for.

    Raises:
        ConfigError: If there is no such policy, or another setting contradicts it.
    """
    policy = KV_POLICIES.get(settings.kv_policy)
    if policy is None:
        raise ConfigError("kv_policy", settings.kv_policy, "one of " + ", ".join(KV_POLICIES))
    return policy(settings)


def _paged(settings: Settings) -> Parts:
    pool = BlockPool(settings.num_blocks, EVICTION[settings.eviction](), erases=settings.erases)
    index = None
    if settings.enable_prefix_caching is not False:
        fingerprint = settings.fingerprint or _unknown_model(settings.spec.block_size)
        index = PrefixIndex(settings.spec, fingerprint, settings.secret)
    kv = KVCacheManager(settings.spec, pool, index, max_chunk=settings.max_num_batched_tokens, depth=settings.depth)
    return Parts(kv, ADMISSION[settings.admission](), AtOnce(), settings.num_host_blocks)


def _orca(settings: Settings, reservation: Reservation) -> Parts:
    return Parts(_contiguous(settings, reservation), ADMISSION[settings.admission](), AtOnce(), 0)


def _faster_transformer(settings: Settings) -> Parts:
    if settings.admission != "fcfs":
        raise ConfigError("admission", settings.admission, f"fcfs with kv_policy {settings.kv_policy}")
    batches = WholeBatches(settings.max_num_seqs, settings.max_model_len)
    return Parts(_contiguous(settings, whole_context), batches, WithTheBatch(batches), 0)


def _contiguous(settings: Settings, reservation: Reservation) -> ContiguousKVManager:
    spec, name = settings.spec, settings.kv_policy
    why = f"with kv_policy {name}: nothing is shared"
    if settings.enable_prefix_caching:
        raise ConfigError("enable_prefix_caching", True, f"off {why}")
    if settings.num_draft_tokens:
        raise ConfigError("num_draft_tokens", settings.num_draft_tokens, f"0 with kv_policy {name}")
    if spec.num_groups > 1 or spec.groups[0].window is not None:
        allowed = "paged: layers with windows of their own keep KV apart, and a chunk holds what all layers keep alike"
        raise ConfigError("kv_policy", name, allowed)
    largest = power_of_two(spec.blocks_per_tokens(settings.max_model_len))
    if settings.num_blocks - 1 < largest:
        allowed = (
            f"at least {largest + 1} with kv_policy {name}: the null block, and {largest} in a row for a context of "
            f"{settings.max_model_len} tokens"
        )
        raise ConfigError("num_blocks", settings.num_blocks, allowed)
    return ContiguousKVManager(
        spec,
        BuddyPool(settings.num_blocks, largest, erases=settings.erases),
        reservation,
        max_model_len=settings.max_model_len,
        max_chunk=settings.max_num_batched_tokens,
        depth=settings.depth,
    )


def _unknown_model(block_size: int) -> ModelFingerprint:
    """One engine runs one model, so inside one process nothing more is needed to tell blocks apart."""
    return ModelFingerprint(weights="", kv_dtype="", block_size=block_size, layout_version=0, kernel_path="")


KV_POLICIES: dict[str, Callable[[Settings], Parts]] = {
    "paged": _paged,
    "orca-oracle": partial(_orca, reservation=exact),
    "orca-pow2": partial(_orca, reservation=next_power),
    "orca-max": partial(_orca, reservation=whole_context),
    "fastertransformer": _faster_transformer,
}
