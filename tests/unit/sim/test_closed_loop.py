from __future__ import annotations

import pytest

from octavo.errors import ConfigError
from octavo.sim.closed_loop import simulate_closed_loop
from octavo.sim.request import TimedRequest
from octavo.sim.simulator import simulate
from octavo.sim.system import System
from support.simulations import LinearCost

SYSTEM = System(num_blocks=200, max_num_seqs=8, max_model_len=128)


def requests(count: int, n: int = 1) -> list[TimedRequest]:
    return [
        TimedRequest(arrival_s=i / 7, token_ids=[0] * (3 + i % 5), num_output_tokens=2 + i % 4, n=n)
        for i in range(count)
    ]


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("in_flight", [1, 3, 50])
def test_so_many_are_unanswered_at_any_time(in_flight: int, n: int) -> None:
    result = simulate_closed_loop(SYSTEM, LinearCost(), requests(20, n), in_flight=in_flight)
    assert len(result.finished) == 20
    events = [(r.arrival_s, 1, 1) for r in result.records] + [(r.finishes_s[-1], 0, -1) for r in result.records]
    open_now, most = 0, 0
    for _, _, change in sorted(events):  # an answer before the request that takes its place
        open_now += change
        most = max(most, open_now)
    assert most == min(in_flight, 20)
    sent = sorted(r.arrival_s for r in result.records)
    ended = sorted(r.finishes_s[-1] for r in result.records)
    assert sent[: min(in_flight, 20)] == [0.0] * min(in_flight, 20)
    assert sent[in_flight:] == ended[: max(0, 20 - in_flight)]


def test_one_in_flight_is_one_after_another() -> None:
    result = simulate_closed_loop(SYSTEM, LinearCost(), requests(5), in_flight=1)
    alone = [
        simulate(
            SYSTEM,
            LinearCost(),
            [TimedRequest(arrival_s=0.0, token_ids=r.token_ids, num_output_tokens=r.num_output_tokens)],
        )
        for r in requests(5)
    ]
    assert result.end_s == pytest.approx(sum(one.end_s for one in alone))


def test_none_in_flight_is_refused() -> None:
    with pytest.raises(ConfigError, match="in_flight = 0"):
        simulate_closed_loop(SYSTEM, LinearCost(), requests(1), in_flight=0)
