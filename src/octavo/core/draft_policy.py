"""How many tokens to guess: only as many as measured acceptance and measured step times say will pay."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from octavo.core.request import Sequence
from octavo.core.step import StepPlan, StepResult


class Outcome(NamedTuple):
    """What became of one row's drafts."""

    sequence: Sequence
    num_drafts: int
    num_accepted: int


class DraftPolicy(Protocol):
    def choose(self, sequences: list[Sequence], most: list[int], num_tokens: int) -> list[int]:
        """Draft tokens for each of these decoding sequences, from 0 to its `most`.

        Args:
            num_tokens: Tokens that the step computes anyway, all its rows together.
        """
        ...

    def observe(self, plan: StepPlan, result: StepResult, outcomes: list[Outcome]) -> None:
        """Learn from a step, one without drafts too."""
        ...


class AlwaysDraft:
    """As many as allowed, whatever it costs."""

    def choose(self, sequences: list[Sequence], most: list[int], num_tokens: int) -> list[int]:
        return most

    def observe(self, plan: StepPlan, result: StepResult, outcomes: list[Outcome]) -> None:
        """Nothing to learn."""


class Acceptance:
    """How often the target agreed with one sequence's drafts, lately, and how long ago it was last asked."""

    __slots__ = ("num_accepted", "num_steps_without", "num_tried", "probe_after")

    FIRST_PROBE = 16
    LAST_PROBE = 256

    def __init__(self) -> None:
        self.num_accepted = 0.0
        self.num_tried = 0.0
        self.num_steps_without = 0
        self.probe_after = self.FIRST_PROBE
        """Steps without drafts after which one is worth the try; more each time that it was not."""

    def rate(self, expected: float) -> float:
        """Share of draft tokens accepted among those whose predecessors were; `expected` counts as one try."""
        return (self.num_accepted + expected) / (self.num_tried + 1.0)

    def add(self, num_drafts: int, num_accepted: int, decay: float) -> None:
        """Drafts after the first rejected one say nothing."""
        self.num_accepted = self.num_accepted * decay + num_accepted
        self.num_tried = self.num_tried * decay + min(num_accepted + 1, num_drafts)

    def probed(self, num_accepted: int) -> None:
        self.num_steps_without = 0
        self.probe_after = self.FIRST_PROBE if num_accepted else min(self.LAST_PROBE, 2 * self.probe_after)


class StepCost:
    """Seconds of a step as a base plus so many per token: a least-squares line through recent steps.

    The steps' sizes must differ to give it a slope; until they do it is not known, and afterwards the last one holds.
    """

    DECAY = 0.98
    LEAST_VARIANCE = 0.02
    """In tokens squared, below which the line would be drawn through noise."""
    LARGEST_SURPRISE = 3.0
    """A step that took more times what was expected is counted as this many: something else had the processor."""

    def __init__(self) -> None:
        self.base_s = 0.0
        self.token_s: float | None = None
        self._weight = self._n = self._t = self._nn = self._nt = 0.0

    def at(self, num_tokens: float) -> float:
        return self.base_s + (self.token_s or 0.0) * num_tokens

    def add(self, num_tokens: int, seconds: float) -> None:
        if self.token_s is not None:
            seconds = min(seconds, self.LARGEST_SURPRISE * self.at(num_tokens))
        keep = self.DECAY
        self._weight = self._weight * keep + 1.0
        self._n = self._n * keep + num_tokens
        self._t = self._t * keep + seconds
        self._nn = self._nn * keep + num_tokens * num_tokens
        self._nt = self._nt * keep + num_tokens * seconds
        mean_n, mean_t = self._n / self._weight, self._t / self._weight
        variance = self._nn / self._weight - mean_n * mean_n
        if variance >= self.LEAST_VARIANCE:
            slope = (self._nt / self._weight - mean_n * mean_t) / variance
            self.token_s = min(max(slope, 0.0), mean_t / mean_n)
        if self.token_s is not None:
            self.base_s = max(0.0, mean_t - self.token_s * mean_n)


class DraftWhereItPays:
    """Guesses a token when what it is likely to give is worth more than the time it takes.

    The i-th draft of a sequence whose drafts are accepted with probability p gives p^i tokens and costs what one more
    token costs, measured, drafting included. The best mix of drafts is found by taking the likeliest first as long as
    they give more tokens per second than the step would without them. So few sequences, whose steps wait for memory,
    guess a lot; a full batch, in which every token costs arithmetic, guesses only what is nearly certain. Who guesses
    nothing tries again now and then, more and more rarely as long as that does not pay. And now and then nobody
    guesses anything, or what plain steps cost would be forgotten.
    """

    PLAIN_EVERY = 32
    """Steps of which one is plain; while costs are not known, every other."""
    PROBE_TOKENS = 2
    FIRST_GUESS = 0.5
    """Acceptance before anything is known."""
    DECAY = 0.85
    """Of what is known of a sequence, per step with drafts."""
    DECAY_OF_ALL = 0.98
    WEIGHT = 0.1
    """Of the newest figure in the mean time of a draft."""

    def __init__(self) -> None:
        self.cost = StepCost()
        self.draft_s = 0.0
        """Time to guess a token, without verifying it."""
        self._all = Acceptance()
        self._num_choices = 0

    def choose(self, sequences: list[Sequence], most: list[int], num_tokens: int) -> list[int]:
        token_s = self.cost.token_s
        self._num_choices += 1
        if self._num_choices % (self.PLAIN_EVERY if token_s is not None else 2) == 0:
            return [0] * len(sequences)
        if token_s is None:
            return most
        tokens, seconds = float(num_tokens), self.cost.at(num_tokens)
        expected = self._all.rate(self.FIRST_GUESS)
        chosen = [0] * len(sequences)
        offers = []
        draft_s = token_s + self.draft_s
        for i, sequence in enumerate(sequences):
            rate = gain = _known(sequence).rate(expected)
            for _ in range(most[i]):
                if gain * seconds <= draft_s * tokens:
                    break
                offers.append((-gain, i))
                gain *= rate
        for negative, i in sorted(offers):
            if -negative * seconds <= draft_s * tokens:
                break
            chosen[i] += 1
            tokens -= negative
            seconds += draft_s
        for i, sequence in enumerate(sequences):
            known = _known(sequence)
            known.num_steps_without += 1
            if not chosen[i] and known.num_steps_without >= known.probe_after:
                chosen[i] = min(most[i], self.PROBE_TOKENS)
        return chosen

    def observe(self, plan: StepPlan, result: StepResult, outcomes: list[Outcome]) -> None:
        for sequence, num_drafts, num_accepted in outcomes:
            known = _known(sequence)
            for acceptance, decay in ((known, self.DECAY), (self._all, self.DECAY_OF_ALL)):
                acceptance.add(num_drafts, num_accepted, decay)
            known.probed(num_accepted)
        num_rows, num_drafts = len(plan.rows), sum(outcome.num_drafts for outcome in outcomes)
        if num_drafts:
            self.draft_s += self.WEIGHT * (result.draft_s / num_drafts - self.draft_s)
        if num_rows and result.forward_s > 0 and sum(plan.num_new_tokens) == num_rows:  # nobody computes a prompt
            self.cost.add(num_rows + num_drafts, result.forward_s - result.draft_s)


def _known(sequence: Sequence) -> Acceptance:
    if sequence.acceptance is None:
        sequence.acceptance = Acceptance()
    return sequence.acceptance


DRAFTING: dict[str, type[DraftPolicy]] = {"auto": DraftWhereItPays, "always": AlwaysDraft}
