"""Requests on a virtual clock: arrivals, times, work, and that the core's own policies decide."""

from __future__ import annotations

import msgspec
import pytest

from octavo.core.engine_core import EngineCore
from octavo.core.kv_cache_manager import KVCacheManager
from octavo.core.kv_spec import KVGroup
from octavo.core.preemption import LastInOrder
from octavo.core.request import Sequence
from octavo.errors import ConfigError
from octavo.sim.cost_model import Chunk, StepWork
from octavo.sim.simulator import Simulation, simulate
from support.simulations import LinearCost, random_requests, request, small_system


def test_one_request_takes_its_prefill_and_its_decodes() -> None:
    cost = LinearCost(step_s=1.0, token_s=0.1)
    result = simulate(small_system(), cost, [request(5.0, 10, 4)])
    (record,) = result.records
    assert record.first_token_s == pytest.approx(5.0 + 1.0 + 10 * 0.1)
    assert record.finishes_s == [pytest.approx(5.0 + 2.0 + 3 * 1.1)]
    assert record.ttft_s == pytest.approx(2.0)
    assert record.tpot_s == pytest.approx(1.1)
    assert result.normalized_latency_s == pytest.approx((2.0 + 3 * 1.1) / 4)
    assert result.throughput_tokens_per_s == pytest.approx(4 / result.end_s)


def test_the_work_of_a_step_tells_chunks_from_decodes() -> None:
    cost = LinearCost()
    simulate(small_system(max_num_batched_tokens=32), cost, [request(0.0, 40, 3), request(0.0, 10, 2)])
    first, second, third, *_ = cost.works
    assert (first.chunks, first.num_decodes, first.num_sampled) == ([Chunk(32, 0)], 0, 0)
    assert (second.chunks, second.num_sampled, second.num_tokens) == ([Chunk(8, 32), Chunk(10, 0)], 2, 18)
    assert (third.chunks, third.num_decodes, third.decode_context_tokens) == ([], 2, 41 + 11)


LOCAL = KVGroup(layers=(0, 2), window=16)
GLOBAL = KVGroup(layers=(1,))


def test_what_a_decode_reads_ends_at_the_windows() -> None:
    cost = LinearCost()
    simulate(small_system(kv_groups=(LOCAL,)), cost, [request(0.0, 40, 3), request(0.0, 10, 3)])
    assert [work.decode_context_tokens for work in cost.works[1:3]] == [16 + 11, 16 + 12]
    cost = LinearCost()
    simulate(small_system(kv_groups=(LOCAL, GLOBAL), max_num_batched_tokens=32), cost, [request(0.0, 40, 3)])
    assert cost.works[1].chunks[0].num_read == pytest.approx((2 * 15 + 32) / 3)
    assert cost.works[2].decode_context_tokens == pytest.approx((2 * 16 + 41) / 3)


def test_blocks_behind_a_window_are_freed() -> None:
    """Twice 30 blocks of a global and a local group would not fit. What the local one keeps beside the global does."""

    def most_used(*groups: KVGroup) -> int:
        held: list[int] = []

        class Watch:
            def observe(self, core: EngineCore, work: StepWork, now_s: float, duration_s: float) -> None:
                held.append(core.stats().num_held_blocks)

        system = small_system(num_blocks=40, kv_groups=groups, max_num_batched_tokens=32)
        simulate(system, LinearCost(), [request(0.0, 300, 180)], probes=[Watch()])
        return max(held)

    assert most_used(GLOBAL) == 30
    assert most_used(LOCAL) <= 4
    assert most_used(LOCAL, GLOBAL) <= 34
    with pytest.raises(ConfigError, match="servable"):
        most_used(KVGroup(layers=(0,)), GLOBAL)


def test_answers_from_one_prompt_share_its_prefill_and_copy_its_last_block() -> None:
    cost = LinearCost()
    result = simulate(small_system(), cost, [request(0.0, 40, 5, n=3)])
    assert cost.works[0].num_tokens == 40
    assert cost.works[0].num_sampled == 3
    assert cost.works[1].num_decodes == 3
    assert cost.works[1].decode_context_tokens == 3 * 41
    assert sum(work.num_copied_blocks for work in cost.works) == 2
    assert len(result.records[0].finishes_s) == 3


@pytest.mark.parametrize("policy", ["paged", "orca-oracle"])
def test_siblings_are_told_from_sequences_of_other_requests(policy: str) -> None:
    cost = LinearCost()
    requests = [
        msgspec.structs.replace(request(0.0, 10, 3, n=n), seed=seed) for seed, n in ((7, 3), (8, 2), (9, 1), (9, 1))
    ]
    simulate(small_system(kv_policy=policy), cost, requests)
    assert [(work.num_sampled, work.num_siblings) for work in cost.works if work.num_sampled] == [(7, 3)] * 3


def test_a_cached_prefix_is_not_computed_again() -> None:
    cost = LinearCost()
    same = small_system(enable_prefix_caching=True)
    result = simulate(same, cost, [request(0.0, 65, 1), request(10.0, 65, 1)])
    assert cost.works[0].chunks == [Chunk(65, 0)]
    chunks = [work.chunks for work in cost.works if work.chunks]
    assert chunks[-1] == [Chunk(1, 64)]
    assert result.num_prefix_hit_tokens == 64


def test_nobody_waits_while_time_stands_still() -> None:
    """Between requests the clock jumps; a step never begins before its requests came."""
    result = simulate(small_system(), LinearCost(), [request(100.0, 8, 2), request(0.0, 8, 2)])
    assert [record.arrival_s for record in result.records] == [0.0, 100.0]
    assert result.records[1].first_token_s == pytest.approx(100.018)
    assert result.num_steps < 12


def test_a_run_may_end_early() -> None:
    result = simulate(small_system(), LinearCost(step_s=1.0), [request(0.0, 8, 100)], until_s=10.0)
    assert not result.finished
    assert result.records[0].first_token_s is not None
    assert 10.0 <= result.end_s < 12.0
    assert result.normalized_latency_s == float("inf")


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("preemption", ["recompute", "swap", "auto"])
def test_everything_is_answered_under_pressure(depth: int, preemption: str) -> None:
    system = small_system(num_blocks=14, depth=depth, preemption=preemption, num_host_blocks=32)
    requests = random_requests(80, seed=1, rate=50.0)
    simulation = Simulation(system, LinearCost(), requests)
    result = simulation.run()
    assert len(result.finished) == 80
    assert result.num_preemptions > 0
    assert simulation.core.audit() == []
    assert all(r.first_token_s is not None and r.first_token_s > r.arrival_s for r in result.records)


def test_the_same_run_twice_is_the_same() -> None:
    requests = random_requests(50, seed=2)
    first, second = (simulate(small_system(num_blocks=20), LinearCost(), requests) for _ in range(2))
    assert first == second


class _EarliestArrival:
    """The wrong way round: the oldest gives way."""

    def choose(self, candidates: list[Sequence]) -> Sequence:
        return min(candidates, key=lambda sequence: sequence.arrival)


def test_what_the_core_decides_moves_the_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulator holds no scheduling: what it shows follows the core's code."""
    system = small_system(num_blocks=14)
    requests = random_requests(80, seed=1, rate=50.0)
    before = simulate(system, LinearCost(), requests)

    with monkeypatch.context() as patch:
        patch.setattr(LastInOrder, "choose", _EarliestArrival.choose)
        oldest_gives_way = simulate(system, LinearCost(), requests)
    assert oldest_gives_way.num_recomputed_tokens > 1.1 * before.num_recomputed_tokens

    needed = KVCacheManager._prefill_blocks
    with monkeypatch.context() as patch:
        patch.setattr(KVCacheManager, "_prefill_blocks", lambda self, *args: needed(self, *args) + 4)
        reserves_more = simulate(system, LinearCost(), requests)
    assert reserves_more.mean_running < 0.8 * before.mean_running
    assert reserves_more.normalized_latency_s > 1.05 * before.normalized_latency_s


def test_probes_see_every_step_and_all_of_the_time() -> None:
    class Watch:
        def __init__(self) -> None:
            self.seconds = 0.0
            self.most_blocks = 0

        def observe(self, core: EngineCore, work: StepWork, now_s: float, duration_s: float) -> None:
            self.seconds += duration_s
            self.most_blocks = max(self.most_blocks, core.scheduler.kv.pool.num_held)

    watch = Watch()
    result = simulate(small_system(), LinearCost(), [request(0.0, 30, 10)], probes=[watch])
    assert watch.seconds == pytest.approx(result.end_s)
    assert watch.most_blocks == 3
    assert result.mean_running == pytest.approx(1.0)


def test_what_can_never_be_served_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"requests\[0\].*600 prompt tokens.*context holds 512"):
        simulate(small_system(), LinearCost(), [request(0.0, 600, 4)])


def test_a_search_needs_choices_to_replay() -> None:
    with pytest.raises(Exception, match="without recorded choices"):
        simulate(small_system(), LinearCost(), [request(0.0, 6, 4, beam_width=2)])
