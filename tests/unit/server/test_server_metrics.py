"""Metrics: bucket edges, names, fixed label sets."""

from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from octavo.messages import EngineStats
from octavo.server.metrics import Histogram, ServerMetrics, render
from support.infos import tiny_info

INFO = tiny_info(num_blocks=40)


def scrape(metrics: ServerMetrics, stats: EngineStats | None, *, vllm_names: bool = True) -> dict[str, Any]:
    text = render(metrics, INFO, stats, "m", vllm_names=vllm_names).decode()
    return {
        (sample.name, *sorted(v for k, v in sample.labels.items() if k not in ("model_name", "engine"))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_value_on_a_bound_belongs_to_its_bucket() -> None:
    histogram = Histogram("x", "", (1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 3.0):
        histogram.observe(value)
    histogram.observe(1.5, times=2)
    assert histogram.cumulative() == [("1", 2.0), ("2", 6.0), ("+Inf", 7.0)]
    assert histogram.total == 11.0


def test_both_name_spaces_say_the_same() -> None:
    metrics = ServerMetrics(256)
    metrics.first_token.observe(0.05)
    metrics.finished["stop"] += 3
    stats = EngineStats(num_blocks=40, num_held_blocks=10, num_running=2, num_waiting=1, num_generated_tokens=9)
    found = scrape(metrics, stats)
    for prefix in ("octavo:", "vllm:"):
        assert found[f"{prefix}num_requests_running",] == 2
        assert found[f"{prefix}num_requests_waiting",] == 1
        assert found[f"{prefix}kv_cache_usage_perc",] == 0.25
        assert found[f"{prefix}generation_tokens_total",] == 9
        assert found[f"{prefix}request_success_total", "stop"] == 3
        assert found[f"{prefix}request_success_total", "error"] == 0
        assert found[f"{prefix}time_to_first_token_seconds_bucket", "0.06"] == 1
        assert found[f"{prefix}time_to_first_token_seconds_bucket", "0.04"] == 0
    assert found["octavo:kv_blocks", "held"] == 10


def test_the_prefix_cache_and_the_faults_are_counted() -> None:
    stats = EngineStats(
        num_blocks=40, num_held_blocks=10, num_cached_blocks=20, num_free_blocks=9, num_pinned_blocks=1,
        num_promised_blocks=3, num_prefix_query_tokens=100, num_prefix_hit_tokens=60, num_preemptions=4,
        num_swap_preemptions=3, num_copy_faults=5, num_swap_faults=6, num_swapped=2, num_evictions=7, num_takeovers=1,
        num_shared_waits=8,
    )  # fmt: skip
    found = scrape(ServerMetrics(256), stats)
    for prefix in ("octavo:", "vllm:"):
        assert found[f"{prefix}prefix_cache_queries_total",] == 100
        assert found[f"{prefix}prefix_cache_hits_total",] == found[f"{prefix}prompt_tokens_cached_total",] == 60
        assert found[f"{prefix}num_preemptions_total",] == 4
        assert found[f"{prefix}kv_cache_usage_perc",] == 0.25, "cached blocks are not in use"
    states = {state: found["octavo:kv_blocks", state] for state in ("held", "pinned", "cached", "free")}
    assert states == {"held": 10, "pinned": 1, "cached": 20, "free": 9} and sum(states.values()) == 40
    assert found["octavo:kv_blocks_promised",] == 3 and found["octavo:num_sequences_swapped",] == 2
    counters = ("copy_faults", "swap_faults", "swap_preemptions", "evictions", "shared_waits", "takeovers")
    assert [found[f"octavo:{name}_total",] for name in counters] == [5, 6, 3, 7, 8, 1]


def test_vllm_names_can_be_left_out() -> None:
    assert not any(name.startswith("vllm:") for name, *_ in scrape(ServerMetrics(256), EngineStats(), vllm_names=False))


def test_a_dead_engine_still_has_metrics() -> None:
    found = scrape(ServerMetrics(256), None)
    assert found["octavo:engine_up",] == 0
    assert ("octavo:request_success_total", "stop") in found
    assert ("octavo:num_requests_running",) not in found


def test_made_up_methods_and_paths_share_one_label() -> None:
    metrics = ServerMetrics(256)
    for i in range(10_000):
        metrics.count_http(None, f"METHOD{i}", 404)
    found = scrape(metrics, EngineStats())
    assert found["octavo:http_requests_total", "4xx", "other", "other"] == 10_000
    assert len(metrics.http) == 1
