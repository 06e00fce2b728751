"""What became of simulated requests."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from octavo.sim.request import TimedRequest


class RequestRecord(msgspec.Struct, kw_only=True):
    """One request's times, in simulated seconds."""

    arrival_s: float
    num_prompt_tokens: int
    num_output_tokens: int
    """Of each answer."""
    num_sequences: int
    """Answers drawn, or beams searched."""
    first_token_s: float | None = None
    finishes_s: list[float] = []
    """When each answer was complete."""

    @classmethod
    def of(cls, request: TimedRequest) -> RequestRecord:
        return cls(
            arrival_s=request.arrival_s,
            num_prompt_tokens=len(request.token_ids),
            num_output_tokens=request.num_output_tokens,
            num_sequences=request.beam_width or request.n,
        )

    @property
    def is_finished(self) -> bool:
        """Whether its last answer is complete. A beam search hands out its answers at once, as many as were asked."""
        return bool(self.finishes_s)

    @property
    def latency_s(self) -> float:
        """From arrival to the end of the last answer; only for finished ones."""
        return self.finishes_s[-1] - self.arrival_s

    @property
    def ttft_s(self) -> float:
        """From arrival to the first token; only for started ones."""
        return (self.first_token_s or 0.0) - self.arrival_s

    @property
    def tpot_s(self) -> float:
        """Seconds per token after the first; only for finished ones."""
        return (self.finishes_s[-1] - (self.first_token_s or 0.0)) / max(1, self.num_output_tokens - 1)


class SimResult(msgspec.Struct, kw_only=True):
    """A finished run. Means are over finished requests, times in simulated seconds."""

    records: list[RequestRecord]
    """In order of arrival."""
    end_s: float
    num_steps: int
    running_s: float
    """Sequences in each step times its seconds, summed."""
    num_preemptions: int = 0
    num_swap_preemptions: int = 0
    num_recomputed_tokens: int = 0
    num_prefix_hit_tokens: int = 0
    num_prefix_query_tokens: int = 0

    @property
    def finished(self) -> list[RequestRecord]:
        return [record for record in self.records if record.is_finished]

    @property
    def normalized_latency_s(self) -> float:
        """Mean over answers of end-to-end latency by output length, in seconds per token (paper, section 6.1).

        Infinite if nothing finished.
        """
        found = [
            (finish_s - record.arrival_s) / record.num_output_tokens
            for record in self.records
            for finish_s in record.finishes_s
        ]
        return sum(found) / len(found) if found else float("inf")

    @property
    def throughput_tokens_per_s(self) -> float:
        """Answer tokens of finished requests per second of the run."""
        return sum(r.num_output_tokens * len(r.finishes_s) for r in self.finished) / self.end_s if self.end_s else 0.0

    @property
    def throughput_requests_per_s(self) -> float:
        return len(self.finished) / self.end_s if self.end_s else 0.0

    @property
    def mean_running(self) -> float:
        """Sequences in a step, averaged over time."""
        return self.running_s / self.end_s if self.end_s else 0.0

    def ttft_s(self, percent: float = 50) -> float:
        """A percentile of the times to first token."""
        return percentile((r.ttft_s for r in self.finished), percent)

    def tpot_s(self, percent: float = 50) -> float:
        """A percentile of the seconds per token after the first, over requests with more than one."""
        return percentile((r.tpot_s for r in self.finished if r.num_output_tokens > 1), percent)

    def latency_s(self, percent: float = 50) -> float:
        """A percentile of the end-to-end latencies."""
        return percentile((r.latency_s for r in self.finished), percent)


def percentile(values: Iterable[float], percent: float) -> float:
    """Linear interpolation between the closest ranks; infinite if there is nothing."""
    ordered = sorted(values)
    if not ordered:
        return float("inf")
    position = (len(ordered) - 1) * percent / 100
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)
