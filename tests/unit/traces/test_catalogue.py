"""Workloads by name: what comes with the package works at once, everything else says what it needs."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from octavo.errors import ConfigError
from octavo.traces.catalogue import CATALOGUE, lookup, workload

BUNDLED = [name for name, entry in CATALOGUE.items() if not entry.needs_trace]


@pytest.mark.parametrize("name", BUNDLED)
def test_a_bundled_workload_works_out_of_the_box(name: str) -> None:
    requests = workload(name, 5.0, 60.0, 1)
    assert 200 < len(requests) < 400
    assert all(0 <= request.arrival_s < 60 for request in requests)
    assert all(request.token_ids and request.num_output_tokens >= 1 for request in requests)
    assert requests == workload(name, 5.0, 60.0, 1)
    assert requests != workload(name, 5.0, 60.0, 2)


def test_names_that_the_docs_promise() -> None:
    assert set(CATALOGUE) == {
        "sharegpt", "alpaca", "parallel", "beam", "shared-prefix-1shot", "shared-prefix-5shot", "chat", "multi-turn",
        "azure-code", "azure-conv", "mooncake",
    }  # fmt: skip


def test_samples_and_beams() -> None:
    assert {request.n for request in workload("parallel", 5.0, 20.0, n=6)} == {6}
    assert {request.beam_width for request in workload("beam", 5.0, 20.0, beam_width=6)} == {6}


def test_chat_prompts_are_long() -> None:
    """Histories make them so: with first rounds alone the mean would be about 420."""
    prompts = [len(request.token_ids) for request in workload("chat", 1.0, 600.0)]
    assert statistics.mean(prompts) == pytest.approx(710, abs=60)
    assert sum(prompt == 1024 for prompt in prompts) / len(prompts) == pytest.approx(0.43, abs=0.06)


def test_arrivals_leave_lengths_alone() -> None:
    means = [
        statistics.mean(len(request.token_ids) for request in workload("alpaca", 5.0, 600.0, arrivals=arrivals))
        for arrivals in ("poisson", "bursty")
    ]
    assert means == pytest.approx([19, 19], abs=1)


def test_a_longest_request() -> None:
    requests = workload("sharegpt", 5.0, 60.0, max_model_len=100)
    assert max(len(request.token_ids) + request.num_output_tokens for request in requests) <= 100
    with pytest.raises(ConfigError, match="max_model_len"):
        workload("shared-prefix-5shot", 5.0, 60.0, max_model_len=100)


def test_a_users_lengths(tmp_path: Path) -> None:
    path = tmp_path / "lengths.csv"
    path.write_text("7,8\n")
    requests = workload("sharegpt", 5.0, 10.0, trace=path)
    assert {(len(request.token_ids), request.num_output_tokens) for request in requests} == {(7, 8)}


def test_unknown_names_list_those_that_there_are() -> None:
    with pytest.raises(ConfigError, match=r"workload = 'sharegp': must be one of sharegpt, alpaca, .*mooncake"):
        lookup("sharegp")


@pytest.mark.parametrize("name", [name for name in CATALOGUE if name not in BUNDLED])
def test_a_workload_without_its_file_says_where_to_get_it(name: str) -> None:
    with pytest.raises(ConfigError, match=r"https://github\.com/"):
        workload(name)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({}, "rate"),
        ({"rate": 0.0}, "rate"),
        ({"rate": 1.0, "duration_s": 0.0}, "duration_s"),
        ({"rate": 1.0, "arrivals": "poison"}, "arrivals"),
        ({"rate": 1.0, "arrivals": "trace"}, "arrivals"),
        ({"rate": 1.0, "n": 0}, "n"),
        ({"rate": 1.0, "trace": Path("/nothing")}, "/nothing"),
    ],
)
def test_bad_settings_are_named(settings: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError) as caught:
        workload("parallel", **settings)  # type: ignore[arg-type]
    assert str(caught.value).startswith(named + " = ")
