"""Who gives way when a running sequence needs a block and none is left, and how."""

from __future__ import annotations

from typing import Protocol

from octavo.core.order import Order, by_arrival
from octavo.core.request import Sequence
from octavo.core.step import StepPlan, StepResult


class PreemptionPolicy(Protocol):
    def choose(self, candidates: list[Sequence]) -> Sequence:
        """The sequence to preempt; those of its request go with it.

        Args:
            candidates: In the order of service, the one that needs a block first, then every running sequence that the
                plan in the making does not hold.
        """
        ...


class LastInOrder:
    """The last to be served gives way, so the first always advances: in order of arrival nobody starves.

    Args:
        order: The order of service.
    """

    def __init__(self, order: Order = by_arrival) -> None:
        self._order = order

    def choose(self, candidates: list[Sequence]) -> Sequence:
        return max(candidates, key=self._order)


class WayPolicy(Protocol):
    """Swap, or compute again?"""

    def swaps(self, num_blocks: int, num_tokens: int) -> bool:
        """Whether sequences that hold `num_blocks` blocks with `num_tokens` computed tokens should be swapped. Only
        asked where the host tier has room."""
        ...

    def observe(self, plan: StepPlan, result: StepResult) -> None:
        """Learn from a step."""


class AlwaysSwap:
    def swaps(self, num_blocks: int, num_tokens: int) -> bool:
        return True

    def observe(self, plan: StepPlan, result: StepResult) -> None:
        """Nothing to learn."""


class AlwaysRecompute:
    def swaps(self, num_blocks: int, num_tokens: int) -> bool:
        return False

    def observe(self, plan: StepPlan, result: StepResult) -> None:
        """Nothing to learn."""


class MeasuredCosts:
    """Whichever was cheaper so far, by the worker's own figures (running means).

    A swap moves every block out and back; recomputation pays for each token what a prefill chunk's token takes. As
    long as nothing was swapped, one swap is made to learn what it takes.
    """

    WEIGHT = 0.2
    """Of the newest figure in the mean."""
    FEWEST_TOKENS = 8
    """Smaller steps say what a step costs, not what a token costs."""

    def __init__(self) -> None:
        self.swap_s_per_block: float | None = None
        self.compute_s_per_token: float | None = None

    def swaps(self, num_blocks: int, num_tokens: int) -> bool:
        if self.swap_s_per_block is None:
            return True
        if self.compute_s_per_token is None:
            return False
        return 2 * num_blocks * self.swap_s_per_block < num_tokens * self.compute_s_per_token

    def observe(self, plan: StepPlan, result: StepResult) -> None:
        num_swapped = len(plan.swap_out) + len(plan.swap_in)
        if num_swapped and result.swap_s > 0:
            self.swap_s_per_block = self._mean(self.swap_s_per_block, result.swap_s / num_swapped)
        if len(plan.setups) and result.forward_s > 0:
            num_tokens = sum(plan.num_new_tokens)
            if num_tokens >= self.FEWEST_TOKENS:
                self.compute_s_per_token = self._mean(self.compute_s_per_token, result.forward_s / num_tokens)

    def _mean(self, old: float | None, new: float) -> float:
        return new if old is None else old + self.WEIGHT * (new - old)


WAYS: dict[str, type[WayPolicy]] = {"auto": MeasuredCosts, "swap": AlwaysSwap, "recompute": AlwaysRecompute}
