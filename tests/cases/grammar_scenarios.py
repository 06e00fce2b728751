"""How the cases about grammars are played."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor

from cases.runner import Runner
from cases.scenarios import GOOD, Data, wait_for
from support.refusing import DOOMED_AFTER, DOOMED_SEED


def bad_grammars(runner: Runner, given: Data, expected: Data) -> None:
    """Each is refused in time, whole and streamed, and the next request is fine."""
    reference = runner.complete(GOOD)
    params = tuple(expected["params"])
    each = [{"response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": schema}}}
            for schema in given.get("schemas", [])]  # fmt: skip
    each += given.get("fields", [])
    each += [{"structured_outputs": {"json": '{"items":' * depth + "{}" + "}" * depth}} for depth in given["depths"]]
    for fields in each:
        for stream in (False, True):
            outcome = runner.complete({**GOOD, **fields}, stream=stream)
            assert outcome.status == 400 and outcome.error is not None, (str(fields)[:80], outcome)
            assert (outcome.error["param"] or "").startswith(params), outcome.error
            assert outcome.took_s < expected["within_s"], (str(fields)[:80], outcome.took_s)
    for depth in given["depths"]:
        raw = '{"prompt": "x", "structured_outputs": {"json": ' + '{"items":' * depth + "{}" + "}" * depth + "}}"
        assert runner.send_raw(raw).status == 400
    assert runner.complete(GOOD).choices == reference.choices
    assert runner.alive() and runner.num_held_blocks() == 0


def refused_token(runner: Runner, given: Data, expected: Data) -> None:
    """A matcher refuses a token: its request ends with an error, and no other notices."""
    fields = {**GOOD, "max_tokens": 60, "structured_outputs": {"regex": given["regex"]}, "ignore_eos": True}
    alone = runner.complete({**fields, "seed": DOOMED_SEED + 1})
    with ThreadPoolExecutor(8) as pool:
        others = [pool.submit(runner.complete, {**fields, "seed": DOOMED_SEED + 1}) for _ in range(3)]
        doomed = [pool.submit(runner.complete, {**fields, "seed": DOOMED_SEED}, stream=s) for s in (False, True)]
        whole, streamed = (future.result() for future in doomed)
        assert all(other.result().choices == alone.choices for other in others)
    assert whole.status == 400 and whole.error is not None
    assert expected["message"] in whole.error["message"], whole.error
    assert streamed.error is not None and expected["message"] in streamed.error["message"]
    assert len(streamed.choices[0].text) >= DOOMED_AFTER - 1 and streamed.choices[0].finish_reason is None
    wait_for(lambda: runner.num_held_blocks() == 0, "blocks of the failed request", 2.0)
    assert runner.complete({**fields, "seed": DOOMED_SEED + 1}).choices == alone.choices


def past_the_end(runner: Runner, given: Data, expected: Data) -> None:
    """A value that is complete ends the answer, whatever ignore_eos and min_tokens say."""
    for more in ({}, {"ignore_eos": True}, {"min_tokens": 50}, {"ignore_eos": True, "min_tokens": 50}):
        fields = {**GOOD, "max_tokens": 60, "structured_outputs": {"json": given["schema"]}, **more}
        for stream in (False, True):
            outcome = runner.complete(fields, stream=stream)
            assert outcome.status == 200 and outcome.error is None
            assert outcome.choices[0].finish_reason == expected["finish_reason"]
            assert json.loads(outcome.texts[0]) in given["schema"]["enum"]


def waiting_for_grammars(runner: Runner, given: Data, expected: Data) -> None:
    """Those whose grammars do not compile take no place from those that can run."""
    bad = {**GOOD, "structured_outputs": {"grammar": "start: " + "(" * given["depth"]}}
    good = {**GOOD, "structured_outputs": {"regex": "[a-z]{3}"}, "max_tokens": 9}
    reference = runner.complete(GOOD)
    with ThreadPoolExecutor(2 * given["count"]) as pool:
        refused = [pool.submit(runner.complete, bad) for _ in range(given["count"])]
        plain = [pool.submit(runner.complete, GOOD) for _ in range(given["count"])]
        held = [pool.submit(runner.complete, good) for _ in range(given["count"])]
        assert all(future.result().status == 400 for future in refused)
        assert all(future.result().choices == reference.choices for future in plain)
        assert all(re.fullmatch("[a-z]{3}", future.result().texts[0]) for future in held)
    assert (runner.num_running(), runner.num_waiting(), runner.num_held_blocks()) == (0, 0, 0)
