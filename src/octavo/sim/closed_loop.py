"""Requests that wait for each other: so many in flight at any time, the next one sent when one is answered."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from octavo.errors import ConfigError
from octavo.messages import TokenDelta
from octavo.sim.cost_model import CostModel
from octavo.sim.request import TimedRequest
from octavo.sim.result import SimResult
from octavo.sim.simulator import Simulation
from octavo.sim.system import System


class ClosedLoop(Simulation):
    """A simulation in which a request arrives as soon as fewer than `in_flight` are unanswered. Times of arrival that
    the requests bring along do not count; those in the records are when they were sent.

    Raises:
        ConfigError: For fewer than one in flight.
    """

    def __init__(self, system: System, cost: CostModel, requests: Iterable[TimedRequest], *, in_flight: int) -> None:
        if in_flight < 1:
            raise ConfigError("in_flight", in_flight, "at least 1")
        super().__init__(system, cost, [_sent(r, float("inf")) for r in requests])
        self._in_flight = in_flight
        self._num_open = 0

    def _arrive(self, now_s: float) -> None:
        first = self._num_arrived
        for number in range(first, min(first + self._in_flight - self._num_open, len(self._requests))):
            self._requests[number] = _sent(self._requests[number], now_s)
        super()._arrive(now_s)
        self._num_open += self._num_arrived - first

    def _note(self, deltas: list[TokenDelta], now_s: float) -> None:
        super()._note(deltas, now_s)
        for number in {delta.request_id for delta in deltas if delta.finish_reason is not None}:
            record = self._records[number]
            self._num_open -= len(record.finishes_s) == record.num_sequences


def _sent(request: TimedRequest, arrival_s: float) -> TimedRequest:
    return msgspec.structs.replace(request, arrival_s=arrival_s)


def simulate_closed_loop(
    system: System, cost: CostModel, requests: Iterable[TimedRequest], *, in_flight: int
) -> SimResult:
    """Serve requests with `in_flight` of them unanswered at any time, until all are answered.

    Raises:
        ConfigError: As `simulate`, and for fewer than one in flight.
    """
    return ClosedLoop(system, cost, requests, in_flight=in_flight).run()
