"""What every admission and preemption policy must do, run on each there is."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from octavo.core.accounts import Accounts
from octavo.core.admission import ADMISSION, AdmissionPolicy, FirstComeFirstServed, LowestPriorityFirst, SkipAhead
from octavo.core.order import by_arrival, by_priority
from octavo.core.preemption import WAYS, LastInOrder, MeasuredCosts, PreemptionPolicy, WayPolicy
from octavo.core.quarantine import Quarantine, Retired
from octavo.core.request import Sequence, SequenceStatus, make_sequences
from octavo.core.request_level import WholeBatches
from octavo.core.step import RowSetup, StepPlan, StepResult
from support.core_scripts import request


def arrivals(count: int) -> list[Sequence]:
    return make_sequences(request(n=count), 0, 1, Accounts().open("red"))


ALL_ADMISSION: dict[str, Callable[[], AdmissionPolicy]] = {**ADMISSION, "whole batches": lambda: WholeBatches(8, 64)}


@pytest.fixture(params=sorted(ALL_ADMISSION))
def admission(request: pytest.FixtureRequest) -> AdmissionPolicy:
    return ALL_ADMISSION[request.param]()


def tried(policy: AdmissionPolicy, fits: Callable[[Sequence], bool]) -> list[Sequence]:
    """Whom one plan tries to admit, where those that fit are admitted."""
    found = []
    for sequence in policy.candidates():
        found.append(sequence)
        if fits(sequence):
            policy.remove(sequence)
    return found


@pytest.fixture(params=[by_arrival, by_priority])
def preemption(request: pytest.FixtureRequest) -> PreemptionPolicy:
    return LastInOrder(request.param)


def test_everyone_who_waits_comes_up_once(admission: AdmissionPolicy) -> None:
    sequences = arrivals(5)
    for sequence in sequences:
        admission.put(sequence)
    admission.remove(sequences[2])
    assert tried(admission, lambda _: True) == [*sequences[:2], *sequences[3:]]
    assert len(admission) == 0 and list(admission) == [] and list(admission.candidates()) == []


def test_who_found_no_room_keeps_its_place(admission: AdmissionPolicy) -> None:
    sequences = arrivals(3)
    for sequence in sequences:
        admission.put(sequence)
    for _ in range(3):
        assert tried(admission, lambda _: False)[0] is sequences[0]
    assert list(admission) == sequences


def test_a_preempted_sequence_waits_again(admission: AdmissionPolicy) -> None:
    sequences = arrivals(3)
    for sequence in sequences:
        admission.put(sequence)
    first = next(admission.candidates())
    admission.remove(first)
    first.status = SequenceStatus.PREEMPTED
    admission.put(first)
    assert list(admission) == sequences and len(admission) == 3
    assert tried(admission, lambda _: True) == sequences


def test_to_wait_twice_is_to_wait_once(admission: AdmissionPolicy) -> None:
    sequences = arrivals(2)
    for sequence in (*sequences, *sequences):
        admission.put(sequence)
    assert list(admission) == sequences and len(admission) == 2
    assert tried(admission, lambda _: True) == sequences


def test_some_may_leave_with_another_while_a_plan_is_made(admission: AdmissionPolicy) -> None:
    """A request that ends, or a gang that comes back, leaves whole."""
    sequences = arrivals(4)
    for sequence in sequences:
        admission.put(sequence)
    found = []
    for sequence in admission.candidates():
        found.append(sequence)
        admission.remove(sequence)
        if sequence is sequences[0]:
            admission.remove(sequences[2])
    assert found == [sequences[0], sequences[1], sequences[3]]


def test_nobody_passes_the_first_to_come() -> None:
    queue, sequences = FirstComeFirstServed(), arrivals(4)
    for sequence in sequences:
        queue.put(sequence)
    assert tried(queue, lambda sequence: sequence is not sequences[1]) == sequences[:2]
    assert list(queue) == sequences[1:]


def test_who_does_not_fit_is_passed_a_bounded_number_of_times() -> None:
    queue = SkipAhead()
    large, *small = arrivals(200)
    for sequence in (large, *small[:20]):
        queue.put(sequence)
    assert tried(queue, lambda sequence: sequence is not large) == [large, *small[: queue.LOOK_AHEAD - 1]]
    for sequence in small[20:]:
        queue.put(sequence)
    while (found := tried(queue, lambda sequence: sequence is not large)) != [large]:
        assert found[0] is large and len(found) > 1
    # What was tried in the plan in which the last pass happened is all that came after it.
    assert queue.MOST_PASSES <= 200 - len(queue) < queue.MOST_PASSES + queue.LOOK_AHEAD
    queue.remove(large)
    assert tried(queue, lambda _: False) == list(queue)[: queue.LOOK_AHEAD], "the passes were the large one's"


def test_each_of_several_that_do_not_fit_counts_its_own_passes() -> None:
    queue = SkipAhead()
    sequences = arrivals(queue.MOST_PASSES + 3)
    first, second, *small = sequences
    queue.put(first)
    for i, sequence in enumerate(small):
        if i == 10:
            queue.put(second)
        queue.put(sequence)
        tried(queue, lambda sequence: sequence not in (first, second))
    assert tried(queue, lambda _: False) == [first]
    queue.remove(first)
    assert tried(queue, lambda _: False) == [second, small[-1]], "it was passed less often"


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
    assert LastInOrder().choose([sequences[1], sequences[3], sequences[2]]) is sequences[3]


def with_priorities(*priorities: int) -> list[Sequence]:
    """One sequence each, in order of arrival."""
    account = Accounts().open("red")
    return [make_sequences(request(i, priority=p), i, 1, account)[0] for i, p in enumerate(priorities)]


def test_lower_numbers_come_first_and_equals_in_order_of_arrival() -> None:
    queue = LowestPriorityFirst()
    sequences = with_priorities(1, 0, -5, 1, 0)
    for sequence in sequences:
        queue.put(sequence)
    wanted = [sequences[i] for i in (2, 1, 4, 0, 3)]
    assert list(queue) == wanted
    assert tried(queue, lambda sequence: sequence is not wanted[2]) == wanted[:3], "nobody passes"
    [urgent] = with_priorities(-9)
    queue.put(urgent)
    assert tried(queue, lambda _: True) == [urgent, *wanted[2:]]


def test_the_highest_number_gives_way_and_of_equals_the_latest() -> None:
    sequences = with_priorities(5, 0, 5, 1)
    assert LastInOrder(by_priority).choose(sequences) is sequences[2]
    assert LastInOrder(by_priority).choose([sequences[1], sequences[3]]) is sequences[3]


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


# ---- swap, or compute again?


def step_of(
    num_tokens: int = 0, num_swapped: int = 0, forward_s: float = 0.0, swap_s: float = 0.0
) -> tuple[StepPlan, StepResult]:
    source = request()
    setup = RowSetup(0, source.token_ids, 5, 0, source.sampling, 7, 0)
    plan = StepPlan(1, [0], [num_tokens], [], [setup] if num_tokens else [], [], [])
    plan.swap_in = [(i, i) for i in range(num_swapped)]
    return plan, StepResult(1, [], forward_s=forward_s, swap_s=swap_s)


@pytest.mark.parametrize("name", WAYS)
def test_a_way_answers_before_and_after_it_has_learnt(name: str) -> None:
    way: WayPolicy = WAYS[name]()
    for num_blocks, num_tokens in ((1, 1), (1000, 1), (1, 1000)):
        assert way.swaps(num_blocks, num_tokens) in (True, False)
    way.observe(*step_of(num_tokens=100, forward_s=1.0))
    way.observe(*step_of(num_swapped=10, swap_s=0.1))
    assert way.swaps(1, 1000) == (name != "recompute")
    assert way.swaps(1000, 1) == (name == "swap")


def test_the_first_swap_is_made_to_learn_what_it_takes() -> None:
    way = MeasuredCosts()
    assert way.swaps(1000, 1)
    way.observe(*step_of(num_swapped=10, swap_s=1.0))
    assert not way.swaps(1, 1000), "nothing is known of computing yet"
    way.observe(*step_of(num_tokens=MeasuredCosts.FEWEST_TOKENS - 1, forward_s=5.0))
    assert way.compute_s_per_token is None, "too small a step says what a step costs"
    way.observe(*step_of(num_tokens=10, forward_s=1.0))
    # 0.1 s for a block one way, 0.1 s for a token.
    assert way.swaps(1, 3) and not way.swaps(1, 2)


def test_costs_follow_the_newest_figures_slowly() -> None:
    way = MeasuredCosts()
    for swap_s in (1.0, 2.0):
        way.observe(*step_of(num_swapped=10, swap_s=swap_s))
    assert way.swap_s_per_block == pytest.approx(0.1 + MeasuredCosts.WEIGHT * 0.1)
    way.observe(*step_of(num_swapped=10))
    way.observe(*step_of(num_tokens=10))
    assert way.swap_s_per_block == pytest.approx(0.12) and way.compute_s_per_token is None, "nothing was measured"


def test_of_those_passed_over_some_may_leave_meanwhile() -> None:
    policy, sequences = SkipAhead(), arrivals(3)
    for sequence in sequences:
        policy.put(sequence)
    for sequence in policy.candidates():
        if sequence is sequences[1]:
            policy.remove(sequences[0])
            policy.remove(sequences[1])
    assert list(policy) == sequences[2:]
