"""`octavo bench quality`: every token once, figures that transformers confirms, and a planted error that shows."""

from __future__ import annotations

import argparse
import gzip
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from golden.test_int8_quality import TEXT
from octavo import LLM
from octavo.cli import bench_quality
from octavo.cli.bench_quality import Scores, Window, combinations, compare, read_text, score, windows
from octavo.cli.main import main
from octavo.cli.parser import Parser
from octavo.errors import ConfigError, OctavoError
from support.paths import TINYSTORIES

NATS_BY_TRANSFORMERS = {(64, 32): 3.892650751443631, (64, 63): 3.92311049747926, (200, 10): 3.8846722914466048}
"""Of TEXT by the tiny model, for windows and strides; test_quality_golden.py makes them again."""


@pytest.mark.parametrize(("length", "stride"), [(2, 1), (8, 1), (8, 4), (8, 7), (100, 50)])
def test_each_token_but_the_first_is_scored_once_with_what_came_before(length: int, stride: int) -> None:
    for num_tokens in (2, 3, 7, 8, 9, 50):
        found = list(windows(num_tokens, length, stride))
        assert [at for w in found for at in range(w.first, w.end)] == list(range(1, num_tokens))
        assert all(w.start < w.first and w.end - w.start <= length for w in found), "a token needs one before it"
        assert all(w.first - w.start >= length - stride for w in found[1:])


def test_windows_of_a_short_text() -> None:
    assert list(windows(10, 8, 4)) == [Window(0, 8, 1), Window(4, 10, 8)]
    assert list(windows(1, 8, 4)) == []


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(str(TINYSTORIES), dtype="float32", kv_cache_dtype="float32", num_blocks=200) as llm:
        yield llm


@pytest.mark.parametrize(("length", "stride"), NATS_BY_TRANSFORMERS)
def test_float32_is_what_transformers_says(llm: LLM, length: int, stride: int) -> None:
    scores = score(llm, llm.tokenizer.encode(TEXT), length, stride)
    assert len(scores.logprobs) == len(scores.top_ids) == 468
    assert abs(math.expm1(scores.nats - NATS_BY_TRANSFORMERS[length, stride])) < 1e-5


class Shifted:
    """A planted fault: the engine's labels are off by one."""

    def __init__(self, llm: LLM, *, hidden: bool) -> None:
        self.llm, self.hidden = llm, hidden

    def generate(self, prompts: Any, sampling: Any) -> Any:
        outputs = self.llm.generate(prompts, sampling)
        for output in outputs:
            entries = output.prompt_logprobs
            assert entries is not None
            moved = [entries[1], *entries[1:-1]]
            if self.hidden:  # with the right token's name on the wrong token's logprob
                moved = [
                    m and r and msgspec.structs.replace(m, token_id=r.token_id)
                    for m, r in zip(moved, entries[1:], strict=True)
                ]
            output.prompt_logprobs = [None, *moved]
        return outputs


def test_labels_that_are_off_by_one_are_seen(llm: LLM) -> None:
    token_ids = llm.tokenizer.encode(TEXT)
    with pytest.raises(OctavoError, match=r"token \d+ of the text is \d+; the engine scored"):
        score(Shifted(llm, hidden=False), token_ids, 64, 32)
    wrong = score(Shifted(llm, hidden=True), token_ids, 64, 32)
    assert abs(math.expm1(wrong.nats - NATS_BY_TRANSFORMERS[64, 32])) > 1e-3


def test_what_is_compared() -> None:
    exact = Scores([math.log(0.5), math.log(0.25)], [3, 4])
    other = Scores([math.log(0.25)] * 2, [3, 5])
    figures = compare(exact, other)
    assert figures["perplexity"] == pytest.approx(4) and figures["nats_per_token"] == pytest.approx(math.log(4))
    assert figures["relative_change"] == pytest.approx(4 / math.sqrt(8) - 1)
    assert figures["mean_abs_dlogprob"] == pytest.approx(math.log(2) / 2) and figures["top1_agreement"] == 0.5
    assert compare(exact, exact)["relative_change"] == 0 and compare(exact, exact)["top1_agreement"] == 1


def test_formats_are_combined_and_float32_comes_first() -> None:
    parser = Parser("octavo bench quality", "")
    bench_quality.add_arguments(parser)
    words = ["m", "--quantization", "none", "--dtype", "bfloat16", "float32", "--kv-cache-dtype", "float32", "int8"]
    args = parser.parse(words)
    assert {one["quantization"] for one in combinations(args)} == {"none"}
    found = [(one["dtype"], one["kv_cache_dtype"]) for one in combinations(args)]
    assert found == [("float32", "float32"), ("bfloat16", "float32"), ("bfloat16", "int8"), ("float32", "int8")]
    assert isinstance(args, argparse.Namespace)


def test_texts(tmp_path: Path) -> None:
    path = tmp_path / "t.txt.gz"
    path.write_bytes(gzip.compress("né\n".encode()))
    assert read_text(path) == "né\n"
    for data in (b"not packed", gzip.compress(b"x" * 999)[:20]):
        path.write_bytes(data)
        with pytest.raises(ConfigError, match="a readable text file"):
            read_text(path)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], "text = None: must be given"),
        (["--text", "/nowhere"], "must be a readable text file"),
        (["--text", "/nowhere", "--window", "1"], "window = 1: must be at least 2"),
        (["--text", "/nowhere", "--window", "8", "--stride", "8"], "stride = 8: must be from 1 to 7"),
    ],
)
def test_mistakes(words: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "quality", str(TINYSTORIES), *words]) == 2
    assert line in capsys.readouterr().err


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "text.txt"
    text.write_text(TEXT)
    words = ["--window", "64", "--dtype", "bfloat16", "--kv-cache-dtype", "auto", "int8", "--num-blocks", "200"]
    save = ["--save-result", "--result-dir", str(tmp_path), "--result-filename", "q.json"]
    assert main(["bench", "quality", str(TINYSTORIES), "--text", str(text), *words, *save]) == 0
    shown = capsys.readouterr().out
    assert "468 tokens, window 64" in shown and "top-1" in shown
    result = json.loads((tmp_path / "q.json").read_text())
    exact, bfloat16, int8 = result["formats"]
    assert (result["num_tokens"], result["stride"], result["text"]) == (468, 32, "text.txt")
    assert abs(math.expm1(exact["nats_per_token"] - NATS_BY_TRANSFORMERS[64, 32])) < 1e-5
    assert (bfloat16["weights"], bfloat16["kv"], int8["kv"]) == ("bfloat16", "bfloat16", "int8")
    assert 0 < bfloat16["mean_abs_dlogprob"] < int8["mean_abs_dlogprob"] < 0.2 and int8["top1_agreement"] > 0.9


def test_fewer_bits_cost_more(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text(TEXT)
    words = ["--window", "64", "--dtype", "float32", "--quantization", "int8", "int4", "--num-blocks", "200"]
    save = ["--save-result", "--result-dir", str(tmp_path), "--result-filename", "q.json"]
    assert main(["bench", "quality", str(TINYSTORIES), "--text", str(text), *words, *save]) == 0
    exact, int8, int4 = json.loads((tmp_path / "q.json").read_text())["formats"]
    assert [one["quantization"] for one in (exact, int8, int4)] == ["none", "int8", "int4"]
    assert exact["weights"] == "float32" != int8["weights"] != int4["weights"]
    assert 0 < int8["mean_abs_dlogprob"] < 0.5 * int4["mean_abs_dlogprob"], "four bits of sixteen times the step"
    assert int8["top1_agreement"] > int4["top1_agreement"] > 0.5
