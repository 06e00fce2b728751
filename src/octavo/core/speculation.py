"""Draft slots: who may verify guessed tokens in a step, and what came of it.

The core grants a decoding row up to k slots past its last token; the worker guesses tokens for them, computes them
with the row's own token and samples every position with the target's own noise (see `core.step`). What the target
sampled is kept as long as the guess before it agreed, so the answer is the one of k + 1 plain steps. A draft is a
guess: it never preempts anybody, and takes only tokens and blocks that the step has left over. The blocks of slots
that were not needed go back when the step is applied, so between steps a sequence holds what its tokens need.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from octavo.core.draft_policy import DraftPolicy, Outcome
from octavo.core.kv_cache_manager import KVCacheManager
from octavo.core.request import Sequence, SequenceStatus
from octavo.core.step import Drafted, StepPlan, StepResult
from octavo.errors import InvariantError
from octavo.messages import TokenDelta, TokenLogprobs

if TYPE_CHECKING:
    from octavo.core.scheduler import ScheduledStep


class Verified(NamedTuple):
    """What a step found for one sequence before its last token of that step."""

    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None

    def begin(self, delta: TokenDelta) -> None:
        """Put it before the step's last token."""
        delta.token_ids = self.token_ids + delta.token_ids
        if self.logprobs is not None:
            delta.logprobs = self.logprobs + (delta.logprobs or [])


class Speculation:
    """Grants draft slots and settles them.

    Args:
        kv: Whose blocks are taken and returned.
        policy: Decides how many tokens are worth guessing.
        max_tokens: Most draft tokens of one sequence in one step.
    """

    def __init__(self, kv: KVCacheManager, policy: DraftPolicy, max_tokens: int) -> None:
        self.policy = policy
        self.max_tokens = max_tokens
        self.num_drafts = 0
        self.num_draft_tokens = 0
        self.num_accepted_tokens = 0
        self._kv = kv

    def grant(self, step: ScheduledStep) -> None:
        """Give decoding sequences draft slots, of what the plan leaves. Asked before the sequences advance."""
        plan = step.plan
        places, most = [], []
        for place, (sequence, num_new) in enumerate(zip(step.sequences, plan.num_new_tokens, strict=True)):
            if num_new == 1 and (room := self._room(sequence)) > 0:
                places.append(place)
                most.append(room)
        if not places or not step.token_budget:
            return
        counts = [0] * len(step.sequences)
        chosen = self.policy.choose([step.sequences[place] for place in places], most, sum(plan.num_new_tokens))
        for place, count in zip(places, chosen, strict=True):
            counts[place] = count = self._bind(step.sequences[place], min(count, step.token_budget), plan)
            step.token_budget -= count
        if any(counts):
            plan.num_drafts = counts

    def _room(self, sequence: Sequence) -> int:
        """Draft tokens that a sequence could make use of; 0 for one that is not decoding or is not to be guessed."""
        is_decoding = sequence.answer and sequence.num_computed_tokens + 1 == sequence.num_tokens
        if not is_decoding or sequence.beams is not None or sequence.source.grammar_id is not None:
            return 0
        # Besides the accepted ones a step always gives one token of its own.
        return min(self.max_tokens, sequence.max_num_tokens - sequence.num_tokens - 1)

    def _bind(self, sequence: Sequence, count: int, plan: StepPlan) -> int:
        """Find slots for draft tokens; as many as fit the blocks that are there if the pool has no more."""
        end = sequence.num_computed_tokens + 1
        if end + count > sequence.num_slots and not self._kv.grow(sequence, end + count, plan):
            return max(0, min(count, sequence.num_slots - end))
        return count

    # ---- applying

    def settle(self, step: ScheduledStep, result: StepResult) -> dict[Sequence, Verified]:
        """Move sequences past the drafts that the target agreed with, and return the other slots.

        Afterwards each has one token left to take from the step, in `result`, as without drafts.

        Returns:
            What was found before that token, by sequence.

        Raises:
            InvariantError: If the worker reports more than it was granted.
        """
        plan = step.plan
        drafted = {found.row: found for found in result.drafted}
        places = {row: i for i, row in enumerate(plan.sample_rows)} if drafted else {}
        verified: dict[Sequence, Verified] = {}
        outcomes: list[Outcome] = []
        for sequence, row, granted in zip(step.sequences, plan.rows, plan.num_drafts, strict=False):
            if not granted or sequence.status is not SequenceStatus.RUNNING:
                continue
            found = drafted.get(row)
            if found is not None:
                _check(found, granted, row)
                place = places[row]
                before = self._accept(sequence, found, place, result)
                if before.token_ids:
                    verified[sequence] = before
                outcomes.append(Outcome(sequence, found.num_drafts, len(found.token_ids)))
                self.num_draft_tokens += found.num_drafts
                self.num_accepted_tokens += len(before.token_ids)
            self._kv.trim(sequence)
        self.num_drafts += len(outcomes)
        self.policy.observe(plan, result, outcomes)
        return verified

    def _accept(self, sequence: Sequence, found: Drafted, place: int, result: StepResult) -> Verified:
        """Enter all but the last of a row's tokens, and leave the last one in the result."""
        tokens = [result.token_ids[place], *found.token_ids]
        num_kept = _num_kept(sequence, tokens)
        *before, result.token_ids[place] = tokens[:num_kept]
        logprobs = None
        if result.logprobs is not None and (first := result.logprobs[place]) is not None:
            *logprobs, result.logprobs[place] = [first, *(found.logprobs or [])][:num_kept]
        sequence.answer += before
        sequence.num_tokens += len(before)
        sequence.num_computed_tokens += len(before)
        return Verified(before, logprobs)


def _check(found: Drafted, granted: int, row: int) -> None:
    if not (0 < found.num_drafts <= granted and len(found.token_ids) <= found.num_drafts):
        raise InvariantError(
            [
                f"row {row} was granted {granted} draft tokens, and {found.num_drafts} were made, "
                f"{len(found.token_ids)} accepted"
            ]
        )


def _num_kept(sequence: Sequence, tokens: list[int]) -> int:
    """Tokens up to the one that ends the answer; the grant keeps within its length."""
    first = len(sequence.answer) + 1
    for num_answer, token in enumerate(tokens, first):
        if token in sequence.stop_tokens and num_answer > sequence.min_answer_tokens:
            return num_answer - first + 1
    return len(tokens)
