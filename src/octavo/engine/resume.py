"""What must be remembered of a request so that a new engine process can go on with it."""

from __future__ import annotations

import itertools

import msgspec

from octavo.messages import FINISH_ERROR, EngineRequest, TokenDelta, TokenLogprobs

_PLAIN = {"prompt_logprobs": None}


class _Answer:
    __slots__ = ("finished", "token_ids")

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.finished = False


class LiveRequest:
    """A request in flight, with what has been received of it."""

    def __init__(self, request: EngineRequest) -> None:
        self.request = request
        self._answers = {request.first_index + i: _Answer() for i in range(request.sampling.n)}
        self._num_unfinished = len(self._answers)
        self._num_prompt_logprobs = 0
        """Positions that were passed on, once each."""
        self._num_to_skip = 0
        """Of them, those that the present engine has yet to repeat."""
        self.num_deaths = 0
        """Engines that died under this request since it last received a token."""

    @property
    def finished(self) -> bool:
        return self._num_unfinished == 0

    def receive(self, delta: TokenDelta) -> bool:
        """Note a delta. False if it must not be passed on: its answer was given up or has ended."""
        answer = self._answers.get(delta.index)
        if answer is None or answer.finished:
            return False
        if answer.token_ids:  # a resumed answer finds its own beginning in the cache: that is no news of the prompt
            delta.num_cached_tokens = 0
        answer.token_ids += delta.token_ids
        if delta.token_ids:
            self.num_deaths = 0
        if delta.prompt_logprobs:
            delta.prompt_logprobs = self._new_prompt_logprobs(delta.prompt_logprobs)
        if delta.finish_reason is not None:
            self._finish(answer)
        return True

    def give_up(self, index: int | None) -> None:
        """Forget one answer, or all."""
        for i, answer in self._answers.items():
            if (index is None or i == index) and not answer.finished:
                self._finish(answer)

    def failed(self, why: str) -> list[TokenDelta]:
        """The last deltas of a request that is given up for a reason of ours."""
        request_id = self.request.request_id
        return [
            TokenDelta(request_id, index, [], finish_reason=FINISH_ERROR, error=why)
            for index, answer in self._answers.items()
            if not answer.finished
        ]

    def _finish(self, answer: _Answer) -> None:
        answer.finished = True
        answer.token_ids = []
        self._num_unfinished -= 1

    def _new_prompt_logprobs(self, positions: list[TokenLogprobs | None]) -> list[TokenLogprobs | None]:
        """Those that were not received before a restart: the prompt is computed again from its start."""
        skipped = min(self._num_to_skip, len(positions))
        self._num_to_skip -= skipped
        self._num_prompt_logprobs += len(positions) - skipped
        return positions[skipped:]

    def resumed(self, new_ids: itertools.count[int]) -> list[EngineRequest]:
        """What to ask a new engine for: the rest of each answer.

        An answer that has begun goes on by itself, under an id of its own, as prompt and tokens so far. Nothing is
        drawn anew: a token's noise depends on seed, index and position only.
        """
        request = self.request
        if request.sampling.beam_width is not None:  # nothing is known of a search before its end: it starts again
            return [request] if not self.finished else []
        if not any(answer.token_ids or answer.finished for answer in self._answers.values()):
            self._num_to_skip = self._num_prompt_logprobs
            return [request]
        rest = []
        for index, answer in self._answers.items():
            if answer.finished:
                continue
            begun = bool(answer.token_ids)
            changes = {"n": 1, **(_PLAIN if begun or index > 0 else {})}
            if not begun and index == 0:
                self._num_to_skip = self._num_prompt_logprobs
            rest.append(
                msgspec.structs.replace(
                    request,
                    request_id=next(new_ids),
                    token_ids=request.token_ids + answer.token_ids,
                    sampling=msgspec.structs.replace(request.sampling, **changes),
                    first_index=index,
                )
            )
        return rest
