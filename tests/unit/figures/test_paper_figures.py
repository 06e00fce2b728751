"""The figures in their short form: who is ahead of whom, and the paper's numbers where a quick run gives them."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from octavo.errors import ConfigError
from octavo.figures import catalogue, fig2, make, paper
from octavo.figures.curves import sustained
from octavo.figures.figure import AnyFigure, Row
from octavo.figures.paper import FASTER_TRANSFORMER, MAX, ORACLE, PAGED, POW2
from octavo.sim.paper_systems import POLICIES

FIGURES = catalogue.load([])


def numbers(folder: Path, name: str, key: str, value: str, **where: str) -> dict[str, float]:
    """Column `value` by column `key`, of the rows in which columns have these values."""
    with (folder / f"{name}.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if all(row[k] == v for k, v in where.items())]
    return {row[key]: float(row[value]) for row in rows}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The short form of the figures that are simulated."""
    chosen = catalogue.load(["fig2", "fig12", "fig13", "fig14", "fig15"])
    folder = tmp_path_factory.mktemp("figures")
    reports = make.make(chosen, folder, num_workers=2, is_short=True)
    assert all(report.is_short and report.comparisons for report in reports)
    assert all(c.holds is None for report in reports for c in report.comparisons), "nothing is agreed for short runs"
    return folder


def test_every_figure_leaves_its_four_files(folder: Path) -> None:
    for name in ("fig2", "fig12", "fig13", "fig14", "fig15"):
        assert all((folder / f"{name}.{kind}").stat().st_size > 100 for kind in ("png", "svg", "csv", "json"))
        svg = (folder / f"{name}.svg").read_text()
        assert svg.count("<text") > 10, "words are text"
        assert any(f"({unit})" in svg for unit in ("s/token", "%", "requests/s")) or "Requests in a batch" in svg


def test_paging_fills_memory_that_the_baselines_set_aside(folder: Path) -> None:
    tokens = numbers(folder, "fig2", "system", "percent", state=paper.TOKENS)
    assert tokens[PAGED] > 90 > 2 * tokens[ORACLE] > 2 * tokens[POW2] > 2 * tokens[MAX]
    for system in fig2.SYSTEMS:
        shares = numbers(folder, "fig2", "state", "percent", system=system)
        assert sum(shares.values()) == pytest.approx(100, abs=0.01)
        assert all(share >= 0 for share in shares.values())
    assert numbers(folder, "fig2", "system", "percent", state=paper.INTERNAL)[ORACLE] == 0


def test_the_papers_memory_is_found_in_a_whole_run() -> None:
    """Figure 2 for two of its systems, to a point."""
    results = {job: job.run() for job in fig2.plan(False) if job.system in (MAX, POW2)}
    for job, shares in results.items():
        for state, quoted in paper.FIG2[job.system].items():
            assert shares[state] == pytest.approx(quoted.value, abs=fig2.POINTS), (job.system, state)


def test_batches_rank_as_in_the_paper(folder: Path) -> None:
    on_sharegpt = numbers(folder, "fig13", "system", "requests", workload="sharegpt")
    assert on_sharegpt[PAGED] > 2 * on_sharegpt[ORACLE] > 2.2 * on_sharegpt[POW2]
    assert on_sharegpt[MAX] == pytest.approx(7.0, abs=0.05)
    on_alpaca = numbers(folder, "fig13", "system", "requests", workload="alpaca")
    assert on_alpaca[PAGED] > on_alpaca[ORACLE] > on_alpaca[POW2] > on_alpaca[MAX] == pytest.approx(7.0, abs=0.05)


def points(folder: Path, name: str) -> list[Row]:
    with (folder / f"{name}.csv").open() as file:
        return [
            {**row, "rate": float(row["rate"]), "latency_s_per_token": float(row["latency_s_per_token"])}
            for row in csv.DictReader(file)
        ]


def test_latency_turns_up_in_the_papers_order(folder: Path) -> None:
    rows = points(folder, "fig12")
    rates = sustained(rows, "a")
    assert rates[PAGED] > rates[ORACLE] > rates[POW2] > rates[MAX]
    most = {
        row["system"]: row["rate"] for row in rows if row["latency_s_per_token"] < 0.3
    }  # rates rise within a system
    assert most[FASTER_TRANSFORMER] < 0.5 * most[MAX], "a batch waits for its longest answer"


def test_shared_prompts_sustain_more(folder: Path) -> None:
    rates = sustained(points(folder, "fig14"), "parallel 2")
    assert rates[PAGED] > rates[ORACLE] > rates[POW2] > rates[MAX]


def test_beams_share_more_than_samples(folder: Path) -> None:
    parallel = numbers(folder, "fig15", "count", "saved_percent", kind="parallel")
    beam = numbers(folder, "fig15", "count", "saved_percent", kind="beam")
    assert beam["6"] > beam["2"] > 20 > parallel["6"] > 0


@pytest.mark.parametrize("figure", FIGURES, ids=[figure.name for figure in FIGURES])
def test_a_figures_runs_are_distinct_data(figure: AnyFigure) -> None:
    for is_short in (False, True):
        jobs = figure.plan(is_short)
        assert len(set(jobs)) == len(jobs) == len(figure.plan(is_short)) > 0
        assert set(jobs) == set(figure.plan(is_short)), "equal runs are equal"
        assert all(job.label and job.weight > 0 for job in jobs)
    assert figure.title.startswith("Figure ") and figure.caption.endswith(".")


def test_the_papers_systems_are_those_that_are_simulated() -> None:
    assert set(paper.SYSTEMS) == set(POLICIES) == set(paper.NAMES)


def test_names() -> None:
    assert [figure.name for figure in catalogue.load(["13", "fig2"])] == ["fig2", "fig13"], "in the paper's order"
    with pytest.raises(ConfigError, match=r"figure = 'fig21': must be one of fig2, .* \(did you mean fig2\?\)"):
        catalogue.load(["fig21"])
