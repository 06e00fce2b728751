"""How cases about KV memory are played: sharing, beams, preemption, admission.

Every scenario ends with the same look at the memory: nothing held, counts that add up, every invariant in place.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from cases.runner import Outcome, Runner
from cases.scenarios import Data, at_once, both_ways, wait_for

LETTERS = list(range(3 + ord("a"), 3 + ord("z") + 1))
"""Token ids that spell single letters."""


def text(start: int, count: int) -> list[int]:
    """`count` token ids, another text for each `start`."""
    return [1, *(LETTERS[(start * 7 + i * i + i // 26) % 26] for i in range(count - 1))]


def cached(outcome: Outcome) -> int:
    """Prompt tokens found in the prefix cache."""
    assert outcome.usage is not None
    count: int = outcome.usage["prompt_tokens_details"]["cached_tokens"]
    assert 0 <= count < outcome.usage["prompt_tokens"]
    return count


def greedy(prompt: list[int], **fields: Any) -> Data:
    return {"prompt": prompt, "max_tokens": 8, "temperature": 0, "logprobs": 1, "ignore_eos": True, **fields}


def sound(runner: Runner) -> None:
    """What must hold whenever nothing runs."""
    wait_for(lambda: runner.num_running() + runner.num_waiting() + runner.num_held_blocks() == 0, "idle", 5)
    stats = runner.kv_stats()
    states = [stats[f"num_{state}_blocks"] for state in ("held", "pinned", "cached", "free")]
    assert sum(states) == stats["num_blocks"] and states[:2] == [0, 0], stats
    assert stats["num_promised_blocks"] == stats["num_host_held_blocks"] == 0
    assert runner.audit() == []
    assert runner.alive()


def branches(runner: Runner, given: Data, expected: Data) -> None:
    """Prompts that share a beginning and part at different places."""
    shared = text(1, given["shared"])
    prompts = [shared[: given["shared"] - i] + text(50 + i, 12)[1:] for i in range(given["count"])]
    first = [runner.complete(greedy(prompt)) for prompt in prompts]
    sound(runner)
    again = at_once(*[lambda p=prompt: runner.complete(greedy(p)) for prompt in prompts])
    assert [outcome.choices for outcome in again] == [outcome.choices for outcome in first]
    assert sum(map(cached, first[1:])) > 0
    sound(runner)


def one_long_answer(runner: Runner, given: Data, expected: Data) -> None:
    outcome = runner.complete(greedy(text(2, 5), max_tokens=given["max_tokens"]))
    assert outcome.completion_tokens == given["max_tokens"]
    sound(runner)


def abandon(runner: Runner, given: Data, expected: Data) -> None:
    """Streams of several answers whose client goes away after a few pieces."""
    fields = {**greedy(text(3, 20)), "n": 4, "max_tokens": 200, "temperature": 1}
    for _ in range(given["rounds"]):
        at_once(*[lambda: runner.read_some(fields, 3)] * given["at_once"])
    sound(runner)


def hits_beside_strangers(runner: Runner, given: Data, expected: Data) -> None:
    """In a pool full of cached blocks, some requests hit them while others take new ones."""
    shared = text(4, 60)
    wanted = runner.complete(greedy(shared)).choices
    hits = 0
    for i in range(given["rounds"]):
        new = [greedy(text(100 + 3 * i + j, 70)) for j in range(3)]
        strangers = [lambda fields=fields: runner.complete(fields) for fields in new]
        outcome, *_ = at_once(lambda: runner.complete(greedy(shared)), *strangers)
        assert outcome.choices == wanted
        hits += cached(outcome) > 0
    assert hits and runner.kv_stats()["num_evictions"] > 0
    sound(runner)


def reused_blocks(runner: Runner, given: Data, expected: Data) -> None:
    """A text whose blocks were taken by others is a miss, and answered as at first."""
    prompt = text(5, 60)[1:]  # the others begin otherwise: a block that they share tokens with they would keep in use
    first = runner.complete(greedy(prompt))
    hit = runner.complete(greedy(prompt))
    assert cached(hit) > 0 and hit.choices == first.choices
    before = runner.kv_stats()["num_evictions"]
    for i in range(given["others"]):
        runner.complete(greedy(text(200 + i, 200)))
    assert runner.kv_stats()["num_evictions"] > before
    again = runner.complete(greedy(prompt))
    assert cached(again) == 0
    assert again.choices == first.choices
    sound(runner)


def whole_blocks(runner: Runner, given: Data, expected: Data) -> None:
    """A prompt that fills its blocks exactly, and is all there already, still computes its last token."""
    for num_blocks in given["blocks"]:
        prompt = text(6 + num_blocks, num_blocks * given["block_size"])
        first, second = (runner.complete(greedy(prompt)) for _ in range(2))
        assert second.choices == first.choices
        assert cached(second) == len(prompt) - 1
    sound(runner)


def cancelled_early(runner: Runner, given: Data, expected: Data) -> None:
    """What was admitted and given up before it was computed is no hit."""
    for i in range(given["rounds"]):
        fields = greedy(text(300 + i, 150))
        runner.leave(fields, stream=False, after_s=0.0005 * (i % 4))
        outcome = runner.complete(fields)
        assert outcome.choices == runner.complete({**fields, "cache_salt": "cold"}).choices
    sound(runner)


def repeated(runner: Runner, given: Data, expected: Data) -> None:
    """The same prompt again and again, one at a time."""
    first, *rest = [runner.complete(greedy(text(7, given["tokens"]))) for _ in range(4)]
    assert all(outcome.choices == first.choices for outcome in rest)
    assert cached(rest[-1]) > 0
    sound(runner)


def secrets(runner: Runner, other: Runner, given: Data, expected: Data) -> None:
    """Two texts that begin alike, in turn; `other` has no cache."""
    shared = text(8, 43)
    one, two = (greedy([*shared, *text(9 + i, 10)[1:]]) for i in range(2))
    wanted = [other.complete(fields).choices for fields in (one, two)]
    hits = 0
    for _ in range(given["rounds"]):
        outcomes = [runner.complete(fields) for fields in (one, two)]
        assert [outcome.choices for outcome in outcomes] == wanted
        hits += sum(map(cached, outcomes))
    assert hits > 0
    sound(runner)


def warm_scoring(runner: Runner, given: Data, expected: Data) -> None:
    """Logprobs of a prompt that is in the cache: all of them, and the same."""
    fields = {"prompt": text(10, 200), "echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0}
    first, second = (runner.complete(fields) for _ in range(2))
    assert second.choices == first.choices
    assert first.choices[0].logprobs is not None and len(first.choices[0].logprobs["tokens"]) == 201
    both_ways(runner, fields)
    sound(runner)


def search_by_hand(runner: Runner, given: Data, expected: Data) -> None:
    """Beams, their order and scores, against a search that asks for the likeliest next tokens of each text anew."""
    prompt, width, num_tokens = text(11, 20), given["width"], given["tokens"]

    def candidates(tokens: list[int]) -> list[tuple[int, float]]:
        # The last entry of the prompt's logprobs is about the token after `tokens`, whatever stands there.
        fields = {"prompt": [*prompt, *tokens, LETTERS[0]], "max_tokens": 1, "prompt_logprobs": 2 * width}
        entries = runner.prompt_logprobs(fields)[-1]
        return [(int(token), entry["logprob"]) for token, entry in entries.items() if entry["rank"] <= 2 * width]

    beams: list[tuple[float, list[int]]] = [(0.0, [])]
    for _ in range(num_tokens):
        grown = [(total + value, [*tokens, token]) for total, tokens in beams for token, value in candidates(tokens)]
        beams = sorted(grown, key=lambda beam: -beam[0])[:width]
    fields = {"prompt": prompt, "beam_width": width, "n": width, "max_tokens": num_tokens, "ignore_eos": True}
    outcome = both_ways(runner, {**fields, "logprobs": 0})
    for choice, (total, tokens) in zip(outcome.choices, beams, strict=True):
        assert choice.logprobs is not None and len(choice.logprobs["tokens"]) == num_tokens
        assert abs(sum(choice.logprobs["token_logprobs"]) - total) < 1e-3
        assert choice.text == runner.decode(tokens)
    sound(runner)


def forks_in_a_block(runner: Runner, other: Runner, given: Data, expected: Data) -> None:
    """Beams that part at every place in a block; `other` keeps KV in larger blocks, without a cache."""
    copies = runner.kv_stats()["totals"]["num_copy_faults"]
    for length in given["lengths"]:
        fields = {"prompt": text(12, length), "beam_width": 4, "n": 4, "max_tokens": 10, "logprobs": 0}
        assert runner.complete(fields).choices == other.complete(fields).choices
    assert runner.kv_stats()["totals"]["num_copy_faults"] > copies
    sound(runner)


def more_answers_than_rows(runner: Runner, other: Runner, given: Data, expected: Data) -> None:
    """They are computed in waves, and are what they are anywhere else."""
    fields = {"prompt": text(13, 20), "n": given["n"], "max_tokens": 10, "seed": 4}
    outcome = both_ways(runner, fields)
    assert len(outcome.choices) == given["n"]
    assert outcome.choices == other.complete(fields).choices
    sound(runner)


def ends_at_different_times(runner: Runner, given: Data, expected: Data) -> None:
    """One of several answers stops at once, the others run to their end."""
    fields: Data = {"prompt": text(14, 20), "n": 3, "max_tokens": 30, "seed": 5, "ignore_eos": True}
    whole = runner.complete(fields)
    mine, others = whole.texts[1], whole.texts[0] + whole.texts[2]
    pieces = [mine[i : i + 4] for i in range(12)]
    stop = next(piece for piece in pieces if piece not in others)
    outcome = both_ways(runner, {**fields, "stop": stop})
    assert [choice.finish_reason for choice in outcome.choices] == ["length", "stop", "length"]
    assert outcome.texts == [whole.texts[0], whole.texts[1][: whole.texts[1].index(stop)], whole.texts[2]]
    assert all(choice.num_ends == 1 for choice in runner.complete({**fields, "stop": stop}, stream=True).choices)
    sound(runner)


def wide_search(runner: Runner, given: Data, expected: Data) -> None:
    """A search needs more candidates than a client may ask to see."""
    fields = {"prompt": text(15, 20), "beam_width": given["width"], "n": given["width"], "max_tokens": 6}
    outcome = runner.complete(fields)
    assert outcome.status == 200 and len({choice.text for choice in outcome.choices}) > given["width"] // 2
    sound(runner)


def under_pressure(runner: Runner, other: Runner, given: Data, expected: Data) -> None:
    """More than fits, so that requests give way to each other; `other` has room for all."""
    for fields in given["each"]:
        before, swapped = runner.counter("num_preemptions"), runner.counter("swap_preemptions")
        asked = [{**greedy(text(20 + i, 20), max_tokens=given["tokens"]), **fields} for i in range(given["count"])]
        for _ in range(10):  # on a fast machine the first may be done before the last one comes
            outcomes = at_once(*[lambda one=one: runner.complete(one) for one in asked])
            for one, outcome in zip(asked, outcomes, strict=True):
                wanted = other.complete(one)
                assert outcome.choices == wanted.choices
                assert outcome.completion_tokens == wanted.completion_tokens
                assert (outcome.usage or {})["prompt_tokens"] == 20
                cached(outcome)
            if runner.counter("num_preemptions") > before:
                break
        else:
            raise AssertionError("nobody had to give way")
        how_many = runner.counter("swap_preemptions") - swapped
        assert how_many >= expected["swaps"] if expected["swaps"] else how_many == 0
    sound(runner)


def tight_tier(runner: Runner, given: Data, expected: Data) -> None:
    """Host memory for a few blocks alone: what does not go there is computed again."""
    fields = [greedy(text(30 + i, 40), max_tokens=100) for i in range(given["count"])]
    outcomes = at_once(*[lambda one=one: runner.complete(one) for one in fields])
    assert all(outcome.completion_tokens == 100 for outcome in outcomes)
    assert runner.counter("num_preemptions") > runner.counter("swap_preemptions")
    sound(runner)


def hit_and_preempted(runner: Runner, given: Data, expected: Data) -> None:
    """What a request found in the cache is told once, however often it gave way."""
    prompts = [text(60 + i, 41) for i in range(4)]
    for prompt in prompts:
        runner.complete(greedy(prompt, max_tokens=1))
    before = runner.counter("num_preemptions")
    fields = [greedy(prompt, max_tokens=150) for prompt in prompts]
    outcomes = at_once(*[lambda one=one: runner.complete(one) for one in fields])
    assert runner.counter("num_preemptions") > before
    assert sum(map(cached, outcomes)) > 0 and all(cached(outcome) <= 40 for outcome in outcomes)
    sound(runner)


def never_fits(runner: Runner, given: Data, expected: Data) -> None:
    """A request that needs more than there is gets an answer at once, and holds nobody up."""
    size = runner.max_model_len
    assert size == expected["max_model_len"]
    small = [lambda i=i: runner.complete(greedy(text(70 + i, 10))) for i in range(10)]
    large, *others = at_once(lambda: runner.complete(greedy(text(16, given["tokens"]))), *small)
    assert large.status == 400 and large.took_s < 1.0
    assert large.error is not None and str(size) in large.error["message"]
    assert [outcome.status for outcome in others] == [200] * 10
    sound(runner)


def pass_the_large_one(runner: Runner, given: Data, expected: Data) -> None:
    """One runs, one that needs nearly all the pool waits, and small ones that fit beside the first are answered."""
    ended: list[str] = []

    def ask(name: str, fields: Data) -> None:
        assert runner.complete(fields).status == 200
        ended.append(name)

    def begin(name: str, fields: Data) -> threading.Thread:
        thread = threading.Thread(target=ask, args=(name, fields))
        thread.start()
        return thread

    threads = [begin("first", {"prompt": text(17, given["first"]), "max_tokens": given["tokens"], "ignore_eos": True})]
    wait_for(lambda: runner.num_running() == 1, "one runs", 5)
    threads.append(begin("large", {"prompt": text(18, given["large"]), "max_tokens": 1, "ignore_eos": True}))
    wait_for(lambda: runner.num_waiting() == 1, "the large one waits", 5)
    small = [begin("small", {"prompt": text(19 + i, 5), "max_tokens": 4, "ignore_eos": True}) for i in range(2)]
    for thread in (*small, *threads):
        thread.join()
    assert ended == ["small", "small", "first", "large"]


def stalled(runner: Runner, given: Data, expected: Data) -> None:
    """Health turns bad while requests wait and no step is made, and good again with the next step."""
    limit_s, hangs_s = given["limit_s"], given["hangs_s"]
    time.sleep(1.5 * limit_s)
    assert runner.alive(), "nothing to do is no stall"
    thread = threading.Thread(target=lambda: runner.complete({"prompt": [given["hangs_on"], 5], "max_tokens": 3}))
    begin = time.monotonic()
    thread.start()
    wait_for(lambda: not runner.alive(), "health is bad", hangs_s)
    assert time.monotonic() - begin > limit_s
    wait_for(runner.alive, "health is good", hangs_s)
    thread.join()
    assert runner.complete({"prompt": [5, 5], "max_tokens": 3}).status == 200
    time.sleep(1.5 * limit_s)
    assert runner.alive()
