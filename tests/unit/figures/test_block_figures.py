"""Figures 16 to 19 in their short form: prefixes, chat, block sizes, and what is measured on this machine."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from octavo.figures import catalogue, fig16, fig17, fig18a, fig18b, fig19a, fig19b, make, paper
from octavo.figures.curves import sustained
from octavo.figures.figure import Comparison, Numbers, Report, Row
from octavo.figures.paper import MAX, ORACLE, PAGED, POW2
from octavo.measure.attention import CONTIGUOUS
from octavo.measure.paging import LAYOUTS

NAMES = ("fig16", "fig17", "fig18a", "fig18b", "fig19a", "fig19b")
ORIGIN = "Measured on a machine."


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Report]]:
    folder = tmp_path_factory.mktemp("figures")
    reports = make.make(catalogue.load(NAMES), folder, num_workers=2, is_short=True, origin=ORIGIN)
    return folder, {report.name: report for report in reports}


def table(made: tuple[Path, dict[str, Report]], name: str) -> list[Row]:
    def cell(text: str) -> str | float:
        try:
            return float(text)
        except ValueError:
            return text

    with (made[0] / f"{name}.csv").open() as file:
        return [{key: cell(text) for key, text in row.items()} for row in csv.DictReader(file)]


def by_name(comparisons: list[Comparison]) -> dict[str, Comparison]:
    return {comparison.what: comparison for comparison in comparisons}


def test_every_figure_leaves_its_four_files_with_words_and_units(made: tuple[Path, dict[str, Report]]) -> None:
    for name in NAMES:
        assert all((made[0] / f"{name}.{kind}").stat().st_size > 100 for kind in ("png", "svg", "csv", "json"))
        svg = (made[0] / f"{name}.svg").read_text()
        assert any(unit in svg for unit in ("s/token", "(ms)", "(%)")) and ("tokens)" in svg or "requests/s" in svg)


def test_only_what_is_measured_names_the_machine(made: tuple[Path, dict[str, Report]]) -> None:
    assert {name for name, report in made[1].items() if ORIGIN in report.notes} == {"fig18a", "fig19a"}


def test_a_shared_prefix_makes_room(made: tuple[Path, dict[str, Report]]) -> None:
    rates = sustained(table(made, "fig16"), "5-shot")
    assert rates[PAGED] > 2 * rates[ORACLE]
    (ratio,) = [c for c in made[1]["fig16"].comparisons if c.what == "5-shot: paged over Orca (Oracle)"]
    assert ratio.ours == pytest.approx(rates[PAGED] / rates[ORACLE], rel=1e-3) and ratio.paper == 3.58


def test_the_orcas_are_near_each_other_in_chat(made: tuple[Path, dict[str, Report]]) -> None:
    rates = sustained(table(made, "fig17"), "chat")
    assert rates[PAGED] > 1.2 * rates[ORACLE] > 1.2 * rates[POW2] > 1.2 * rates[MAX] > 0.9 * rates[ORACLE]
    (reason,) = {c.reason for c in made[1]["fig17"].comparisons if c.reason}
    assert "% of the prompts have 1024 tokens" in reason


def test_layouts_and_block_sizes_of_the_kernel(made: tuple[Path, dict[str, Report]]) -> None:
    rows = table(made, "fig18a")
    assert [row["layout"] for row in rows[:3]] == [layout.name for layout in LAYOUTS]
    assert rows[0]["ratio"] == 1.0 and all(float(row["us_per_layer"] or 0) > 0 for row in rows)
    assert len([row for row in rows if row["compared_with"] == "blocks of 16"]) == len(fig18a.BLOCK_SIZES)


def test_slower_is_per_cent_over_contiguous() -> None:
    job = fig18a.PagingTiming(model="OPT-13B", num_seqs=8, context=64, repeats=2)
    times = {CONTIGUOUS.name: 1.0, "blocks of 16, in order": 1.1, "blocks of 16": 1.25}
    numbers: Numbers = {f"{name}: {part}": ratio for name, ratio in times.items() for part in ("ratio", "low", "high")}
    numbers |= {f"{name}: us": 100 * ratio for name, ratio in times.items()}
    by_size = fig18a.PagingTiming(model="SmolLM2-135M", num_seqs=8, context=512, repeats=2, is_by_block_size=True)
    small: Numbers = {f"blocks of 4: {part}": 3.0 for part in ("us", "ratio", "low", "high")}
    found = fig18a.derive({job: numbers, by_size: small})
    assert found.comparisons[0].ours == pytest.approx(25) and found.comparisons[0].said == "20% to 26% [P]"
    assert found.comparisons[1].what.endswith("blocks of 4 over blocks of 16") and found.comparisons[1].ours == 3.0


def test_large_blocks_waste_and_small_ones_only_slow_the_kernel(made: tuple[Path, dict[str, Report]]) -> None:
    rows = table(made, "fig18b")
    for workload, panel in fig18b.PANELS.items():
        slowed = fig18b.latencies(rows, workload, panel.rate)
        unslowed = fig18b.latencies(rows, workload, panel.rate, fig18b.UNSLOWED)
        assert slowed[16] < slowed[4] and slowed[16] < slowed[256] and unslowed[256] == slowed[256]
        assert unslowed[4] == pytest.approx(slowed[16], rel=0.1)


def block_size_findings(sharegpt: dict[int, float], alpaca: dict[int, float]) -> dict[str, Comparison]:
    results = {}
    for job in fig18b.plan(False):
        options = dict(job.system_options)
        by_size = sharegpt if job.workload == "sharegpt" else alpaca
        results[job] = {"latency_s": by_size[int(options["block_size"] or 0)], "mean_running": 1, "num_preemptions": 0}
    return by_name(fig18b.derive(results).comparisons)


def test_the_best_range_is_judged() -> None:
    fair = {1: 9.0, 2: 5.0, 4: 1.0, 8: 0.3, 16: 0.1, 32: 0.1, 64: 0.2, 128: 0.4, 256: 0.9}
    found = block_size_findings(fair, fair | {64: 0.15, 128: 1.0, 256: 5.0})
    assert all(c.holds is not False for c in found.values())
    assert sum(c.holds is True for c in found.values()) == 2 + 1 + 2 + 3
    title = fig18b.PANELS["alpaca"].title
    assert found[f"{title}: blocks of 256 over the slowest of 16 to 32"].ours == pytest.approx(50)
    flat = block_size_findings(fair | {256: 0.35}, fair | {8: 0.01, 64: 0.05, 256: 0.15})
    missed = {what for what, c in flat.items() if c.holds is False}
    assert missed == {
        f"{fig18b.PANELS['sharegpt'].title}: blocks of 256 over the slowest of 16 to 128",
        f"{title}: best block size",
        f"{title}: blocks of 64 over the slowest of 16 to 32",
        f"{title}: blocks of 256 over the slowest of 16 to 32",
    }


def test_swapping_on_the_modelled_card(made: tuple[Path, dict[str, Report]]) -> None:
    """In whole: 256 tokens are 210 MB; a copy for each of 256 blocks, 40 layers, K and V takes 3.5 us at least."""
    results = {job: job.run() for job in fig19a.plan(True) if isinstance(job, fig19a.SwapModel)}
    timing = fig19a.SwapTiming(model="tiny", block_sizes=(1,), repeats=1)
    findings = fig19a.derive({**results, timing: {"1: out": 1, "1: in": 1, "1: both": 2, "1: recompute": 300}})
    both = fig19a.column(findings.rows, fig19a.MODELLED, "both_ms")
    assert both[1] == pytest.approx(2 * 256 * 40 * 2 * 3.5e-3) and both[256] == pytest.approx(
        2 * 209.7 / 12.5, rel=0.01
    )
    judged = by_name(findings.comparisons)
    assert all(c.holds for what, c in judged.items() if what.startswith("A100")), "the paper's crossing"
    assert judged["CPU: computing again over swapping out and in, blocks of 1"].ours == 150
    rows = [row for row in table(made, "fig19a") if row["where"] == fig19a.MEASURED]
    assert [row["block_size"] for row in rows] == list(fig19a.SHORT_SIZES)
    assert all(float(row["recompute_ms"] or 0) > 0 and float(row["both_ms"] or 0) > 0 for row in rows)


def test_both_ways_to_preempt_serve_everybody(made: tuple[Path, dict[str, Report]]) -> None:
    rows = table(made, "fig19b")
    assert {row["preemption"] for row in rows} == set(fig19b.WAYS)
    swap, recompute = (fig19b.by_size(rows, way) for way in fig19b.WAYS)
    assert swap.keys() == recompute.keys() and all(
        0 < latency < 10 for latency in [*swap.values(), *recompute.values()]
    )


def test_a_curve_that_never_turns_is_left_out_of_the_comparison() -> None:
    jobs = fig16.plan(True)
    low: Numbers = {"least_latency_s": 0.1, "num_requests": 5, "num_unfinished": 0}
    assert fig16.derive(dict.fromkeys(jobs, low)).comparisons == []
    assert fig17.derive(dict.fromkeys(fig17.plan(True), low)).comparisons == []


def test_the_papers_numbers_are_used() -> None:
    assert set(fig16.PANELS) == set(paper.FIG16_RATIOS) and set(fig18b.PANELS) == set(paper.FIG18B_BEST)
