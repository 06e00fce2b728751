"""docs/limits.md has every limit with its default, and its example is a key file."""

from __future__ import annotations

import re
from pathlib import Path

from octavo.cli.flags import flags_of
from octavo.config import HTTPConfig, SchedulerConfig
from octavo.server.body import BODY_TIMEOUT_S, MAX_JSON_DEPTH
from octavo.server.http_protocol import BODY_SHARE, MAX_PIPELINED
from octavo.server.key_file import read_key_file
from octavo.server.launch import KEEP_ALIVE_S
from octavo.server.listen import OPEN_FILES
from octavo.server.openai.messages import MAX_MESSAGES
from octavo.server.openai.protocol import MAX_BAD_WORDS_CHARS, MAX_STOP_CHARS

PAGE = (Path(__file__).parents[3] / "docs" / "limits.md").read_text()
ROWS = dict(re.findall(r"^\| `--([a-z-]+)`[^|]*\| ([^|]+) \|", PAGE, re.MULTILINE))


def shown(default: int | float | None, name: str) -> str:
    if default is None:
        return "none"
    if name.endswith("bytes"):
        return f"{int(default) >> 20} MiB" if default >= 1 << 20 else f"{int(default) >> 10} KiB"
    return f"{default:.0f}"


def test_every_limit_is_there_with_its_default() -> None:
    limits = [flag for flag in flags_of(HTTPConfig) if flag.section.startswith("Limits")]
    limits += [flag for flag in flags_of(SchedulerConfig) if flag.name in ("max-waiting", "max-queued-tokens")]
    assert len(limits) > 15
    assert {flag.name: ROWS.get(flag.name) for flag in limits} == {
        flag.name: shown(flag.default, flag.name) for flag in limits
    }


def test_what_is_fixed_is_as_stated() -> None:
    page = " ".join(PAGE.split())
    texts = f"{MAX_STOP_CHARS} characters in a stop string or a bad word, {MAX_BAD_WORDS_CHARS} in all bad words"
    assert f"{texts}, {MAX_JSON_DEPTH} levels of nesting" in page
    assert (
        f"{BODY_TIMEOUT_S:.0f} seconds without a byte in a body, {MAX_MESSAGES} messages, {MAX_PIPELINED} requests"
        in page
    )
    assert f"closed after {KEEP_ALIVE_S} seconds" in page and f"up to {OPEN_FILES} open files" in page
    assert BODY_SHARE == 10 and "ten times as many for the body" in page


def test_the_example_is_a_key_file(tmp_path: Path) -> None:
    example = re.search(r"^      # tenant.*?\n\n", PAGE, re.MULTILINE | re.DOTALL)
    assert example is not None
    path = tmp_path / "keys"
    path.write_text(example[0])
    assert {caller.tenant for caller in read_key_file(str(path)).values()} == {"alice", "bob"}
