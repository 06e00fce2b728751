"""How cases are played on the core itself, where the moment can be chosen and what is not there yet can be named.

`World` runs the real core on a worker that keeps a tag in place of keys and values, checks every read, and knows every
answer beforehand; `finish` fails on any block, slot, row or record that is left.
"""

from __future__ import annotations

from cases.scenarios import Data
from octavo.core.request import SequenceStatus
from property.world import World
from support.core_scripts import ScriptedExecutor, drain, engine, request


def text(start: int, count: int) -> list[int]:
    """`count` token ids, another text for each `start`."""
    return [(2 + start * 5 + i * i) % 23 for i in range(count)]


def abort_in_transfer(given: Data, expected: Data) -> None:
    """A request is given up after its blocks were sent on their way to or from the host, and before they arrive."""
    for direction in ("swap_out", "swap_in"):
        world = World(depth=2, num_groups=1, capacity=40, max_num_seqs=3, host_blocks=40, preemption="swap")
        for i in range(3):
            world.submit(text(i, 8), 24, ignore_eos=True)
        executor = world.executor
        while executor.last_plan is None or not getattr(executor.last_plan, direction):
            world.advance(late=True)
        scheduler = world.core._scheduler
        leaving = [s for s in scheduler.waiting if s.status is SequenceStatus.SWAPPED]
        [moving] = leaving if direction == "swap_out" else list(scheduler.swapping.arriving)
        done = executor.events.swap_outs if direction == "swap_out" else executor.events.swap_ins
        others = sum(s.num_held_blocks for s in scheduler.running.values())
        assert world.core.stats().num_held_blocks + world.core.stats().num_pinned_blocks > others
        world.core.abort(moving.request_id)
        del world.answers[moving.request_id, 0]
        for _ in range(2):
            world.advance(late=True)
            world.check()
        now = executor.events.swap_outs if direction == "swap_out" else executor.events.swap_ins
        assert now > done, "the transfer was over before the request was given up"
        stats = world.core.kv_stats()
        assert stats.num_host_held_blocks == 0
        assert stats.num_references == sum(s.num_held_blocks for s in scheduler.running.values())
        world.submit(text(7, 20), 8, ignore_eos=True)
        world.finish()
        assert len(world.answers) == 3, "somebody else was lost"


def adapters(given: Data, expected: Data) -> None:
    """The same prompt under several adapters: each is a hit for itself alone."""
    world = World(num_groups=2, capacity=240)
    hits = {}
    for i, adapter in enumerate(given["adapters"]):
        world.submit(text(1, 30), 8, adapter=adapter, ignore_eos=True)
        world.run_until_idle()  # every read and every token is checked against the request's own
        hits[i] = world.core.stats().num_prefix_hit_tokens
    found = [after - before for before, after in zip([0, *hits.values()], hits.values(), strict=False)]
    assert [count > 0 for count in found] == expected["hits"]
    world.finish()


def bounded_wait(given: Data, expected: Data) -> None:
    """Small requests keep coming while one waits that needs most of the pool."""
    executor = ScriptedExecutor(num_blocks=1 + given["blocks"])
    limits = {"max_num_seqs": 64, "max_num_batched_tokens": 8192, "max_model_len": 8192}
    core = engine(executor, admission=given["admission"], **limits)
    # One that runs for long and leaves less than the large one needs.
    core.add(request(1, num_prompt=240, max_tokens=300, token_ids=[5] * 240))
    core.step(0.0)
    core.add(request(2, num_prompt=given["large"] * executor.kv_spec.block_size, max_tokens=1))
    done: list[int] = []
    added = 2
    while 2 not in done:
        while core.stats().num_waiting < 4:
            added += 1
            core.add(request(added, num_prompt=5, max_tokens=3, token_ids=[added % 97] * 5))
        done += [delta.request_id for delta in core.step(0.0) if delta.finish_reason is not None]
        assert len(done) < expected["at_most"], f"{len(done)} requests were served before the large one"
    assert (len(done) > 10) == expected["small_ones_pass"]


def deferred(given: Data, expected: Data) -> None:
    """Requests that wait for another's prefix take no place, and go on when the one they wait for is given up."""
    core = engine(ScriptedExecutor(num_blocks=200), depth=2, max_num_seqs=2, max_num_batched_tokens=64)
    for i in range(1, given["alike"] + 1):
        core.add(request(i, num_prompt=40, max_tokens=2, token_ids=list(range(10, 50))))
    core.add(request(100, num_prompt=6, max_tokens=2, token_ids=[90 + i for i in range(6)]))
    core.step(0.0)
    stats = core.stats()
    assert stats.num_shared_waits == given["alike"] - 1, "nobody was deferred"
    assert stats.num_running == 2, "deferred requests kept out one that can run"
    core.abort(1)
    ended = {delta.request_id for delta in drain(core) if delta.finish_reason is not None}
    assert ended == {*range(2, given["alike"] + 1), 100}
    assert core.stats().num_takeovers == 1 and core.stats().num_held_blocks == 0
