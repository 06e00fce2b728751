"""Slots of the host tier: counted, charged, given back, never two at once."""

from __future__ import annotations

from collections import Counter

import pytest

from octavo.core.accounts import Accounts
from octavo.core.host_slots import HostSlots
from octavo.errors import InvariantError


def test_slots_are_taken_with_their_references_and_given_back_with_the_last() -> None:
    slots, red = HostSlots(4), Accounts().open("red")
    taken = slots.acquire([2, 1], red)
    assert len(set(taken)) == 2 and (slots.num_free, red.num_host_blocks) == (2, 2)
    slots.release(taken)
    assert (slots.num_free, red.num_host_blocks, slots.take_discards()) == (3, 1, [taken[1]])
    slots.release(taken[:1])
    assert (slots.num_free, red.num_host_blocks, slots.take_discards()) == (4, 0, [taken[0]])
    assert slots.take_discards() == [] and set(slots.acquire([1, 1], red)) == set(taken), "used ones first"


def test_more_than_there_are_cannot_be_taken_nor_given_back() -> None:
    slots, red = HostSlots(2), Accounts().open("red")
    with pytest.raises(InvariantError, match="3 host slots were taken when 2 were free"):
        slots.acquire([1, 1, 1], red)
    assert (slots.num_free, red.num_host_blocks) == (2, 0)
    with pytest.raises(InvariantError, match="host slot 1 was released and nobody used it"):
        slots.release([1])


def test_rebuilt_from_the_names_the_rest_is_given_back() -> None:
    slots, red = HostSlots(6), Accounts().open("red")
    kept, lost = slots.acquire([1, 1], red)
    slots.rebuild(Counter({kept: 3, 4: 1}), {kept: red, 4: red})
    assert (slots.ref_count, slots.num_free, slots.take_discards()) == ({kept: 3, 4: 1}, 4, [lost])
    assert list(slots.owners()) == [red, red]
