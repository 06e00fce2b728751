"""Azure's traces of LLM inference (2023: code completion and conversation): when requests came, and how long they were.

Source: https://github.com/Azure/AzurePublicDataset, `data/AzureLLMInferenceTrace_code.csv` and `..._conv.csv`,
CC BY 4.0; Patel et al., "Splitwise", ISCA 2024.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from octavo.traces.files import bad, in_order, lines, token_count

_COLUMNS = ["TIMESTAMP", "ContextTokens", "GeneratedTokens"]


class TracedLengths(NamedTuple):
    """One recorded request."""

    time_s: float
    """Seconds since the first of the trace."""
    num_input_tokens: int
    num_output_tokens: int


def read_azure(path: Path, tell: Callable[[str], None] = lambda note: None) -> list[TracedLengths]:
    """Read an Azure trace, plain or gzip, in order of time.

    Args:
        tell: Told if the file itself is not in that order.

    Raises:
        ConfigError: If the file cannot be read or a line is not such a record; the message names file, line, value.
    """
    found = iter(lines(path))
    number, first = next(found)
    if [cell.strip() for cell in first.split(",")] != _COLUMNS:
        raise bad(path, number, "columns", first, ",".join(_COLUMNS))
    numbered = [(number, _record(path, number, line)) for number, line in found]
    records = in_order(path, numbered, lambda record: record[0], tell)
    if not records:
        raise bad(path, number + 1, "line", "", "a record: the file holds none")
    start = records[0][0]
    return [TracedLengths((time - start).total_seconds(), *lengths) for time, *lengths in records]


def _record(path: Path, line: int, text: str) -> tuple[datetime, int, int]:
    cells = text.split(",")
    if len(cells) != len(_COLUMNS):
        raise bad(path, line, "line", text, f"{len(_COLUMNS)} values with commas between them")
    return (
        _time(path, line, cells[0]),
        token_count(path, line, _COLUMNS[1], cells[1]),
        token_count(path, line, _COLUMNS[2], cells[2]),
    )


def _time(path: Path, line: int, text: str) -> datetime:
    try:
        time = datetime.fromisoformat(text.strip())
    except ValueError:
        raise bad(path, line, _COLUMNS[0], text, "a time such as 2023-11-16 18:17:03.9799600") from None
    # Times without a zone are taken as UTC; only differences count.
    return time if time.tzinfo else time.replace(tzinfo=UTC)
