"""Recorded beam searches for `sim.beam_replay`."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import msgspec

from octavo.sim.beam_replay import BeamReplay, Parents
from octavo.traces.files import bad, bundled, lines

_DIGITS = {digit: value for value, digit in enumerate("0123456789abcdefghijklmnopqrstuvwxyz")}


class _Record(msgspec.Struct):
    """One search."""

    width: int
    prompt_tokens: int
    parents: str
    """One digit (0-9, a-z) for each survivor of each step: the rank of the beam that it continues."""


BASE, CHAT = "gemma3_270m", "smollm2_135m"
"""Models whose searches come with the package, widths 2, 4 and 6: a base model, and one tuned for conversations. See
`data/README.md`."""


@cache
def recorded_beams(model: str = BASE) -> BeamReplay:
    """The searches of `BASE` or `CHAT`."""
    return read_beams(bundled(f"beams_{model}.jsonl.gz"))


def read_beams(path: Path) -> BeamReplay:
    """Read searches as `benchmarks/record_beams.py` writes them, plain or gzip.

    Raises:
        ConfigError: If the file cannot be read or a line is not such a record; the message names file, line, value.
    """
    searches: dict[int, list[list[Parents]]] = {}
    for number, line in lines(path):
        try:
            record = msgspec.json.decode(line, type=_Record)
        except msgspec.DecodeError as error:
            raise bad(path, number, "record", line, f"a JSON object of a recorded search ({error})") from None
        searches.setdefault(record.width, []).append(_steps(path, number, record))
    return BeamReplay(searches)


def _steps(path: Path, line: int, record: _Record) -> list[Parents]:
    width, digits = record.width, record.parents
    if not 1 <= width <= len(_DIGITS):
        raise bad(path, line, "width", width, f"from 1 to {len(_DIGITS)}")
    if len(digits) < 2 * width or len(digits) % width:
        raise bad(path, line, "parents", digits, f"two or more steps of {width} digits")
    if any(_DIGITS.get(digit, width) >= width for digit in digits):
        raise bad(path, line, "parents", digits, f"digits below {width}")
    parents = [_DIGITS[digit] for digit in digits]
    if any(parents[:width]):
        raise bad(path, line, "parents", digits, f"{width} times 0 at first: a search begins with one beam")
    return [tuple(parents[i : i + width]) for i in range(0, len(parents), width)]
