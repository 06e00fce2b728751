"""`octavo kv`: a live view of a running server's KV memory."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from typing import TYPE_CHECKING

from octavo.errors import OctavoError

if TYPE_CHECKING:
    from rich.console import Console, Group

    from octavo.cli.http_client import Endpoint
    from octavo.cli.kv_view import Moment

STATS_PATH = "/v1/kv/stats"
DEFAULT_URL = "http://127.0.0.1:8000"
REFRESH_S = 1.0
PATIENCE_S = 35.0
"""A little longer than the server itself waits for its engine."""
MAX_WIDTH = 120


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", metavar="URL", default=DEFAULT_URL, help=f"the server (default: {DEFAULT_URL})")
    parser.add_argument("--api-key", metavar="KEY", help="the server's API key (also OCTAVO_API_KEY)")
    parser.add_argument(
        "--admin-key", metavar="KEY", help="the server's admin key, to see every tenant (also OCTAVO_ADMIN_API_KEY)"
    )
    parser.add_argument("--once", action="store_true", help="print one frame and exit")
    parser.add_argument("--json", action="store_true", help="print the server's figures as JSON, one object per line")


def run(args: argparse.Namespace) -> int:
    from octavo.cli.http_client import Endpoint

    at = Endpoint.parse(args.url, _key(args))
    if args.json:
        _print_json(at, args.url, once=args.once)
    else:
        _show(at, args.url, once=args.once)
    return 0


def _key(args: argparse.Namespace) -> str | None:
    """Of two keys the one that shows more; a key that was given goes before one that the environment holds."""
    given: str | None = args.admin_key or args.api_key
    return given or os.environ.get("OCTAVO_ADMIN_API_KEY") or os.environ.get("OCTAVO_API_KEY")


def _fetch(at: Endpoint, url: str) -> bytes:
    """The body of the server's figures.

    Raises:
        OctavoError: Saying why there are none.
    """
    from octavo.cli.http_client import HTTPError, get

    async def ask() -> bytes:
        return await asyncio.wait_for(get(at, STATS_PATH), PATIENCE_S)

    try:
        return asyncio.run(ask())
    except ConnectionRefusedError:
        raise OctavoError(
            f"nothing listens at {url}: start a server with `octavo serve`, or name it with --url"
        ) from None
    except TimeoutError:
        raise OctavoError(f"{url} did not answer within {PATIENCE_S:.0f} s") from None
    except OSError as error:
        raise OctavoError(f"{url} cannot be reached: {error.strerror or error}") from None
    except HTTPError as error:
        if error.status == 404:
            raise OctavoError(f"{url} has no {STATS_PATH}: it is not an Octavo server, or an older one") from None
        raise OctavoError(f"{url}: {error}") from None


def _take(at: Endpoint, url: str) -> Moment:
    import msgspec

    from octavo.cli.kv_view import Moment, Snapshot

    raw = _fetch(at, url)
    try:
        return Moment(msgspec.json.decode(raw, type=Snapshot), time.monotonic())
    except msgspec.DecodeError as error:
        raise OctavoError(f"{url}{STATS_PATH} is not what this version of octavo understands: {error}") from None


def _print_json(at: Endpoint, url: str, *, once: bool) -> None:
    while True:
        print(_fetch(at, url).decode(), flush=True)
        if once:
            return
        time.sleep(REFRESH_S)


def _show(at: Endpoint, url: str, *, once: bool) -> None:
    from rich.console import Console
    from rich.live import Live

    console = Console(highlight=False)
    if once or not console.is_terminal:
        _print_frames(console, at, url, once=once)
        return
    before = None
    with Live(console=console, auto_refresh=False) as live:
        while True:
            now = _take(at, url)
            live.update(_frame(console, url, now, before), refresh=True)
            before = now
            time.sleep(REFRESH_S)


def _print_frames(console: Console, at: Endpoint, url: str, *, once: bool) -> None:
    """Plain text, frame after frame: a pipe takes no cursor movements."""
    before = None
    while True:
        now = _take(at, url)
        console.print(_frame(console, url, now, before))
        sys.stdout.flush()
        if once:
            return
        console.print()
        before = now
        time.sleep(REFRESH_S)


def _frame(console: Console, url: str, now: Moment, before: Moment | None) -> Group:
    from octavo.cli.kv_view import frame

    plain = not (sys.stdout.encoding or "").lower().startswith("utf")
    return frame(url, now, before, width=min(console.width, MAX_WIDTH), plain=plain)
