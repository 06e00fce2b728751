"""Lengths of prompts and answers: the tables that come with the package, and the user's own."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from octavo.traces.files import bad, bundled, lines, token_count

_INPUT_NAMES = ("input_tokens", "prompt_tokens", "num_prefill_tokens", "ContextTokens")
_OUTPUT_NAMES = ("output_tokens", "answer_tokens", "num_decode_tokens", "GeneratedTokens")

_PAPER_MAX_TOKENS = 2048
"""OPT's context. The authors' workload keeps the pairs below it."""


def sharegpt() -> list[tuple[int, int]]:
    """(prompt tokens, answer tokens) of the paper's ShareGPT workload: the 79,725 pairs of fewer than 2048 tokens in
    all, in the order of the authors' file (section 6.1)."""
    return list(_sharegpt())


def alpaca() -> list[tuple[int, int]]:
    """(prompt tokens, answer tokens) of 2,951 rows of Alpaca, for the paper's Alpaca workload (section 6.1).

    Answers are counted without an end token: mean 58.94, and the paper's is 58.45.
    """
    return list(_alpaca())


def wmt() -> list[tuple[int, int]]:
    """(tokens of an English sentence, tokens of its German translation) of 3,000 pairs of WMT's news test 2013, LLaMA's
    tokenizer, for the paper's shared prefix (section 6.4). The paper used the test set of 2016."""
    return list(_wmt())


@cache
def _sharegpt() -> list[tuple[int, int]]:
    return [pair for pair in read_lengths(bundled("sharegpt_opt_lengths.csv.gz")) if sum(pair) < _PAPER_MAX_TOKENS]


@cache
def _alpaca() -> list[tuple[int, int]]:
    return read_lengths(bundled("alpaca_sample_opt_lengths.csv.gz"))


@cache
def _wmt() -> list[tuple[int, int]]:
    return read_lengths(bundled("wmt_newstest2013_llama_lengths.csv.gz"))


def read_lengths(path: Path) -> list[tuple[int, int]]:
    """Read (prompt tokens, answer tokens) from a CSV file, plain or gzip.

    The first line may name the columns; those called `input_tokens` and `output_tokens` (or `prompt_tokens` and
    `answer_tokens`, or what Vidur's and Azure's traces call them) are read. Without such a line the first two columns
    are.

    Raises:
        ConfigError: If the file cannot be read, a column is missing, or a length is no integer from 1 to 2^24; the
            message names file, line and value.
    """
    found = iter(lines(path))
    number, first = next(found)
    cells = first.split(",")
    if any(cell.strip().isdigit() for cell in cells):
        columns, pairs = (0, 1), [_pair(path, number, cells, (0, 1))]
    else:
        columns = _column(path, number, cells, _INPUT_NAMES), _column(path, number, cells, _OUTPUT_NAMES)
        pairs = []
    pairs += [_pair(path, number, line.split(","), columns) for number, line in found]
    if not pairs:
        raise bad(path, number + 1, "line", "", "two lengths: the file holds none")
    return pairs


def _column(path: Path, line: int, header: list[str], names: tuple[str, ...]) -> int:
    stripped = [cell.strip() for cell in header]
    for name in names:
        if name in stripped:
            return stripped.index(name)
    raise bad(path, line, "columns", ",".join(stripped), f"names with one of {', '.join(names)} among them, or lengths")


def _pair(path: Path, line: int, cells: list[str], columns: tuple[int, int]) -> tuple[int, int]:
    if len(cells) <= max(columns):
        raise bad(path, line, "line", ",".join(cells), f"at least {max(columns) + 1} values with commas between them")
    return (
        token_count(path, line, "input_tokens", cells[columns[0]]),
        token_count(path, line, "output_tokens", cells[columns[1]]),
    )
