"""Replayed beam searches: the real core keeps exactly the recorded beams, in the recorded order."""

from __future__ import annotations

from random import Random

import pytest

from octavo.core.engine_core import EngineCore
from octavo.errors import ConfigError
from octavo.sim.beam_replay import BeamReplay, Parents
from octavo.sim.cost_model import Chunk, StepWork
from octavo.sim.request import TimedRequest
from octavo.sim.simulator import simulate
from octavo.sim.system import System
from octavo.traces.beams import recorded_beams
from support.simulations import LinearCost, small_system


class Watcher:
    """Which beam each new beam continues, read off the answers of the core's beam groups."""

    def __init__(self) -> None:
        self._answers: dict[int, list[list[int]]] = {}
        self.parents: dict[int, list[Parents]] = {}

    def observe(self, core: EngineCore, work: StepWork, now_s: float, duration_s: float) -> None:
        assert not core.audit()
        for group in core.scheduler.beam_groups():
            number = group.source.request_id
            answers = [list(beam.answer) for beam in group.beams]
            before = self._answers.get(number, [[]])
            if len(answers[0]) == len(before[0]) + 1:
                # Tokens are ranks, so different beams have different answers.
                chosen = tuple(before.index(answer[:-1]) for answer in answers)
                self.parents.setdefault(number, []).append(chosen)
                assert [answer[-1] for answer in answers] == list(range(group.width))
            elif len(answers[0]) < len(before[0]):
                self.parents[number] = []  # begun again from the prompt
            self._answers[number] = answers


def made_records(rng: Random, width: int) -> list[list[Parents]]:
    def step() -> Parents:
        return tuple(rng.randrange(width) for _ in range(width))

    return [[(0,) * width, *(step() for _ in range(rng.randrange(1, 12)))] for _ in range(3)]


def check(replay: BeamReplay, requests: list[TimedRequest], system: System) -> int:
    """Simulate and compare every choice; the number of preemptions."""
    watcher = Watcher()
    result = simulate(system, LinearCost(step_s=1.0), requests, probes=[watcher], beams=replay)
    assert all(
        record.num_output_tokens == r.num_output_tokens for record, r in zip(result.records, requests, strict=True)
    )
    for number, request in enumerate(requests):
        assert request.beam_width is not None
        # The last token ends all beams, so nothing is chosen there.
        wanted = [
            replay.parents(request.seed, request.beam_width, step) for step in range(request.num_output_tokens - 1)
        ]
        assert watcher.parents.get(number, []) == wanted
    return result.num_preemptions


@pytest.mark.parametrize("policy,times", [("paged", 1), ("orca-oracle", 3), ("orca-max", 3)])
def test_systems_that_share_nothing_compute_the_prompt_of_each_beam(policy: str, times: int) -> None:
    cost = LinearCost()
    replay = BeamReplay({3: made_records(Random(0), 3)})
    block_size = 16 if policy == "paged" else 1
    system = small_system(kv_policy=policy, block_size=block_size, num_blocks=4096 // block_size)
    simulate(system, cost, [search(0, 3, 6)], beams=replay)
    first, second, *_ = cost.works
    assert (first.chunks, first.num_tokens, first.num_sampled) == ([Chunk(20, 0)] * times, 20 * times, 1)
    assert (second.chunks, second.num_tokens, second.num_decodes) == ([], 3, 3)
    assert (first.num_siblings, second.num_siblings) == (times - 1, 2)


def search(seed: int, width: int, num_output_tokens: int, arrival_s: float = 0.0, num_prompt: int = 20) -> TimedRequest:
    return TimedRequest(
        arrival_s=arrival_s,
        token_ids=[0] * num_prompt,
        num_output_tokens=num_output_tokens,
        beam_width=width,
        seed=seed,
    )


@pytest.mark.parametrize("width", [2, 4, 6])
def test_the_core_keeps_the_recorded_beams(width: int) -> None:
    requests = [search(seed, width, 60 + seed) for seed in range(4)]
    assert check(recorded_beams(), requests, System(num_blocks=400)) == 0


@pytest.mark.parametrize("seed", range(4))
def test_any_choices_can_be_replayed(seed: int) -> None:
    rng = Random(seed)
    replay = BeamReplay({width: made_records(rng, width) for width in (1, 2, 3, 5, 8)})
    requests = [search(rng.randrange(99), rng.choice(replay.widths), rng.randrange(1, 80), i * 0.5) for i in range(8)]
    check(replay, requests, System(num_blocks=1000, block_size=4))


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_preempted_searches_go_on_as_recorded(preemption: str) -> None:
    requests = [search(seed, 4, 80) for seed in range(6)]
    system = System(
        num_blocks=96, block_size=4, preemption=preemption, num_host_blocks=200 if preemption == "swap" else 0
    )
    assert check(recorded_beams(), requests, system) > 0


def test_a_long_search_goes_on_with_the_next_records() -> None:
    a: list[Parents] = [(0, 0), (0, 1), (1, 0)]
    b: list[Parents] = [(0, 0), (1, 1)]
    replay = BeamReplay({2: [a, b]})
    assert [replay.parents(0, 2, step) for step in range(8)] == [*a, *b[1:], *a[1:], *b[1:], *a[1:2]]
    assert [replay.parents(3, 2, step) for step in range(6)] == [*b, *a[1:], *b[1:], *a[1:2]]


def test_scores_do_not_drift() -> None:
    """float32 sums of a search of any length stay exact: step 100,000 looks like step 1."""
    replay = recorded_beams()
    for step in (1, 100_000):
        ranked = sorted(
            (-(-rank + logprob), token)
            for rank in range(6)
            for token, logprob in replay.candidates(7, 6, step, rank)
            if logprob > -1e6
        )
        assert ranked == [(float(rank), rank) for rank in range(6)]


def test_what_was_not_recorded_is_refused() -> None:
    with pytest.raises(ConfigError, match="beam_width = 3: must be one of 2, 4, 6"):
        recorded_beams().candidates(0, 3, 0, 0)
    with pytest.raises(ConfigError, match="two steps or more"):
        BeamReplay({2: [[(0, 0)]]})
    with pytest.raises(ConfigError, match="two steps or more"):
        BeamReplay({2: []})
