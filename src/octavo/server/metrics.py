"""What the server counts, and its Prometheus text.

Counting is plain Python so that it costs next to nothing per token; prometheus_client is imported at the first scrape
and only renders. Label values come from fixed sets: nothing a client sends becomes a label.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from octavo.messages import FINISH_ABORT, FINISH_ERROR, FINISH_LENGTH, FINISH_STOP, EngineInfo, EngineStats

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

FINISH_REASONS = (FINISH_STOP, FINISH_LENGTH, FINISH_ABORT, FINISH_ERROR)
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"})
OTHER = "other"

# fmt: off
_FIRST_TOKEN_S = (
    .001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0,
    2560.0,
)
_PER_TOKEN_S = (
    .001, .0025, .005, .01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)
_REQUEST_S = (
    .01, .05, .1, .3, .5, .8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0,
    960.0, 1920.0, 7680.0,
)
# fmt: on
_N = (1.0, 2.0, 5.0, 10.0, 20.0)


def _one_two_five(limit: int) -> tuple[float, ...]:
    """1, 2, 5, 10, ... up to `limit`."""
    steps = (float(digit * 10**power) for power in itertools.count() for digit in (1, 2, 5))
    return tuple(itertools.takewhile(lambda step: step <= limit, steps))


class Histogram:
    """Counts of values by bucket; a bucket holds values up to and including its bound."""

    def __init__(self, name: str, help: str, bounds: tuple[float, ...]) -> None:
        self.name = name
        self.help = help
        self.bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self._counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    def cumulative(self) -> list[tuple[str, float]]:
        """(bound as text, values up to it), as Prometheus wants them."""
        bounds = [*(f"{bound:g}" for bound in self.bounds), "+Inf"]
        return [*zip(bounds, map(float, itertools.accumulate(self._counts)), strict=True)]


class ServerMetrics:
    """Everything this server measures itself. One per server."""

    def __init__(self, max_model_len: int) -> None:
        tokens = _one_two_five(max_model_len)
        self.first_token = Histogram("time_to_first_token_seconds", "Arrival to first token.", _FIRST_TOKEN_S)
        self.inter_token = Histogram("inter_token_latency_seconds", "Between two tokens of an answer.", _PER_TOKEN_S)
        self.per_output_token = Histogram(
            "request_time_per_output_token_seconds", "Mean time per token after the first, per answer.", _PER_TOKEN_S
        )
        self.end_to_end = Histogram("e2e_request_latency_seconds", "Arrival to the end of the answer.", _REQUEST_S)
        self.prompt_tokens = Histogram("request_prompt_tokens", "Tokens per prompt.", tokens)
        self.generation_tokens = Histogram("request_generation_tokens", "Tokens per answer.", tokens)
        self.params_n = Histogram("request_params_n", "The n that requests ask for.", _N)
        self.params_max_tokens = Histogram("request_params_max_tokens", "The max_tokens that requests set.", tokens)
        self.finished: Counter[str] = Counter(dict.fromkeys(FINISH_REASONS, 0))
        self.http: Counter[tuple[str, str, str]] = Counter()

    @property
    def histograms(self) -> tuple[Histogram, ...]:
        return (
            self.first_token,
            self.inter_token,
            self.per_output_token,
            self.end_to_end,
            self.prompt_tokens,
            self.generation_tokens,
            self.params_n,
            self.params_max_tokens,
        )

    def count_http(self, handler: str | None, method: str, status: int) -> None:
        """`handler` is the route's own path pattern, None where no route was found."""
        method = method if method in METHODS else OTHER
        self.http[handler or OTHER, method, f"{status // 100}xx"] += 1


def render(
    metrics: ServerMetrics, info: EngineInfo, stats: EngineStats | None, model_name: str, *, vllm_names: bool
) -> bytes:
    """The text of /metrics. `stats` is None when the engine does not answer."""
    from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

    registry = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=registry)
    registry.register(_Snapshot(metrics, info, stats, model_name, vllm_names))
    return generate_latest(registry)


class _Snapshot:
    """One scrape's families, for prometheus_client to write out."""

    def __init__(
        self, metrics: ServerMetrics, info: EngineInfo, stats: EngineStats | None, model_name: str, vllm_names: bool
    ) -> None:
        self._metrics = metrics
        self._info = info
        self._stats = stats
        self._labels = {"model_name": model_name, "engine": "0"}
        self._prefixes = ("octavo:", "vllm:") if vllm_names else ("octavo:",)

    def collect(self) -> Iterator[Metric]:
        for prefix in self._prefixes:
            yield from self._common(prefix)
        yield from self._own()

    def _common(self, prefix: str) -> Iterator[Metric]:
        """What routers and dashboards know under vLLM's names too."""
        for histogram in self._metrics.histograms:
            yield self._histogram(prefix, histogram)
        reasons = [({"finished_reason": reason}, count) for reason, count in self._metrics.finished.items()]
        yield self._family("counter", prefix + "request_success", "Answers, by why they ended.", reasons)
        if self._stats is None:
            return
        stats, info = self._stats, self._info
        usage = stats.num_held_blocks / max(1, stats.num_blocks)
        accepted = stats.num_accepted_tokens
        for kind, name, help, value in (
            ("gauge", "num_requests_running", "Sequences in the running batch.", stats.num_running),
            ("gauge", "num_requests_waiting", "Sequences waiting to be admitted.", stats.num_waiting),
            ("gauge", "kv_cache_usage_perc", "Share of KV blocks that are held, 0 to 1.", usage),
            ("counter", "num_preemptions", "Sequences preempted.", stats.num_preemptions),
            ("counter", "prefix_cache_queries", "Prompt tokens looked up.", stats.num_prefix_query_tokens),
            ("counter", "prefix_cache_hits", "Prompt tokens found in the prefix cache.", stats.num_prefix_hit_tokens),
            ("counter", "prompt_tokens_cached", "Prompt tokens not computed, but found.", stats.num_prefix_hit_tokens),
            ("counter", "prompt_tokens", "Prompt tokens, computed or found.", stats.num_prompt_tokens),
            ("counter", "generation_tokens", "Tokens generated.", stats.num_generated_tokens),
            ("counter", "prompt_tokens_recomputed", "Tokens computed again.", stats.num_recomputed_tokens),
            ("counter", "spec_decode_num_drafts", "Times that tokens were guessed for a sequence.", stats.num_drafts),
            ("counter", "spec_decode_num_draft_tokens", "Tokens guessed.", stats.num_draft_tokens),
            ("counter", "spec_decode_num_accepted_tokens", "Guessed tokens that were right.", accepted),
        ):
            yield self._family(kind, prefix + name, help, [({}, value)])
        config = {
            "block_size": str(info.block_size),
            "num_gpu_blocks": str(info.num_blocks),
            "num_cpu_blocks": str(info.num_host_blocks),
            "cache_dtype": info.kv_dtype,
        }
        yield self._family("gauge", prefix + "cache_config_info", "How the KV cache is laid out.", [(config, 1)])

    def _own(self) -> Iterator[Metric]:
        up = 0 if self._stats is None else 1
        yield self._family("gauge", "octavo:engine_up", "1 while the engine answers.", [({}, up)])
        requests = [
            ({"handler": handler, "method": method, "status": status}, count)
            for (handler, method, status), count in sorted(self._metrics.http.items())
        ]
        yield self._family("counter", "octavo:http_requests", "HTTP requests, by route and outcome.", requests)
        if self._stats is None:
            return
        s = self._stats
        blocks = {
            "held": s.num_held_blocks,
            "pinned": s.num_pinned_blocks,
            "cached": s.num_cached_blocks,
            "free": s.num_free_blocks,
        }
        states = [({"state": state}, count) for state, count in blocks.items()]
        yield self._family("gauge", "octavo:kv_blocks", "KV blocks, by state.", states)
        for name, help, value in (
            ("kv_blocks_promised", "Free and cached blocks reserved for admitted prompts.", s.num_promised_blocks),
            ("num_sequences_swapped", "Sequences that wait in host memory.", s.num_swapped),
        ):
            yield self._family("gauge", f"octavo:{name}", help, [({}, value)])
        for name, help, value in (
            ("steps", "Steps of the engine.", s.num_steps),
            ("allocation_faults", "KV blocks allocated.", s.num_allocation_faults),
            ("recompute_faults", "KV blocks computed again after they were lost.", s.num_recompute_faults),
            ("copy_faults", "KV blocks copied before a write.", s.num_copy_faults),
            ("swap_faults", "KV blocks fetched back from host memory.", s.num_swap_faults),
            ("swap_preemptions", "Preemptions that swapped.", s.num_swap_preemptions),
            ("evictions", "Cached KV blocks that made room.", s.num_evictions),
            ("shared_waits", "Requests that waited for another to compute a shared prefix.", s.num_shared_waits),
            ("takeovers", "Times the one they waited for was gone, so that one of them took over.", s.num_takeovers),
            ("wasted_slots", "Results dropped because their sequence had already ended.", s.num_wasted_slots),
            ("sequence_errors", "Sequences that failed.", s.num_errors),
        ):
            yield self._family("counter", f"octavo:{name}", help, [({}, value)])

    def _family(self, kind: str, name: str, help: str, samples: list[tuple[dict[str, str], Any]]) -> Metric:
        from prometheus_client.metrics_core import Metric

        family = Metric(name, help, kind)
        for labels, value in samples:
            suffix = "_total" if kind == "counter" else ""
            family.add_sample(name + suffix, {**self._labels, **labels}, float(value))
        return family

    def _histogram(self, prefix: str, histogram: Histogram) -> Metric:
        from prometheus_client.metrics_core import HistogramMetricFamily

        family = HistogramMetricFamily(prefix + histogram.name, histogram.help, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), histogram.cumulative(), histogram.total)
        return family
