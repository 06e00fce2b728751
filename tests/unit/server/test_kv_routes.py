"""What /v1/kv tells, and to whom."""

from __future__ import annotations

from octavo.messages import PUBLIC_TENANT, KVAccount, KVStats
from octavo.server.kv import stats_body


def stats(held: int = 10) -> KVStats:
    return KVStats(
        block_size=16, bytes_per_block=100, num_blocks=40, num_held_blocks=held, num_pinned_blocks=1,
        num_cached_blocks=20, num_free_blocks=19 - held, num_promised_blocks=3, num_published_blocks=2,
        num_references=25, num_unfilled_slots=8, num_host_blocks=5, num_host_held_blocks=2, num_evictions=9,
        erases_freed_blocks=True,
        accounts=[
            KVAccount(tenant="default", num_held_blocks=7, num_copy_faults=2, num_prefix_hit_tokens=5),
            KVAccount(tenant="other", num_held_blocks=1, num_copy_faults=3),
            KVAccount(tenant=PUBLIC_TENANT, num_held_blocks=2),
        ],
    )  # fmt: skip


def test_totals_are_of_everybody_and_accounts_of_the_caller() -> None:
    for tenant, shown in (("default", ["default"]), ("nobody", []), (None, ["default", "other", PUBLIC_TENANT])):
        body = stats_body(stats(), tenant)
        assert [account["tenant"] for account in body["accounts"]] == shown
        assert body["totals"]["num_held_blocks"] == 10 and body["totals"]["num_copy_faults"] == 5
        assert ("tenant" not in body["totals"] and "other" not in str(body)) or tenant is None


def test_what_follows_from_the_counts() -> None:
    body = stats_body(stats(), None)
    assert body["shared_ratio"] == 2.5 and body["tail_waste"] == 8 / 160
    assert body["bytes"]["host"] == {"total": 500, "held": 200}
    device = body["bytes"]["device"]
    assert device["total"] == 4000 == device["held"] + device["pinned"] + device["cached"] + device["free"]
    empty = stats_body(stats(held=0), None)
    assert empty["shared_ratio"] == empty["tail_waste"] == 0.0
