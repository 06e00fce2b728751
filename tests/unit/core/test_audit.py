"""Each damage to the books is seen and said in words; after a repair the engine goes on and answers right."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from octavo.core.prefix_index import Content
from octavo.core.request import NO_ROW, Sequence, SequenceStatus
from octavo.core.swapping import NO_SLOT
from octavo.messages import EngineRequest, TokenDelta
from support.core_scripts import drain, engine, preempt_next, prompt, publish, request, run, spec, tokens_of
from support.paged_executor import PagedExecutor, expected_beams, expected_tokens

REQUESTS: dict[int, EngineRequest] = {
    source.request_id: source
    for source in (
        request(1, num_prompt=3, max_tokens=20),  # decodes
        request(2, num_prompt=6, max_tokens=30, n=2),  # shares its prompt with itself
        request(3, num_prompt=7, max_tokens=20, n=2),  # is swapped out
        request(4, num_prompt=4, max_tokens=8, beam_width=2, n=2),
        request(5, num_prompt=2, max_tokens=20),  # is aborted
        request(6, num_prompt=60, max_tokens=4),  # computes its prompt in chunks
        request(7, num_prompt=6, max_tokens=2, n=2),  # waits, one for the other
        request(8, num_prompt=9, max_tokens=2),
    )
}


class Scene:
    """An engine at depth 2 in which a sequence is in every place there is."""

    def __init__(self) -> None:
        self.executor = PagedExecutor(spec(4, (None, 5)), num_blocks=250, num_host_blocks=20)
        self.core = engine(
            self.executor, depth=2, max_num_seqs=9, max_num_batched_tokens=15, max_model_len=99, preemption="swap",
            erase_freed_blocks=True,
        )  # fmt: skip
        self.deltas: list[TokenDelta] = run(self.core, publish(9, prompt(9, 9), "system"), request(10, num_prompt=9))
        for i in (1, 2, 3, 4, 5):
            self.core.add(REQUESTS[i])
        self._step(8)
        for i in (6, 7, 8):
            self.core.add(REQUESTS[i])
        self._step(1)
        preempt_next(self.core, 3)
        self._step(2)
        self.core.abort(5)

    def _step(self, count: int) -> None:
        for _ in range(count):
            self.deltas += self.core.step(0.0)

    def sequence(self, request_id: int, index: int = 0) -> Sequence:
        return self.core._scheduler.requests[request_id].sequences[index]

    def finish(self) -> None:
        """Every answer is there, and right."""
        self.deltas += drain(self.core)
        for i, source in REQUESTS.items():
            if i in (4, 5):
                continue
            for index in range(source.sampling.n):
                assert tokens_of(self.deltas, i, index) == expected_tokens(source, index), f"request {i}"
        beams = [hypothesis.token_ids for hypothesis in expected_beams(REQUESTS[4])]
        assert [tokens_of(self.deltas, 4, index) for index in range(2)] == beams
        stats = self.core.stats()
        assert stats.num_held_blocks == stats.num_promised_blocks + 2 * 2 and stats.num_swapped == 0


def test_the_scene_has_everything_that_is_audited() -> None:
    scene = Scene()
    scheduler = scene.core._scheduler
    status = {i: scene.sequence(i).status.value for i in (1, 2, 3, 4, 6, 7, 8)}
    assert status == dict.fromkeys((1, 2, 4, 6), "running") | {3: "swapped", 7: "waiting", 8: "waiting"}
    assert len(scheduler.rows.quarantine) == 1 and len(scheduler.rows.free) > 0
    assert len(scheduler.requests[7].unborn) == 1 and scheduler.swapping.gang_of(scene.sequence(3)).is_out
    assert scene.sequence(6).num_promised_blocks > 0 and scene.sequence(6).first_columns[1] > 0
    assert scene.core.stats().num_cached_blocks > 0 and scheduler.published.num_blocks == 4
    assert scene.core.audit(repair=True) == []
    scene.finish()


def table(scene: Scene, request_id: int = 1, group: int = 0) -> list[int]:
    return scene.sequence(request_id).block_tables[group]


def cached(scene: Scene) -> int:
    return next(iter(scene.core._pool.cached))


def content_of(scene: Scene, block_id: int) -> Content:
    content = scene.core._pool.content[block_id]
    assert content is not None
    return content


def free_held(scene: Scene) -> None:
    scene.core._pool._free.append(table(scene)[0])


def free_twice(scene: Scene) -> None:
    scene.core._pool._free.append(next(iter(scene.core._pool.free_blocks())))


def free_null(scene: Scene) -> None:
    scene.core._pool._free.append(0)


def free_cached(scene: Scene) -> None:
    scene.core._pool._free.append(cached(scene))


def cache_without_content(scene: Scene) -> None:
    scene.core._pool.content[cached(scene)] = None


def free_with_content(scene: Scene) -> None:
    block_id = cached(scene)
    scene.core._pool.cached.remove(block_id)
    scene.core._pool._free.append(block_id)


def leak(scene: Scene) -> None:
    scene.core._pool._free.pop()


def leak_cached(scene: Scene) -> None:
    scene.core._pool.cached.remove(cached(scene))


def count_one_more(scene: Scene) -> None:
    scene.core._pool.ref_count[table(scene)[0]] += 1


def count_one_less(scene: Scene) -> None:
    scene.core._pool.ref_count[table(scene, 2)[0]] -= 1


def forget_all_counts(scene: Scene) -> None:
    scene.core._pool.ref_count[:] = [0] * len(scene.core._pool.ref_count)


def release_twice(scene: Scene) -> None:
    scene.core._pool.release([table(scene)[-1]])


def name_an_untouched_block(scene: Scene) -> None:
    """As if the pool had forgotten that it handed a block out."""
    pool, executor = scene.core._pool, scene.executor
    old, new = table(scene)[0], len(pool.owner) - 1
    assert new >= pool._untouched
    pool.release([old])
    table(scene)[0] = executor.rows[scene.sequence(1).row].tables[0][0] = new
    executor.memory[new] = executor.memory[old].copy()


def disown(scene: Scene) -> None:
    scene.core._pool.owner[table(scene)[0]] = None


def own_a_free_block(scene: Scene) -> None:
    scene.core._pool.owner[next(iter(scene.core._pool.free_blocks()))] = scene.sequence(1).account


def hit_the_wrong_block(scene: Scene) -> None:
    content_of(scene, cached(scene)).blocks[0] = table(scene)[-1]


def index_nothing(scene: Scene) -> None:
    content_of(scene, cached(scene)).blocks = [0, 0]


def content_unknown(scene: Scene) -> None:
    index = scene.core._kv.index
    assert index is not None
    del index._by_key[content_of(scene, cached(scene)).key]


def one_content_in_both_groups(scene: Scene) -> None:
    content = content_of(scene, cached(scene))
    content.blocks = [cached(scene), cached(scene)]


def find_what_is_written(scene: Scene) -> None:
    content = content_of(scene, cached(scene))
    block_id = next(table(scene, i)[-1] for i in (1, 2) if scene.sequence(i).num_computed_tokens % 4)
    content.blocks[0] = block_id
    scene.core._pool.content[block_id] = content


def part_the_beams(scene: Scene) -> None:
    scheduler = scene.core._scheduler
    beam = scheduler.beam_groups()[0].beams[-1]
    scheduler.leave_row(beam)
    beam.forget_blocks()
    beam.move_to(SequenceStatus.PREEMPTED)
    scheduler.waiting.put(beam)


def mix_up_two_blocks(scene: Scene) -> None:
    """Each is found as the other, and one to one, too."""
    pool, (a, b) = scene.core._pool, table(scene, 6)[:2]
    first, second = content_of(scene, a), content_of(scene, b)
    first.blocks[0], second.blocks[0] = b, a
    pool.content[a], pool.content[b] = second, first


def overcharge(scene: Scene) -> None:
    scene.sequence(1).account.num_held_blocks += 1


def overcharge_cached(scene: Scene) -> None:
    scene.sequence(1).account.num_cached_blocks += 1


def overpromise(scene: Scene) -> None:
    scene.sequence(1).account.num_promised_blocks += 1


def overcharge_host(scene: Scene) -> None:
    scene.sequence(1).account.num_host_blocks += 1


def promise_nobody(scene: Scene) -> None:
    scene.core._kv.num_promised_blocks += 1


def promise_too_much(scene: Scene) -> None:
    sequence = scene.sequence(6)
    for count in (sequence, sequence.account, scene.core._kv):
        count.num_promised_blocks += 500  # type: ignore[attr-defined]


def free_a_row_in_use(scene: Scene) -> None:
    scene.core._scheduler.rows.free.append(scene.sequence(1).row)


def lose_a_row(scene: Scene) -> None:
    scene.core._scheduler.rows.free.pop()


def announce_a_held_row(scene: Scene) -> None:
    scene.core._scheduler.rows.released.append(scene.sequence(1).row)


def reserve_for_nobody(scene: Scene) -> None:
    scene.core._scheduler.rows.num_reserved += 1


def forget_who_waits(scene: Scene) -> None:
    scene.core._scheduler.waiting.remove(scene.sequence(8))


def forget_who_is_swapped(scene: Scene) -> None:
    scene.core._scheduler.waiting.remove(scene.sequence(3))


def forget_the_leader(scene: Scene) -> None:
    scene.core._scheduler.requests[7].leader = None


def forget_a_request(scene: Scene) -> None:
    del scene.core._scheduler.requests[8]


def run_and_wait(scene: Scene) -> None:
    scene.core._scheduler.waiting.put(scene.sequence(1))


def run_without_a_row(scene: Scene) -> None:
    scene.sequence(1).row = NO_ROW


def run_past_the_end(scene: Scene) -> None:
    scene.sequence(1).num_tokens += 100


def compute_what_nobody_knows(scene: Scene) -> None:
    scene.sequence(1).num_computed_tokens = scene.sequence(1).num_tokens


def compute_nothing(scene: Scene) -> None:
    scene.sequence(6).num_computed_tokens = 0


def lose_slots(scene: Scene) -> None:
    scene.sequence(1).num_slots += 4


def lose_a_column(scene: Scene) -> None:
    table(scene, 1, 1).pop()


def lose_a_column_of_a_beam(scene: Scene) -> None:
    scene.core._scheduler.beam_groups()[0].beams[0].block_tables[0].pop()


def lose_columns_of_two_beams(scene: Scene) -> None:
    for beam in scene.core._scheduler.beam_groups()[0].beams:
        beam.block_tables[0].pop()


def leave_the_window_early(scene: Scene) -> None:
    scene.sequence(6).first_columns[1] += 1


def name_the_null_block(scene: Scene) -> None:
    table(scene)[0] = 0


def wait_with_a_row(scene: Scene) -> None:
    scene.sequence(8).row = 0


def wait_with_blocks(scene: Scene) -> None:
    scene.sequence(8).block_tables[0] = table(scene).copy()


def wait_as_if_running(scene: Scene) -> None:
    scene.sequence(8).status = SequenceStatus.RUNNING


def wait_with_host_slots(scene: Scene) -> None:
    scene.sequence(8).host_tables = [[NO_SLOT, 2], [3]]


def use_a_slot_twice(scene: Scene) -> None:
    scene.core._scheduler.slots.ref_count[0] += 1


def leak_a_slot(scene: Scene) -> None:
    scene.core._scheduler.slots.acquire([1], scene.sequence(1).account)


def count_free_slots_wrong(scene: Scene) -> None:
    scene.core._scheduler.slots._free.append(0)


def give_slots_back_too_early(scene: Scene) -> None:
    slots = scene.core._scheduler.slots
    for index in range(2):
        slots.release([slot for slot in scene.sequence(3, index).host_tables[0] if slot != NO_SLOT])


DAMAGES: list[tuple[Callable[[Scene], None], str]] = [
    (free_held, "is free or cached, and held"),
    (free_held, "do not add up"),
    (free_twice, "is in the orders of free and cached blocks 2 times"),
    (free_null, "the null block was handed out"),
    (free_cached, "is in the orders of free and cached blocks 2 times"),
    (cache_without_content, "is cached without content"),
    (free_with_content, "is free with content"),
    (leak, "do not add up"),
    (leak_cached, "do not add up"),
    (count_one_more, "has reference count 2, and 1 names"),
    (count_one_less, "has reference count 1, and 2 names"),
    (forget_all_counts, "has reference count 0"),
    (release_twice, "has reference count 0, and 1 names"),
    (name_an_untouched_block, "has reference count 0, and 1 names"),
    (disown, "has 1 references and no owner"),
    (own_a_free_block, "is free, owner"),
    (hit_the_wrong_block, "in group 0, which holds another"),
    (index_nothing, "is in the index and in no block"),
    (content_unknown, "which the index does not find there"),
    (one_content_in_both_groups, "which the index does not find there"),
    (find_what_is_written, "writes to block"),
    (mix_up_two_blocks, "is found as something that it does not hold"),
    (overcharge, "holds"),
    (overcharge_cached, "has cached"),
    (overpromise, "was promised"),
    (overcharge_host, "keeps on the host"),
    (promise_nobody, "blocks are promised in all"),
    (promise_too_much, "blocks are promised and"),
    (free_a_row_in_use, "has 2 owners"),
    (lose_a_row, "has 0 owners"),
    (announce_a_held_row, "is not free"),
    (reserve_for_nobody, "rows are reserved and beams have reserved"),
    (part_the_beams, "beams of request 4 are preempted and running"),
    (forget_who_waits, "is waiting and in 0 places"),
    (forget_who_is_swapped, "is swapped and in 0 places"),
    (forget_the_leader, "wait for a leader that is gone"),
    (forget_a_request, "unknown, and in a queue"),
    (run_and_wait, "is running and in 2 places"),
    (run_without_a_row, "runs in row -1"),
    (run_past_the_end, "at most"),
    (compute_what_nobody_knows, "at most"),
    (compute_nothing, "has computed 0 of"),
    (lose_slots, "slots for"),
    (lose_a_column, "columns in group 1"),
    (lose_a_column_of_a_beam, "columns in group 0"),
    (lose_columns_of_two_beams, "columns in group 0"),
    (leave_the_window_early, "lacks blocks inside its window"),
    (name_the_null_block, "lacks blocks inside its window"),
    (wait_with_a_row, "waits and owns row 0"),
    (wait_with_blocks, "waits and owns row -1"),
    (wait_as_if_running, "waits with status running"),
    (wait_with_host_slots, "is waiting and has host slots"),
    (use_a_slot_twice, "host slot 0 has reference count 3, and 2 names"),
    (leak_a_slot, "and 0 names"),
    (count_free_slots_wrong, "free host slots do not add up"),
    (give_slots_back_too_early, "has reference count 0, and 1 names"),
]


@pytest.mark.parametrize(("damage", "sentence"), DAMAGES, ids=lambda value: getattr(value, "__name__", None))
def test_damage_is_named_and_repaired(damage: Callable[[Scene], None], sentence: str) -> None:
    scene = Scene()
    assert scene.core.audit() == []
    damage(scene)
    broken = scene.core.audit()
    assert any(sentence in found for found in broken), broken
    assert scene.core.audit(repair=True) == broken
    assert scene.core.audit() == []
    scene.finish()


def test_a_published_text_that_cannot_be_found_is_withdrawn() -> None:
    scene = Scene()
    scene.core._pool.drop_content(next(iter(scene.core._scheduler.published))[0])
    assert any("is published and cannot be found" in found for found in scene.core.audit(repair=True))
    assert scene.core.audit() == [] and scene.core.published() == []


def test_an_engine_without_a_prefix_index_is_repaired_too() -> None:
    core = engine(enable_prefix_caching=False)
    core.add(request())
    core.step(0.0)
    core._pool.ref_count[core._scheduler.running[0].block_tables[0][0]] = 9
    assert core.audit(repair=True) and core.audit() == []
    assert len(tokens_of(drain(core))) == 3
