"""What is sent to a simulated engine, and when."""

from __future__ import annotations

import msgspec

from octavo.messages import EngineRequest, SamplingParams


class TimedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request with its time of arrival. Its answers have exactly `num_output_tokens` tokens each."""

    arrival_s: float
    """Seconds from the start of the workload."""
    token_ids: list[int]
    """The prompt. Only equality of prefixes matters, and only where prefixes are cached; else all may be 0."""
    num_output_tokens: int
    n: int = 1
    beam_width: int | None = None
    seed: int = 0
    """Of the request's noise; also chooses the recorded beam search that is replayed."""

    def as_engine_request(self, request_id: int) -> EngineRequest:
        """The request as the core takes it: no stop token ends it early."""
        return EngineRequest(
            request_id=request_id,
            token_ids=self.token_ids,
            num_prompt_tokens=len(self.token_ids),
            sampling=SamplingParams(
                n=self.n, beam_width=self.beam_width, max_tokens=self.num_output_tokens, ignore_eos=True
            ),
            seed=self.seed,
            max_tokens=self.num_output_tokens,
            arrival_s=self.arrival_s,
        )
