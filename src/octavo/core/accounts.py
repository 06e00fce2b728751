"""Who holds how much KV memory, and why it was taken: one account per tenant."""

from __future__ import annotations

from collections.abc import Iterator

from octavo.messages import KVAccount


class Account:
    """One tenant's KV memory: gauges in blocks, then counters by cause, which only grow.

    A block is charged to whoever made it, held or cached, so nobody's bill changes when a stranger comes or goes.
    """

    __slots__ = (
        "num_allocation_faults",
        "num_cached_blocks",
        "num_copy_faults",
        "num_evicted_blocks",
        "num_held_blocks",
        "num_host_blocks",
        "num_prefix_hit_tokens",
        "num_prefix_query_tokens",
        "num_promised_blocks",
        "num_quota_refusals",
        "num_recompute_faults",
        "num_swap_faults",
        "tenant",
    )

    def __init__(self, tenant: str) -> None:
        self.tenant = tenant
        self.num_held_blocks = 0
        self.num_cached_blocks = 0
        self.num_promised_blocks = 0
        """Reserved for admitted prompts, not yet bound to them."""
        self.num_host_blocks = 0
        """Slots of the host tier."""
        self.num_allocation_faults = 0
        """Blocks bound for tokens that had never been computed."""
        self.num_copy_faults = 0
        """Blocks copied: before a write to one with several readers, or for a prompt that leaves one midway."""
        self.num_swap_faults = 0
        """Blocks fetched from the host tier."""
        self.num_recompute_faults = 0
        """Blocks bound for tokens that had been computed and were lost to a preemption."""
        self.num_evicted_blocks = 0
        self.num_prefix_query_tokens = 0
        self.num_prefix_hit_tokens = 0
        self.num_quota_refusals = 0

    def report(self) -> KVAccount:
        """The account as it goes out."""
        return KVAccount(**{name: getattr(self, name) for name in KVAccount.__struct_fields__})


class Accounts:
    """The accounts, opened when a tenant is first seen."""

    def __init__(self) -> None:
        self._of: dict[str, Account] = {}

    def open(self, tenant: str) -> Account:
        """The tenant's account, a new one at the first call."""
        account = self._of.get(tenant)
        if account is None:
            account = self._of[tenant] = Account(tenant)
        return account

    def __iter__(self) -> Iterator[Account]:
        return iter(self._of.values())

    def total(self, field: str) -> int:
        """Sum of one field over all tenants."""
        return sum(getattr(account, field) for account in self)
