"""Would the tests of the real engine notice? Each planted fault must break the history that `CAUGHT_BY` names for it.

The same faults are planted under random histories of the core alone in `property.test_planted_faults`; here the real
worker computes, and the fault shows as a wrong answer, a byte that is left, or a broken book. `docs/testing.md` has the
table; `python -m memory.test_faults_of_the_real_engine` from tests/ writes it again.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest

from memory.quick_histories import HISTORIES
from memory.worker_faults import WORKER_FAULTS
from octavo.engine import build
from property.faults import FAULTS, short_keys
from property.test_planted_faults import BROKEN_SWITCH
from support.paths import TESTS

FEWEST = 20
"""Faults that tests of the real engine must catch."""

ALL_FAULTS = {**FAULTS, **WORKER_FAULTS}

BROKEN_BY: dict[str, str] = {
    "several_answers": """
        skip_the_copy
        write_into_a_shared_block
        copy_the_wrong_way
        copy_into_the_wrong_column
        fork_forgets_a_group
        twin_draws_the_same_noise
        twin_without_new_blocks
        twins_share_one_lineage
        double_release
        block_leaks_on_release
        block_in_two_states
        stranger_is_charged
        worker_skips_copies
        forked_row_forgets_wishes
        forked_row_keeps_its_index
        twin_is_sampled_from_the_wrong_logits
    """,
    "several_answers_in_few_rows": """
        hit_everything
        hit_not_in_the_table
        finished_row_applied
    """,
    "shared_prefixes": """
        uncomputed_block_is_found
        short_keys_are_trusted
        hit_one_token_too_far
        hit_hides_prompt_logprobs
        lost_chunk
    """,
    "shared_prefixes_and_evictions": """
        waiter_not_woken
        stale_key
        cached_block_is_evicted_while_held
    """,
    "shared_prefixes_and_resets": """
        index_not_cleared_on_reset
    """,
    "swapped_at_every_step": """
        beams_swap_tokens
        dropped_beam_keeps_its_blocks
        fork_from_the_wrong_beam
        reserved_rows_leak
        lost_progress
        half_a_swap
        host_slot_leaked_on_abort
        host_slot_given_back_early
        worker_skips_swaps_out
        block_comes_back_in_part
        forked_row_without_table
        chosen_tokens_of_beams_are_lost
        beam_scores_without_normalising
    """,
    "recomputed_at_every_step": """
        no_quarantine
        preempted_not_resumed
    """,
    "preempted_in_the_middle_of_prompts": """
        promise_not_returned
    """,
    "recomputed_at_depth_2": """
        token_sampled_twice
    """,
    "everything_in_a_tiny_pool": """
        wrong_swap_slot
        released_row_keeps_its_wishes
    """,
    "aborts": """
        forgotten_abort
    """,
    "failing_puts": """
        failed_put_passes_for_good
        worker_discards_last
    """,
    "failing_gets": """
        failed_get_ignored
    """,
    "takeover_from_the_failed": """
        takeover_lost
    """,
    "takeover_from_the_aborted": """
        tail_of_another_block
    """,
    "published_prefix": """
        withdrawn_prefix_stays
        reset_takes_published_blocks
        published_block_not_held
    """,
    "window": """
        window_left_early
    """,
    "accounts_of_tenants": """
        salt_left_out
        adapter_left_out
        tenant_left_out
    """,
    "erasure_under_aborts": """
        erase_before_copy
        erasure_lost
        held_block_erased
        worker_erases_last
        discarded_slot_keeps_its_bytes
    """,
    "erasure_under_evictions": """
        pin_forgotten
    """,
    "erasure_when_idle": """
        reset_forgets_nothing
        worker_skips_erases
    """,
    "erasure_before_reuse": """
        evicted_block_not_erased
    """,
    "audited_tiny_pool": """
        beams_part
    """,
    "audited_aborts": """
        computed_before_it_arrived
    """,
}
"""By history: the faults that break it."""

CAUGHT_BY = {fault: history for history, faults in BROKEN_BY.items() for fault in faults.split()}

PAGE = TESTS.parent / "docs" / "testing.md"
BEGIN, END = "<!-- planted faults: begin -->\n", "<!-- planted faults: end -->\n"


@cache
def live_unharmed(history: str) -> None:
    """The history passes as long as nothing is planted; its expected answers are computed once."""
    HISTORIES[history]()


@pytest.mark.parametrize("name", CAUGHT_BY)
def test_a_planted_fault_breaks_the_real_engine(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    history = CAUGHT_BY[name]
    live_unharmed(history)
    # The keys of blocks are the same each time, so that those which are made to collide do.
    monkeypatch.setattr(build, "os", SimpleNamespace(urandom=bytes))
    ALL_FAULTS[name](monkeypatch)
    with pytest.raises(Exception) as caught:
        HISTORIES[history]()
    assert not isinstance(caught.value, BROKEN_SWITCH), f"the switch is broken: {caught.value!r}"


def test_keys_of_eight_bits_are_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `short_keys_are_trusted` breaks is not broken by short keys: tokens are compared."""
    monkeypatch.setattr(build, "os", SimpleNamespace(urandom=bytes))
    short_keys(monkeypatch)
    HISTORIES[CAUGHT_BY["short_keys_are_trusted"]]()


def test_enough_faults_are_caught_and_the_page_lists_them() -> None:
    assert len(CAUGHT_BY) >= FEWEST
    assert CAUGHT_BY.keys() <= ALL_FAULTS.keys() and WORKER_FAULTS.keys() <= CAUGHT_BY.keys()
    assert split(PAGE)[1] == table(), "run `python -m memory.test_faults_of_the_real_engine` in tests/"


def table() -> str:
    """The faults as a table in Markdown."""
    lines = ["| fault | what it does | broken by it, on the real engine |", "| --- | --- | --- |"]
    for name, plant in ALL_FAULTS.items():
        told = (plant.__doc__ or "").strip().partition("\n\n")[0].replace("\n    ", " ")
        history = CAUGHT_BY.get(name)
        shown = "the core's own tests only" if history is None else history.replace("_", " ")
        lines.append(f"| {name.replace('_', ' ')} | {told} | {shown} |")
    return "\n".join(lines) + "\n"


def split(page: Path) -> tuple[str, str, str]:
    before, _, rest = page.read_text().partition(BEGIN)
    old, _, after = rest.partition(END)
    return before, old, after


if __name__ == "__main__":
    before, _, after = split(PAGE)
    PAGE.write_text(before + BEGIN + table() + END + after)
