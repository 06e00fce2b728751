"""Every tier that the conformance suite runs on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from octavo.worker.tier_store import HostTier

BYTES = 5000
"""Of one block: neither a page nor a multiple of one."""
NUM_KEYS = 4


class Tier(msgspec.Struct, frozen=True):
    """One kind of tier: how to open it for `NUM_KEYS` blocks of `BYTES`, and what its keys look like."""

    name: str
    open: Callable[[], Any]
    key: Callable[[int], Any]
    """The i-th key, for i from 0 to NUM_KEYS - 1."""


ALL_TIERS = [
    Tier("host", lambda: HostTier(NUM_KEYS, BYTES), int),
    Tier("host-erasing", lambda: HostTier(NUM_KEYS, BYTES, erase=True), int),
]
