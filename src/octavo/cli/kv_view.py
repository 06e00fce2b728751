"""One frame of `octavo kv`: where the KV blocks of a server are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from rich.console import Group
from rich.table import Table
from rich.text import Text

from octavo.cli.text import size
from octavo.messages import KVAccount, KVStats

if TYPE_CHECKING:
    from rich.console import RenderableType

STATES = ("held", "pinned", "cached", "free")
_STYLES = {"held": "green", "pinned": "yellow", "cached": "blue", "free": "dim"}
_BLOCKS = {"held": "█", "pinned": "▓", "cached": "▒", "free": "░"}
_PLAIN = {"held": "#", "pinned": "!", "cached": "=", "free": "."}
_FAULTS = ("allocation", "copy", "swap", "recompute")


class Snapshot(KVStats, kw_only=True):
    """The body of `/v1/kv/stats`, as far as it is shown."""

    shared_ratio: float
    tail_waste: float
    totals: dict[str, int]


class Moment(msgspec.Struct):
    """A snapshot and when it was taken, in seconds."""

    stats: Snapshot
    at_s: float


def cells(counts: list[int], width: int) -> list[int]:
    """How many of `width` cells each count gets: in proportion, at least one for what is not 0, `width` in all."""
    total = sum(counts)
    if total == 0:
        return [0] * len(counts)
    shares = [max(count * width // total, int(count > 0)) for count in counts]
    while sum(shares) > width:  # small ones were rounded up: the largest gives way
        shares[shares.index(max(shares))] -= 1
    left = width - sum(shares)
    by_remainder = sorted(range(len(counts)), key=lambda i: counts[i] * width % total, reverse=True)
    for i in [i for i in by_remainder if counts[i]][:left]:
        shares[i] += 1
    return shares


def frame(url: str, now: Moment, before: Moment | None, *, width: int, plain: bool) -> Group:
    """The view of `now`; rates are since `before`. `plain` draws with ASCII alone."""
    stats = now.stats
    parts: list[RenderableType] = [
        Text(f"KV memory of {url}: {stats.num_blocks:,} blocks of {stats.block_size} tokens, {_bytes(stats)}"),
        *_bar(stats, width, _PLAIN if plain else _BLOCKS),
        Text(),
        _facts(now, before),
        Text(),
        _tenants(stats.accounts),
    ]
    return Group(*parts)


def _bytes(stats: KVStats) -> str:
    return f"{size(stats.bytes_per_block)} each, {size(stats.num_blocks * stats.bytes_per_block)} in all"


def _bar(stats: KVStats, width: int, glyphs: dict[str, str]) -> list[Text]:
    """The bar, marks under what is promised (free blocks first, at the right end), and the legend."""
    counts = [getattr(stats, f"num_{state}_blocks") for state in STATES]
    bar, legend = Text(), Text()
    for state, count, share in zip(STATES, counts, cells(counts, width), strict=True):
        bar.append(glyphs[state] * share, _STYLES[state])
        percent = 100 * count / max(1, stats.num_blocks)
        legend.append(glyphs[state], _STYLES[state])
        legend.append(f" {state} {count:,} ({percent:.1f} %)  ")
    promised = cells([stats.num_blocks - stats.num_promised_blocks, stats.num_promised_blocks], width)[1]
    marks = Text((" " * (width - promised) + "^" * promised).rstrip())
    legend.append(f"^ promised {stats.num_promised_blocks:,}")
    return [bar, marks, legend]


def _facts(now: Moment, before: Moment | None) -> Table:
    stats, totals = now.stats, now.stats.totals
    faults = [f"{name} {totals[f'num_{name}_faults']:,}{_rate(now, before, f'num_{name}_faults')}" for name in _FAULTS]
    queries, hits = totals["num_prefix_query_tokens"], totals["num_prefix_hit_tokens"]
    found = _rate(now, before, "num_prefix_hit_tokens")
    shared = f"{stats.shared_ratio:.2f} references per held block"
    host = f"{stats.num_host_held_blocks:,} of {stats.num_host_blocks:,} blocks"
    facts = {
        "shared": f"{shared}; {stats.num_published_blocks:,} published blocks",
        "tail waste": f"{100 * stats.tail_waste:.1f} % of the held slots hold no token ({stats.num_unfilled_slots:,})",
        "host tier": f"{host}, {size(stats.num_host_blocks * stats.bytes_per_block)}"
        if stats.num_host_blocks
        else "none",
        "faults": ", ".join(faults),
        "prefix": f"{_percent(hits, queries)} of {queries:,} prompt tokens found{found}",
        "evictions": f"{stats.num_evictions:,} cached blocks made room",
        "erasure": "freed blocks are zeroed" if stats.erases_freed_blocks else "off",
    }
    table = Table.grid(padding=(0, 2))
    for label, text in facts.items():
        table.add_row(Text(label, "bold"), Text(text))
    return table


def _rate(now: Moment, before: Moment | None, name: str) -> str:
    if before is None or now.at_s <= before.at_s:
        return ""
    change = (now.stats.totals[name] - before.stats.totals[name]) / (now.at_s - before.at_s)
    return f" (+{change:.0f}/s)" if change > 0 else ""


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "none"


def _tenants(accounts: list[KVAccount]) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("tenant", overflow="fold")
    for heading in ("held", "promised", "cached", "host", "alloc", "copy", "swap", "recomp", "hits"):
        table.add_column(heading, justify="right", no_wrap=True, overflow="crop")
    for account in sorted(accounts, key=lambda account: -account.num_held_blocks):
        gauges = (account.num_held_blocks, account.num_promised_blocks, account.num_cached_blocks)
        faults = [getattr(account, f"num_{name}_faults") for name in _FAULTS]
        hits = _percent(account.num_prefix_hit_tokens, account.num_prefix_query_tokens)
        numbers = [f"{number:,}" for number in (*gauges, account.num_host_blocks, *faults)]
        table.add_row(Text(account.tenant), *numbers, hits)
    return table
