"""Ways to disturb and to look into a real engine: preempt at will, fail its host tier, read the bytes of its pool."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable

from octavo.core.request import NO_ROW, Sequence
from octavo.core.scheduler import ScheduledStep
from octavo.worker.tier_store import ByteArray, HostTier
from support.core_runs import RealEngine

Due = Callable[[list[Sequence]], bool]
"""Whether a request's running sequences should be preempted by the plan that is being made."""


class Preempting:
    """Preempts running requests when they are due, as the scheduler does when blocks are short: while a plan is made,
    gang-wide, by the engine's own choice of swap or recompute; that plan admits nobody."""

    def __init__(self, engine: RealEngine, due: Due) -> None:
        self.due = due
        self.num_times: Counter[int] = Counter()
        """By request."""
        self._scheduler = engine.core._scheduler
        self._choose_running = self._scheduler._choose_running
        self._scheduler._choose_running = self._preempt_due  # type: ignore[method-assign]

    def _preempt_due(self, step: ScheduledStep) -> bool:
        gangs: dict[int, list[Sequence]] = defaultdict(list)
        for sequence in self._scheduler.running.values():
            gangs[sequence.request_id].append(sequence)
        due = [gang for gang in gangs.values() if self.due(gang)]
        for gang in due:
            self.num_times[gang[0].request_id] += 1
            self._scheduler._preempt([s for s in gang if s.row != NO_ROW], step.plan)
        return self._choose_running(step) and not due


def once_at(num_answer_tokens: int) -> Due:
    """Each request once, when it has computed so many tokens of its answer; at 0 in the middle of its prompt."""
    done: set[int] = set()

    def due(gang: list[Sequence]) -> bool:
        request_id = gang[0].request_id
        progress = max(s.num_computed_tokens - s.source.num_prompt_tokens for s in gang)
        started = max(s.num_computed_tokens for s in gang) > 0
        if request_id in done or not started or (progress < num_answer_tokens and num_answer_tokens > 0):
            return False
        done.add(request_id)
        return True

    return due


def at_every_step(beam_stride: int = 1) -> Due:
    """Whoever is further than ever before. A beam search that is recomputed begins again and has to get there first,
    so it may be left alone until it is `beam_stride` tokens further."""
    best: dict[int, int] = {}

    def due(gang: list[Sequence]) -> bool:
        request_id = gang[0].request_id
        progress = max(s.num_computed_tokens for s in gang)
        stride = beam_stride if gang[0].beams is not None else 1
        if progress < best.get(request_id, 0) + stride:
            return False
        best[request_id] = progress
        return True

    return due


class FailingTier(HostTier):
    """A host tier that refuses every `put_every`-th put and `get_every`-th get; 0 refuses none."""

    put_every = 0
    get_every = 0
    num_puts = 0
    num_gets = 0

    @staticmethod
    def of(engine: RealEngine, *, put_every: int = 0, get_every: int = 0) -> FailingTier:
        """Let the tier of an engine fail from here on."""
        tier = tier_of(engine)
        tier.__class__ = FailingTier
        assert isinstance(tier, FailingTier)
        tier.put_every, tier.get_every = put_every, get_every
        return tier

    def put(self, key: int, fill: Callable[[ByteArray], None]) -> None:
        self.num_puts += 1
        if self.put_every and self.num_puts % self.put_every == 0:
            raise OSError("no space is left here")
        super().put(key, fill)

    def get(self, key: int, take: Callable[[ByteArray], None]) -> bool:
        self.num_gets += 1
        if self.get_every and self.num_gets % self.get_every == 0:
            return False
        return super().get(key, take)


def tier_of(engine: RealEngine) -> HostTier:
    tier = engine.executor.inner._runner._swapper._tier
    assert isinstance(tier, HostTier)
    return tier


def block_is_zero(engine: RealEngine, block_id: int) -> bool:
    data = engine.executor.inner._runner._kv.export_block(block_id)
    return not any(data) if len(data) < 64 else data.count(0) == len(data)


def finish_plans(engine: RealEngine) -> None:
    """Wait until the worker has done every plan it was given; their results stay to be applied."""
    for _, handle in engine.core._in_flight:
        handle.result()


def dirty_blocks(engine: RealEngine, but: Iterable[int] = ()) -> list[int]:
    """Free blocks that hold bytes, read from the pool when no plan is being performed."""
    finish_plans(engine)
    spared = set(but)
    free = [block_id for block_id in engine.core._pool.free_blocks() if block_id not in spared]
    return [block_id for block_id in free if not block_is_zero(engine, block_id)]


def dirty_slots(engine: RealEngine) -> list[int]:
    """Free slots of the host tier that hold bytes, those excepted that the next plan discards."""
    finish_plans(engine)
    slots = engine.core._scheduler.slots
    spared = {*slots.ref_count, *slots.discards}
    memory = tier_of(engine)._slots
    return [slot for slot in range(len(memory)) if slot not in spared and memory[slot].any()]


def pending_erases(engine: RealEngine) -> list[int]:
    """Freed blocks that the next plan will have zeroed."""
    return engine.core._pool.freed
