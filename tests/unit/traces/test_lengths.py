"""Tables of lengths: the bundled ones agree with what is published about them; bad files are refused by line."""

from __future__ import annotations

import gzip
import statistics
from importlib import resources
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.errors import ConfigError
from octavo.traces.lengths import alpaca, read_lengths, sharegpt, wmt


def percentile(values: list[int], percent: float) -> int:
    return sorted(values)[int(percent / 100 * len(values))]


def test_sharegpt_is_the_papers() -> None:
    """Fig. 11 of the paper: mean 161.31 and 337.99; percentiles counted from the authors' file."""
    pairs = sharegpt()
    inputs, outputs = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    assert len(pairs) == 79_725
    assert pairs[:3] == [(21, 518), (8, 66), (19, 936)], "not in the order of the file"
    assert statistics.mean(inputs) == pytest.approx(161.31, abs=0.2)
    assert statistics.mean(outputs) == pytest.approx(337.99, abs=0.02)
    assert [percentile(inputs, p) for p in (10, 25, 50, 75, 90, 95, 99)] == [9, 15, 35, 133, 506, 863, 1460]
    assert [percentile(outputs, p) for p in (10, 25, 50, 75, 90, 95, 99)] == [45, 128, 271, 458, 754, 899, 1280]
    assert max(map(sum, pairs)) < 2048


def test_alpaca_is_close_to_the_papers() -> None:
    """Fig. 11 of the paper: mean 19.31 and 58.45. An end token on each answer would take it farther away."""
    pairs = alpaca()
    assert len(pairs) == 2951
    assert statistics.mean(pair[0] for pair in pairs) == pytest.approx(19.31, abs=0.5)
    assert statistics.mean(pair[1] for pair in pairs) == pytest.approx(58.45, abs=0.5)


def test_sharegpt_stands_to_alpaca_as_the_paper_says() -> None:
    """Section 6.1: prompts 8.4 times, answers 5.8 times as long."""
    ratios = [
        statistics.mean(pair[i] for pair in sharegpt()) / statistics.mean(pair[i] for pair in alpaca()) for i in (0, 1)
    ]
    assert ratios == pytest.approx([8.4, 5.8], rel=0.02)


def test_translations() -> None:
    pairs = wmt()
    assert len(pairs) == 3000
    assert statistics.mean(pair[0] for pair in pairs) == pytest.approx(26.93, abs=0.01)
    assert statistics.mean(pair[1] for pair in pairs) == pytest.approx(35.89, abs=0.01)


def test_every_bundled_table_is_in_the_package_and_in_its_note() -> None:
    folder = resources.files("octavo.traces") / "data"
    note = (folder / "README.md").read_text()
    tables = [item.name for item in folder.iterdir() if item.name.endswith(".gz")]
    assert len(tables) >= 4
    for name in tables:
        assert f"| `{name}` |" in note, f"{name} has no source"


def test_tables_are_not_changed_by_who_reads_them() -> None:
    alpaca().clear()
    assert alpaca()


@pytest.mark.parametrize("text", ["input_tokens,output_tokens\n3,4\n5,6\n", "3,4\n5,6", "\ufeff3,4\r\n\r\n5,6\r\n",
    "pd_ratio,num_decode_tokens,num_prefill_tokens\n0.5,4,3\n1.0,6,5\n", " 3 , 4 \n5,6,7\n"])  # fmt: skip
@pytest.mark.parametrize("zipped", [False, True])
def test_a_users_table(tmp_path: Path, text: str, zipped: bool) -> None:
    path = tmp_path / "lengths.csv"
    path.write_bytes(gzip.compress(text.encode()) if zipped else text.encode())
    assert read_lengths(path) == [(3, 4), (5, 6)]


@pytest.mark.parametrize(
    ("content", "where"),
    [
        (b"3,4\n5\n", "line 2: line = '5'"),
        (b"3,4\n5,0\n", "line 2: output_tokens = '0'"),
        (b"3,4\n-5,6\n", "line 2: input_tokens = '-5'"),
        (b"3,4\n5,6.5\n", "line 2: output_tokens = '6.5'"),
        (b"3,4\n\n5,99999999999999999999\n", "line 3: output_tokens = '99999999999999999999'"),
        ("3,4\n5,٣\n".encode(), "line 2: output_tokens"),
        (b"input_tokens,answer\n3,4\n", "line 1: columns = 'input_tokens,answer'"),
        (b"input_tokens,output_tokens\n", "line 2: line = ''"),
        (b"3,4\n\xff\xfe,1\n", "line 2: line = "),
        (b"1" * (1 << 20), "line 1: line = "),
        (b"", "a file with at least one line"),
        (b"\n \n", "a file with at least one line"),
        (gzip.compress(b"3,4\n" * 1000, mtime=0)[:-12], "a whole gzip file"),
        (b"\x1f\x8bnothing", "a whole gzip file"),
    ],
)
def test_a_bad_table_is_refused_by_line(tmp_path: Path, content: bytes, where: str) -> None:
    path = tmp_path / "lengths.csv"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        read_lengths(path)
    assert where in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nothing.csv"):
        with pytest.raises(ConfigError, match="a file that can be read"):
            read_lengths(path)


@settings(max_examples=150, deadline=None)
@given(content=st.binary(max_size=200) | st.text("0123456789,-.\n\r inputokes_", max_size=60).map(str.encode))
def test_any_file_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.csv"
    path.write_bytes(content)
    try:
        pairs = read_lengths(path)
    except ConfigError:
        return
    assert pairs
    assert all(a >= 1 and b >= 1 for a, b in pairs)
