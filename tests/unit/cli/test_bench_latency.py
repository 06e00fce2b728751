"""The latency benchmark's figures and mistakes. The command itself runs in tests/e2e."""

from __future__ import annotations

import pytest

from octavo.cli.bench_latency import summarize
from octavo.cli.main import main


def test_figures_are_means_and_percentiles_in_ms() -> None:
    figures = summarize({"latency": [0.1, 0.3, 0.2], "ttft": [0.05, 0.05, 0.05], "tpot": []})
    assert figures["mean_latency_ms"] == pytest.approx(200) and figures["p50_latency_ms"] == pytest.approx(200)
    assert figures["p99_latency_ms"] == pytest.approx(298) and figures["latency_ms"] == pytest.approx([100, 300, 200])
    assert figures["mean_tpot_ms"] is None and figures["p50_tpot_ms"] is None, "one token has no time after it"


@pytest.mark.parametrize("flag", ["--input-len", "--output-len", "--batch-size", "--n", "--num-iters"])
def test_nothing_to_time_is_refused(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "latency", "no-such-model", flag, "0"]) == 2
    assert f"{flag[2:].replace('-', '_')} = 0: must be at least 1" in capsys.readouterr().err
