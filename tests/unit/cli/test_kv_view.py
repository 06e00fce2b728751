"""`octavo kv`: the bar, the frame, and what it says when there is no server."""

from __future__ import annotations

import asyncio
import io
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from octavo.cli import kv
from octavo.cli.kv_view import Moment, Snapshot, cells, frame
from octavo.cli.main import main
from octavo.messages import KVAccount
from octavo.server.kv import stats_body


def snapshot(**changes: int) -> Snapshot:
    counts = {
        "num_blocks": 100, "num_held_blocks": 40, "num_pinned_blocks": 1, "num_cached_blocks": 29,
        "num_free_blocks": 30, "num_promised_blocks": 10, "num_published_blocks": 4, "num_references": 60,
        "num_unfilled_slots": 32, "num_host_blocks": 25, "num_host_held_blocks": 3, "num_evictions": 1234, **changes,
    }  # fmt: skip
    names = ("num_allocation_faults", "num_copy_faults", "num_swap_faults", "num_recompute_faults")
    totals = {name: 10 * i for i, name in enumerate(names, 1)} | {
        "num_prefix_query_tokens": 400, "num_prefix_hit_tokens": 100,
    }  # fmt: skip
    accounts = [KVAccount(tenant="[bold]small", num_held_blocks=1), KVAccount(tenant="large", num_held_blocks=39)]
    return Snapshot(
        block_size=16, bytes_per_block=4096, erases_freed_blocks=True, accounts=accounts, shared_ratio=1.5,
        tail_waste=0.05, totals=totals, **counts,
    )  # fmt: skip


def drawn(now: Moment, before: Moment | None = None, *, width: int = 100, plain: bool = False) -> list[str]:
    out = io.StringIO()
    view = frame("http://here", now, before, width=width, plain=plain)
    Console(file=out, width=width, force_terminal=False).print(view)
    return out.getvalue().splitlines()


@given(st.lists(st.integers(0, 10**7), min_size=1, max_size=5), st.integers(10, 200))
def test_cells_fill_the_width_and_hide_nothing(counts: list[int], width: int) -> None:
    shares = cells(counts, width)
    assert sum(shares) == (width if any(counts) else 0)
    assert all((share > 0) == (count > 0) for share, count in zip(shares, counts, strict=True))
    total = max(1, sum(counts))
    assert all(abs(share - count * width / total) <= len(counts) for share, count in zip(shares, counts, strict=True))


def test_the_bar_shows_states_in_order_and_marks_what_is_promised() -> None:
    lines = drawn(Moment(snapshot(), 0.0))
    assert lines[1] == "█" * 40 + "▓" + "▒" * 29 + "░" * 30
    assert lines[2] == " " * 90 + "^" * 10
    assert drawn(Moment(snapshot(num_promised_blocks=0), 0.0))[2] == ""
    plain = drawn(Moment(snapshot(), 0.0), plain=True)
    assert plain[1] == "#" * 40 + "!" + "=" * 29 + "." * 30
    assert all(line.isascii() for line in plain)


def test_every_figure_is_there() -> None:
    text = "\n".join(drawn(Moment(snapshot(), 0.0)))
    for fact in (
        "100 blocks of 16 tokens, 4.0 KiB each, 400.0 KiB in all", "held 40 (40.0 %)", "cached 29 (29.0 %)",
        "promised 10", "1.50 references per held block; 4 published", "5.0 % of the held slots", "3 of 25 blocks",
        "allocation 10, copy 20, swap 30, recompute 40", "25.0 % of 400 prompt tokens", "1,234 cached blocks",
        "freed blocks are zeroed", "[bold]small",
    ):  # fmt: skip
        assert fact in text
    assert text.index("large") < text.index("[bold]small"), "who holds most comes first"
    assert "/s)" not in text


def test_rates_are_since_the_frame_before() -> None:
    before, now = snapshot(), snapshot()
    now.totals["num_copy_faults"] += 30
    text = "\n".join(drawn(Moment(now, 12.0), Moment(before, 10.0)))
    assert "copy 50 (+15/s)" in text and text.count("/s)") == 1


def test_a_frame_fits_eighty_columns() -> None:
    big = snapshot()
    big.accounts = [KVAccount(tenant="t" * 40, num_held_blocks=123456, num_allocation_faults=9_999_999)]
    assert all(len(line) <= 80 for line in drawn(Moment(big, 0.0), width=80))


@contextmanager
def serving(status: int, body: bytes) -> Iterator[str]:
    """A socket that answers every request alike."""
    started, stop, address = threading.Event(), threading.Event(), []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n" % (status, len(body)) + body)
        writer.close()

    async def serve() -> None:
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            address.append(server.sockets[0].getsockname()[1])
            started.set()
            while not stop.is_set():
                await asyncio.sleep(0.01)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert started.wait(10)
    try:
        yield f"http://127.0.0.1:{address[0]}"
    finally:
        stop.set()
        thread.join()


def body() -> bytes:
    return json.dumps({**stats_body(snapshot(), None), "totals": snapshot().totals}).encode()


def test_frames_go_down_a_pipe(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    frames = 0

    def sleep(seconds: float) -> None:
        nonlocal frames
        assert seconds == kv.REFRESH_S
        frames += 1
        if frames == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(kv.time, "sleep", sleep)
    with serving(200, body()) as url:
        assert main(["kv", "--url", url]) == 130
        shown = capsys.readouterr().out
        assert shown.count(f"KV memory of {url}") == 3 and "\x1b" not in shown
        assert main(["kv", "--url", url, "--once"]) == 0
        assert capsys.readouterr().out.count("KV memory of") == 1
        assert main(["kv", "--url", url, "--once", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["num_blocks"] == 100


def test_what_is_wrong_is_said_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    def error(*words: str) -> str:
        assert main(["kv", "--once", *words]) in (1, 2)
        shown = capsys.readouterr().err
        assert shown.count("\n") == 1 and "internal error" not in shown
        return shown

    with serving(200, body()) as gone:
        pass
    assert "nothing listens at" in error("--url", gone) and "octavo serve" in error("--url", gone)
    assert "must be a URL" in error("--url", "here")
    for status, reply, said in (
        (404, b"{}", "is not an Octavo server"),
        (401, b'{"error": {"message": "the API key is not valid"}}', "the API key is not valid"),
        (200, b"hello", "not what this version"),
        (200, b"{}", "not what this version"),
    ):
        with serving(status, reply) as url:
            assert said in error("--url", url)


def test_the_admin_key_goes_first_and_keys_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[str | None] = []
    monkeypatch.setattr(kv, "_print_json", lambda at, url, once: used.append(at.api_key))
    monkeypatch.delenv("OCTAVO_API_KEY", raising=False)
    monkeypatch.delenv("OCTAVO_ADMIN_API_KEY", raising=False)
    main(["kv", "--json"])
    main(["kv", "--json", "--api-key", "a", "--admin-key", "b"])
    monkeypatch.setenv("OCTAVO_API_KEY", "c")
    main(["kv", "--json"])
    monkeypatch.setenv("OCTAVO_ADMIN_API_KEY", "d")
    main(["kv", "--json"])
    main(["kv", "--json", "--api-key", "a"])
    assert used == [None, "b", "c", "d", "a"], "the admin key of one server is not sent to another one's"
