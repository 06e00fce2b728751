"""Answers to many schemas on the default model, checked by a validator that is not ours.

`make test-schemas` takes all; `make test` a part.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any

import jsonschema
import pytest

from schemas.catalogue import FAMILIES, Case, cases
from support.server_process import ServerProcess

SIZE = int(os.environ.get("OCTAVO_SCHEMAS", "30"))
MAX_TOKENS = 512
REFUSED = {"counted-4", "hard-0", "hard-1", "hard-2", "hard-3", "hard-4", "hard-5"}
"""Their keywords cannot be held, as docs/http-api.md says."""


def ask(server: ServerProcess, case: Case, seed: int) -> tuple[str, str | None]:
    """How an answer ended, or "400"; and what is wrong with it."""
    fields = {
        "messages": [{"role": "user", "content": f"Give me {case.about}, as JSON."}],
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": case.name, "strict": True, "schema": case.schema},
        },
        "max_tokens": MAX_TOKENS,
        "temperature": 0.0 if seed % 4 == 0 else 1.0,
        "seed": seed,
    }
    reply = server.request("POST", "/v1/chat/completions", fields, timeout_s=600)
    if reply.status == 400:
        named = reply.error["param"] == "response_format.json_schema.schema"
        return "400", None if named else f"the error does not name the schema: {reply.body}"
    if reply.status != 200:
        return str(reply.status), str(reply.body)
    [choice] = reply.body["choices"]
    text, reason = choice["message"]["content"], choice["finish_reason"]
    return reason, wrong_with(text, case.schema) if reason == "stop" else None


def wrong_with(text: str, schema: Any) -> str | None:
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        # Decimal fractions as they are written: 1.11 is a multiple of 0.01, though not among binary ones.
        exact = json.loads(json.dumps(schema), parse_float=Decimal)
        kind(exact, format_checker=kind.FORMAT_CHECKER).validate(json.loads(text, parse_float=Decimal))
    except (ValueError, jsonschema.ValidationError) as error:
        return f"{text!r} is not valid: {str(error)[:200]}"
    return None


def test_there_are_three_hundred_different_ones() -> None:
    found = cases()
    assert len(found) == len({json.dumps(case.schema, sort_keys=True) for case in found}) == 300
    assert {case.name.partition("-")[0] for case in found[:30]} == set(FAMILIES), "a part has one of each family"


@pytest.mark.model
@pytest.mark.timeout(3600)
def test_every_finished_answer_is_valid(start_server: Callable[..., ServerProcess]) -> None:
    server = start_server(model="smollm2-135m")
    chosen = cases()[:SIZE]
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda pair: ask(server, pair[1], pair[0]), enumerate(chosen)))
    ends = Counter(reason for reason, _ in found)
    print(f"\n{len(chosen)} schemas: " + ", ".join(f"{count} {reason}" for reason, count in ends.most_common()))
    named = {end: {c.name for c, (reason, _) in zip(chosen, found, strict=True) if reason == end} for end in ends}
    print("cut at max_tokens:", *sorted(named.get("length", ())))
    assert [f"{case.name}: {why}" for case, (_, why) in zip(chosen, found, strict=True) if why] == []
    assert named.get("400", set()) == REFUSED & {case.name for case in chosen}
    assert set(ends) <= {"stop", "length", "400"}
    assert ends["stop"] >= (0.95 if SIZE >= 300 else 0.9) * len(chosen)
    assert server.get("/health").status == 200
