"""How each kind of case is played on a runner, and what is checked."""

from __future__ import annotations

import itertools
import math
import random
import threading
import time
from collections.abc import Callable
from typing import Any

from cases.runner import Outcome, Runner

Data = dict[str, Any]
GOOD: Data = {"prompt": "Once upon a time", "max_tokens": 6, "temperature": 0}


def both_ways(runner: Runner, fields: Data) -> Outcome:
    """The outcome of a request, which must be the same whole and streamed."""
    whole, streamed = runner.complete(fields), runner.complete(fields, stream=True)
    assert whole.status == streamed.status == 200, (whole, streamed)
    assert streamed.choices == whole.choices
    # What the second found in the cache is what the first left there.
    counts = ("prompt_tokens", "completion_tokens", "total_tokens")
    assert [(streamed.usage or {})[name] for name in counts] == [(whole.usage or {})[name] for name in counts]
    assert streamed.num_usages == 1
    return whole


def emit(runner: Runner, given: Data, expected: Data) -> None:
    """The model is forced to emit given tokens."""
    fields = {"prompt": runner.token_ids(["<s>", *given["emit"]]), "max_tokens": 100, **given.get("fields", {})}
    outcome = both_ways(runner, fields)
    [choice] = outcome.choices
    assert choice.text == expected["text"]
    assert choice.finish_reason == expected["finish_reason"]
    if "stop_reason" in expected:
        assert choice.stop_reason == expected["stop_reason"]
    if "completion_tokens" in expected:
        assert outcome.completion_tokens == expected["completion_tokens"]


def repeat(runner: Runner, given: Data, expected: Data) -> None:
    """The model is forced to emit the tokens of each prompt."""
    for prompt in given["prompts"]:
        outcome = both_ways(runner, {"prompt": prompt, "max_tokens": 200})
        assert outcome.texts == [prompt]
        assert outcome.choices[0].finish_reason == "stop"


def refuse(runner: Runner, given: Data, expected: Data) -> None:
    """Bad requests are refused by name; good ones before, between and after are answered alike."""
    reference = runner.complete(GOOD)
    outcomes = [
        runner.complete({**GOOD, **fields}, stream=stream)
        for fields in given.get("each", [])
        for stream in (False, True)
    ]
    outcomes += [runner.send_raw(body) for body in given.get("raw", [])]
    outcomes += [runner.send_raw(body, chat=True) for body in given.get("raw_chat", [])]
    for outcome in outcomes:
        assert outcome.status == expected["status"], outcome
        assert outcome.error is not None
        if "param" in expected:
            assert (outcome.error["param"] or "").startswith(expected["param"]), outcome.error
    for fields in given.get("fine", []):
        assert runner.complete({**GOOD, **fields}).choices == reference.choices
    assert runner.complete(GOOD).choices == reference.choices


def context_edge(runner: Runner, given: Data, expected: Data) -> None:
    """Prompts of one less than the context, exactly the context, and one more."""
    length = runner.max_model_len
    for size, max_tokens, fits in (
        (length - 1, 1, True),
        (length - 1, None, True),
        (length, 1, False),
        (length + 1, 1, False),
        (length + 1, 0, False),
    ):
        fields = {**given["fields"], "prompt": [5] * size, "max_tokens": max_tokens}
        if max_tokens is None:
            fields["max_tokens"] = 1
        if max_tokens == 0:
            fields["echo"] = True
        outcome = runner.complete(fields)
        if fits:
            assert outcome.status == 200 and outcome.completion_tokens == 1, (size, outcome)
        else:
            assert outcome.status == 400 and outcome.error is not None
            assert outcome.error["code"] == "context_length_exceeded", outcome.error
    scoring = runner.complete({**given["fields"], "prompt": [5] * length, "max_tokens": 0, "echo": True, "logprobs": 0})
    assert scoring.status == 200 and scoring.completion_tokens == 0
    assert runner.complete(GOOD).status == 200


def check_logprobs(outcome: Outcome, prompt_text: str | None) -> None:
    """Lists of one length; offsets that cut the text into its tokens."""
    for choice in outcome.choices:
        logprobs = choice.logprobs
        assert logprobs is not None
        tokens, offsets = logprobs["tokens"], logprobs["text_offset"]
        assert len({len(values) for values in logprobs.values()}) == 1
        assert offsets == sorted(offsets)
        for token, begin, end in zip(tokens, offsets, [*offsets[1:], None], strict=True):
            piece = choice.text[begin:end]
            assert piece in (token, token.removeprefix(" "), ""), (token, piece)
        assert "".join(choice.text[b:e] for b, e in itertools.pairwise([*offsets, len(choice.text)])) == choice.text
        if prompt_text is not None:
            assert choice.text.startswith(prompt_text)
            assert logprobs["token_logprobs"][0] is None
            assert offsets[0] == 0
        assert all(math.isfinite(value) and value <= 0 for value in logprobs["token_logprobs"] if value is not None)


def combinations(runner: Runner, given: Data, expected: Data) -> None:
    """Every combination of the axes, streamed and whole."""
    axes = given["axes"]
    for values in itertools.product(*axes.values()):
        fields = {**given["fields"], **dict(zip(axes, values, strict=True))}
        outcome = both_ways(runner, fields)
        assert len(outcome.choices) == fields.get("n", 1)
        echoed = fields["prompt"] if fields.get("echo") else None
        if fields.get("logprobs") is not None:
            check_logprobs(outcome, echoed)
        else:
            assert all(choice.logprobs is None for choice in outcome.choices)
            assert echoed is None or all(text.startswith(echoed) for text in outcome.texts)


def scoring(runner: Runner, given: Data, expected: Data) -> None:
    outcome = both_ways(runner, given["fields"])
    [choice] = outcome.choices
    assert choice.text == expected["text"]
    assert choice.finish_reason == expected["finish_reason"]
    assert outcome.completion_tokens == expected["completion_tokens"]
    check_logprobs(outcome, expected["text"])
    assert choice.logprobs is not None and outcome.usage is not None
    assert len(choice.logprobs["tokens"]) == outcome.usage["prompt_tokens"]


def unfiltered(runner: Runner, given: Data, expected: Data) -> None:
    plain = runner.complete(given["fields"])
    filtered = runner.complete({**given["fields"], **given["filtered"]})
    assert filtered.choices == plain.choices  # top_k of 1 chooses what greedy does, and reports the same scores
    check_logprobs(filtered, given["fields"]["prompt"])


def chosen_only(runner: Runner, given: Data, expected: Data) -> None:
    [choice] = both_ways(runner, given["fields"]).choices
    assert choice.logprobs is not None
    assert len(choice.logprobs["token_logprobs"]) == 4
    assert all(value is not None for value in choice.logprobs["token_logprobs"])
    for token, value, top in zip(
        choice.logprobs["tokens"], choice.logprobs["token_logprobs"], choice.logprobs["top_logprobs"], strict=True
    ):
        assert top == {token: value}


def at_once(*work: Callable[[], Any]) -> list[Any]:
    """Run functions at the same time, and return what they return."""
    results: list[Any] = [None] * len(work)

    def run(i: int) -> None:
        results[i] = work[i]()

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(work))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def same_client_id(runner: Runner, given: Data, expected: Data) -> None:
    alone = runner.complete(given["fields"])
    for count in given["counts"]:
        outcomes = at_once(*[lambda: runner.complete(given["fields"], client_id="same")] * count)
        assert all(outcome.choices == alone.choices for outcome in outcomes)
        assert len({outcome.id for outcome in outcomes}) == count


EOS_IDS = [2, 260, 300]
"""What the runner "many-eos" ends a sequence with."""


def min_tokens(runner: Runner, given: Data, expected: Data) -> None:
    for token_id in EOS_IDS:
        forced = {**given["fields"], "logit_bias": {str(token_id): 100}}
        at_first = runner.complete(forced)
        assert at_first.completion_tokens == 1 and at_first.choices[0].finish_reason == "stop", token_id
        later = runner.complete({**forced, "min_tokens": given["min_tokens"]})
        assert later.choices[0].finish_reason == expected["finish_reason"]
        assert later.completion_tokens == expected["completion_tokens"], token_id


def ignore_eos(runner: Runner, given: Data, expected: Data) -> None:
    for token_id in EOS_IDS:
        forced = {**given["fields"], "logit_bias": {str(token_id): 100}, "ignore_eos": True}
        outcome = runner.complete(forced)
        assert outcome.completion_tokens == expected["completion_tokens"], token_id
        assert outcome.choices[0].finish_reason == "length"
        stopped = runner.complete({**forced, "stop_token_ids": [token_id]})
        assert stopped.completion_tokens == 1
        assert stopped.choices[0].finish_reason == "stop" and stopped.choices[0].stop_reason == token_id


def neighbours(runner: Runner, given: Data, expected: Data) -> None:
    alone = [runner.complete(fields) for fields in given["each"]]
    for order in (given["each"], given["each"][::-1]):
        wanted = alone if order is given["each"] else alone[::-1]
        together = at_once(*[lambda fields=fields: runner.complete(fields) for fields in order * 4])
        assert [outcome.choices for outcome in together] == [outcome.choices for outcome in wanted * 4]


def two_processes(runner: Runner, other: Runner, given: Data, expected: Data) -> None:
    unseeded = [each.complete(given["fields"]).texts for each in (runner, other, runner)]
    assert unseeded[0] != unseeded[1] and unseeded[0] != unseeded[2]
    assert len(set(unseeded[0])) > 1
    seeded = [each.complete({**given["fields"], "seed": 5}).texts for each in (runner, other)]
    assert seeded[0] == seeded[1]


def seeds(runner: Runner, given: Data, expected: Data) -> None:
    texts = []
    for seed in given["seeds"]:
        first, second = (runner.complete({**given["fields"], "seed": seed}).texts for _ in range(2))
        assert first == second
        texts += first
    assert len(set(texts)) == len(texts)
    assert runner.complete({**given["fields"], "temperature": 0}).texts[0] not in texts


def same_answers(runner: Runner, given: Data, expected: Data) -> None:
    first, *rest = [runner.complete({**given["fields"], **fields}) for fields in given["each"]]
    assert first.status == 200
    assert all(outcome.choices == first.choices for outcome in rest)


def usage_of_n(runner: Runner, given: Data, expected: Data) -> None:
    outcome = both_ways(runner, {**given["fields"], "seed": 1})
    assert outcome.completion_tokens == expected["completion_tokens"]
    assert all(choice.num_ends == 1 for choice in outcome.choices)
    single = runner.complete({**given["fields"], "n": 1})
    assert outcome.usage is not None and single.usage is not None
    assert outcome.usage["prompt_tokens"] == single.usage["prompt_tokens"]


def wait_for(condition: Callable[[], bool], what: str, within_s: float) -> None:
    begin = time.monotonic()
    while not condition():
        assert time.monotonic() - begin < within_s, f"{what}: not within {within_s} s"
        time.sleep(0.01)


def leave(runner: Runner, given: Data, expected: Data) -> None:
    for stream in (False, True):
        runner.leave(given["fields"], stream=stream, after_s=0.1)
        wait_for(lambda: runner.num_held_blocks() == 0, "blocks freed", given["within_s"])
        wait_for(lambda: runner.num_running() == 0, "work stopped", given["within_s"])
    assert runner.alive()


BUSY: Data = {"prompt": "Once upon a time", "max_tokens": 240, "ignore_eos": True}


class Busy:
    """Streams that fill a runner's places for about so many seconds; the block ends with them."""

    def __init__(self, runner: Runner, count: int, seconds: float) -> None:
        self._runner = runner
        self.outcomes: list[Outcome] = []
        per_answer_s = runner.complete({**BUSY, "n": 4}).took_s / 4
        self.n = max(1, min(64, math.ceil(seconds / per_answer_s / count)))
        fields = {**BUSY, "n": self.n}
        self._threads = [
            threading.Thread(target=lambda: self.outcomes.append(runner.complete(fields, stream=True)))
            for _ in range(count)
        ]

    def __enter__(self) -> Busy:
        for thread in self._threads:
            thread.start()
        wait_for(lambda: self._runner.num_running() > 1, "running", 5)
        return self

    def __exit__(self, *_: object) -> None:
        for thread in self._threads:
            thread.join()


def leave_queue(runner: Runner, given: Data, expected: Data) -> None:
    """Those who wait and go cost no prompt token: one of their long prompts would be seen in the count."""
    short = runner.complete({**BUSY, "max_tokens": 1}).usage
    assert short is not None
    busy = Busy(runner, 8, seconds=1.5)
    computed = runner.num_computed_tokens()
    with busy:
        wait_for(lambda: runner.num_waiting() > 0, "others wait", 5)
        long_prompt = {**BUSY, "prompt": [5] * 200, "max_tokens": 10}
        at_once(*[lambda: runner.leave(long_prompt, stream=True, after_s=0.05)] * given["count"])
    wait_for(lambda: runner.num_running() + runner.num_waiting() == 0, "queue empty", 5)
    spent = runner.num_computed_tokens() - computed
    once = short["prompt_tokens"] * 8  # some engines count a prompt for each of its n answers
    assert spent in (once, once * busy.n), f"{spent} prompt tokens were computed"


def churn(runner: Runner, given: Data, expected: Data) -> None:
    """Streams that are cut at random, under pressure on memory."""
    rng = random.Random(5)
    fields = {**BUSY, "max_tokens": 100}
    for _ in range(given["rounds"]):
        cuts = [rng.randint(0, 40) for _ in range(given["streams"])]
        at_once(*[lambda cut=cut: runner.read_some(fields, cut) for cut in cuts])
    wait_for(lambda: runner.num_held_blocks() == 0 and runner.num_running() == 0, "back to empty", 5)
    assert runner.alive()
    assert runner.complete(GOOD).status == 200


def drain(runner: Runner, given: Data, expected: Data) -> None:
    """Asked to end, it finishes what runs and refuses what is new."""
    with Busy(runner, given["streams"], seconds=1.5) as busy:
        wait_for(lambda: runner.num_running() >= given["streams"], "all run", 5)
        runner.terminate()
        late = runner.complete(GOOD)
        while late.status == 200:
            late = runner.complete(GOOD)
        assert late.status == 503
    begun = [outcome for outcome in busy.outcomes if outcome.status == 200]
    assert begun
    for outcome in busy.outcomes:  # one that came too late was refused like any other
        assert outcome in begun or outcome.status == 503
    for outcome in begun:
        assert [choice.finish_reason for choice in outcome.choices] == ["length"] * busy.n
    assert runner.wait_exit() == 0


def overflow(runner: Runner, given: Data, expected: Data) -> None:
    """More streams than may run and wait: each is answered whole or refused before it begins."""
    with Busy(runner, 8, seconds=1.5):
        outcomes = at_once(*[lambda: runner.complete({**BUSY, "max_tokens": 10}, stream=True)] * 100)
    refused = [outcome for outcome in outcomes if outcome.status != 200]
    assert refused and len(refused) < len(outcomes)
    for outcome in outcomes:
        if outcome.status == 200:
            assert outcome.error is not None or outcome.completion_tokens == 10
        else:
            assert outcome.status == expected["status"] and outcome.error is not None
    assert runner.complete(GOOD).status == 200
