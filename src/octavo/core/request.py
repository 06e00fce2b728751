"""A request and its sequences: what they hold, how far they are, and which moves are legal."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

import msgspec

from octavo.core.accounts import Account
from octavo.core.prefix_index import Lineage
from octavo.errors import InvariantError
from octavo.messages import EngineRequest, SamplingParams

if TYPE_CHECKING:
    from octavo.core.beam_group import BeamGroup
    from octavo.core.draft_policy import Acceptance

NO_ROW = -1


class SequenceStatus(Enum):
    WAITING = "waiting"
    """Never ran; owns nothing."""
    RUNNING = "running"
    """Has a row and blocks."""
    PREEMPTED = "preempted"
    """Ran, lost its row and blocks, waits to compute them again; its tokens are kept."""
    SWAPPED = "swapped"
    """Ran, lost its row; its blocks are on the host tier."""
    FINISHED = "finished"


_LEGAL_MOVES: dict[SequenceStatus, tuple[SequenceStatus, ...]] = {
    SequenceStatus.WAITING: (SequenceStatus.RUNNING, SequenceStatus.FINISHED),
    SequenceStatus.RUNNING: (SequenceStatus.PREEMPTED, SequenceStatus.SWAPPED, SequenceStatus.FINISHED),
    SequenceStatus.PREEMPTED: (SequenceStatus.RUNNING, SequenceStatus.FINISHED),
    SequenceStatus.SWAPPED: (SequenceStatus.RUNNING, SequenceStatus.PREEMPTED, SequenceStatus.FINISHED),
    SequenceStatus.FINISHED: (),
}


class Sequence:
    """One answer being written.

    The progress rule: a step moves `num_computed_tokens` towards `num_tokens`. Both move when a step is *planned*, so
    `num_tokens` counts a token that is being sampled and not known yet. The tokens themselves are
    `source.token_ids` followed by `answer`; the former are shared by all sequences of the request.

    Args:
        source: The request as it came.
        index: Which of the request's sequences; names its noise together with the seed.
        arrival: Position in the order of arrival, unique.
        sampling: The request's parameters, `prompt_logprobs` removed for all but index 0.
        stop_tokens: Token id to the `stop_reason` it gives.
        num_groups: KV groups of the model.
        account: The tenant's.
    """

    __slots__ = (
        "acceptance",
        "account",
        "answer",
        "arrival",
        "beams",
        "block_tables",
        "first_columns",
        "host_tables",
        "index",
        "last_start",
        "lineage",
        "max_answer_tokens",
        "max_num_tokens",
        "min_answer_tokens",
        "next_commit",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_lost_tokens",
        "num_promised_blocks",
        "num_prompt_logprobs",
        "num_slots",
        "num_tokens",
        "request_id",
        "row",
        "sampling",
        "source",
        "status",
        "stop_tokens",
    )

    def __init__(
        self,
        source: EngineRequest,
        index: int,
        arrival: int,
        sampling: SamplingParams,
        stop_tokens: dict[int, int | None],
        num_groups: int,
        account: Account,
    ) -> None:
        self.source = source
        self.request_id = source.request_id
        self.index = index
        self.arrival = arrival
        self.sampling = sampling
        self.stop_tokens = stop_tokens
        self.account = account
        self.status = SequenceStatus.WAITING

        num_resumed = len(source.token_ids) - source.num_prompt_tokens
        self.answer: list[int] = []
        """Tokens generated here, all emitted."""
        self.max_answer_tokens = source.max_tokens - num_resumed
        self.min_answer_tokens = sampling.min_tokens - num_resumed
        self.max_num_tokens = len(source.token_ids) + max(1, self.max_answer_tokens)
        """A sequence with this many tokens, the one being sampled included, computes no more. A request for no tokens
        counts one, which is sampled with the end of the prompt and dropped."""

        self.num_tokens = len(source.token_ids)
        self.num_computed_tokens = 0
        self.last_start = 0
        """`num_computed_tokens` before the last plan that held this sequence."""
        self.num_lost_tokens = 0
        """Tokens computed once and lost to a preemption, the most so far."""
        self.num_prompt_logprobs = 0
        """Prompt positions whose logprobs have been emitted."""

        self.row = NO_ROW
        self.block_tables: list[list[int]] = [[] for _ in range(num_groups)]
        """Per group, the block of each column; the null block below the window. All groups have equal lengths."""
        self.first_columns = [0] * num_groups
        """Per group, how many leading columns are null."""
        self.num_slots = 0
        """Tokens that the bound blocks have room for. After a fork a partly filled last block may have other readers:
        it then counts as full, so that the next write asks for it."""
        self.num_promised_blocks = 0
        """Blocks its prefill may still bind, put aside for it."""
        self.lineage: Lineage | None = None
        """What its blocks are found by; None where nothing is reused."""
        self.next_commit = 0
        """When this many tokens are computed, the next whole column can be found by others."""
        self.num_cached_tokens: int | None = None
        """Prompt tokens that were there already when it was first admitted; None before."""
        self.beams: BeamGroup | None = None
        """The search it is a beam of."""
        self.host_tables: list[list[int]] = []
        """While swapped: per group, the host slot of each column, as `block_tables`."""
        self.acceptance: Acceptance | None = None
        """What a draft policy knows about it."""

    @property
    def token_ids(self) -> list[int]:
        """Every known token, as a new list."""
        return self.source.token_ids + self.answer

    def tokens_between(self, first: int, last: int) -> list[int]:
        """Known tokens `first` to `last - 1`, as a new list."""
        source = self.source.token_ids
        if last <= len(source):
            return source[first:last]
        if first >= len(source):
            return self.answer[first - len(source) : last - len(source)]
        return source[first:] + self.answer[: last - len(source)]

    def block_ids(self) -> list[int]:
        """The blocks its tables name, column by column over the groups.

        Who gives them back walks from the end, so no group loses its beginning before another has lost its end.
        """
        if len(self.block_tables) == 1:  # nothing to interleave, and most models have one group
            return self.block_tables[0][self.first_columns[0] :]
        return [
            table[column]
            for column in range(max(map(len, self.block_tables)))
            for table, first in zip(self.block_tables, self.first_columns, strict=True)
            if first <= column < len(table)
        ]

    @property
    def num_held_blocks(self) -> int:
        return sum(map(len, self.block_tables)) - sum(self.first_columns)

    def forget_blocks(self) -> None:
        """Nothing of it is computed any more: it begins again from its tokens."""
        self.num_lost_tokens = max(self.num_lost_tokens, self.num_computed_tokens)
        self.num_computed_tokens = self.last_start = self.next_commit = 0

    def move_to(self, status: SequenceStatus) -> None:
        """Change the status.

        Raises:
            InvariantError: If the move is not legal.
        """
        if status not in _LEGAL_MOVES[self.status]:
            name = f"sequence {self.index} of request {self.request_id}"
            raise InvariantError([f"{name} went from {self.status.value} to {status.value}"])
        self.status = status


class Request:
    """A request that is not finished, with those of its sequences that are not."""

    __slots__ = ("leader", "num_needed_blocks", "sequences", "unborn")

    def __init__(self) -> None:
        self.sequences: dict[int, Sequence] = {}
        """By index. A resumed request may come back one child at a time, under its old id."""
        self.num_needed_blocks = 0
        """Most blocks that one of its sequences, or its beam search, needs at once to get on."""
        self.leader: Sequence | None = None
        """Computes the prompt for those that are not born yet."""
        self.unborn: dict[int, Sequence] = {}
        """Sequences that fork from the leader when the prompt is computed; neither running nor waiting."""


def stop_tokens_of(source: EngineRequest) -> dict[int, int | None]:
    """Token id to the `stop_reason` it gives."""
    stop_tokens: dict[int, int | None] = {token: token for token in source.sampling.stop_token_ids}
    # Past the end of what a grammar describes there is nothing to go on to.
    if not source.sampling.ignore_eos or source.grammar_id is not None:
        stop_tokens.update(dict.fromkeys(source.eos_token_ids))
    return stop_tokens


def make_sequences(source: EngineRequest, first_arrival: int, num_groups: int, account: Account) -> list[Sequence]:
    """The `sampling.n` sequences of a request that samples, in order of index."""
    sampling = source.sampling
    silent = sampling
    if sampling.prompt_logprobs is not None:
        silent = msgspec.structs.replace(sampling, prompt_logprobs=None)
    stop_tokens = stop_tokens_of(source)
    return [
        Sequence(
            source,
            index,
            first_arrival + i,
            sampling if index == 0 else silent,
            stop_tokens,
            num_groups,
            account,
        )
        for i, index in enumerate(range(source.first_index, source.first_index + sampling.n))
    ]
