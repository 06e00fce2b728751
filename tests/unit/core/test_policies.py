"""What every admission and preemption policy must do, run on each there is."""

from __future__ import annotations

import pytest

from octavo.core.accounts import Accounts
from octavo.core.admission import AdmissionPolicy, FirstComeFirstServed
from octavo.core.preemption import LatestArrival, PreemptionPolicy
from octavo.core.quarantine import Quarantine, Retired
from octavo.core.request import Sequence, SequenceStatus, make_sequences
from support.core_scripts import request


def arrivals(count: int) -> list[Sequence]:
    return make_sequences(request(n=count), 0, 1, Accounts().open("red"))


@pytest.fixture(params=[FirstComeFirstServed])
def admission(request: pytest.FixtureRequest) -> AdmissionPolicy:
    policy: AdmissionPolicy = request.param()
    return policy


@pytest.fixture(params=[LatestArrival])
def preemption(request: pytest.FixtureRequest) -> PreemptionPolicy:
    policy: PreemptionPolicy = request.param()
    return policy


def test_everyone_who_waits_comes_up_once(admission: AdmissionPolicy) -> None:
    sequences = arrivals(5)
    for sequence in sequences:
        admission.put(sequence)
    admission.remove(sequences[2])
    found = []
    while len(admission):
        found.append(admission.peek())
        assert found[-1] is next(iter(admission))
        admission.remove(found[-1])
    assert set(found) == set(sequences) - {sequences[2]} and len(found) == 4


def test_a_preempted_sequence_waits_again(admission: AdmissionPolicy) -> None:
    sequences = arrivals(3)
    for sequence in sequences:
        admission.put(sequence)
    first = admission.peek()
    admission.remove(first)
    first.status = SequenceStatus.PREEMPTED
    admission.put(first)
    assert first in list(admission) and len(admission) == 3


def test_first_come_is_first_served_and_the_preempted_keep_their_place() -> None:
    queue, sequences = FirstComeFirstServed(), arrivals(4)
    for sequence in sequences[2:]:
        queue.put(sequence)
    for sequence in reversed(sequences[:2]):  # victims come latest first
        sequence.status = SequenceStatus.PREEMPTED
        queue.put(sequence)
    assert list(queue) == sequences


def test_a_victim_is_one_of_the_candidates(preemption: PreemptionPolicy) -> None:
    sequences = arrivals(4)
    assert preemption.choose(sequences[1:3]) in sequences[1:3]
    assert preemption.choose(sequences[:1]) is sequences[0]


def test_the_latest_arrival_gives_way() -> None:
    sequences = arrivals(4)
    assert LatestArrival().choose([sequences[1], sequences[3], sequences[2]]) is sequences[3]


def test_the_quarantine_keeps_what_a_later_plan_may_name() -> None:
    quarantine = Quarantine()
    kept = [Retired(4, 0, [1, 2]), Retired(5, 1, [3]), Retired(5, 2, [])]
    for retired in kept:
        quarantine.put(retired)
    assert (list(quarantine), len(quarantine), quarantine.num_blocks) == (kept, 3, 3)
    assert list(quarantine.take(3)) == []
    assert list(quarantine.take(4)) == kept[:1]
    assert (len(quarantine), quarantine.num_blocks) == (2, 1)
    assert list(quarantine.take(5)) == kept[1:]
    assert (len(quarantine), quarantine.num_blocks) == (0, 0)
