"""Requests that schemathesis draws from the server's own description, right and wrong ones."""

from __future__ import annotations

import contextlib
import json
import random
from typing import Any

from fuzz.request import Request
from fuzz.values import GOOD

PER_DRAW = 50
"""Cases from one operation before the next; hypothesis looks for new ones within such a run."""


def drawn(document: dict[str, Any], rng: random.Random, count: int) -> list[Request]:
    """So many, spread evenly over operations and kinds."""
    import schemathesis
    from hypothesis import HealthCheck, Phase, given, seed, settings
    from hypothesis.errors import HypothesisException
    from schemathesis import GenerationMode

    operations = [result.ok() for result in schemathesis.openapi.from_dict(document).get_all_operations()]
    quiet = settings(
        max_examples=PER_DRAW,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    made: list[Request] = []
    barren = 0
    while len(made) < count and barren < len(operations) * 4:
        operation, mode = rng.choice(operations), rng.choice(list(GenerationMode))
        before = len(made)

        @seed(rng.getrandbits(32))
        @quiet
        @given(operation.as_strategy(generation_mode=mode))
        def draw(case: Any) -> None:
            made.append(_request(case, rng))

        with contextlib.suppress(HypothesisException):  # an operation of which there is nothing wrong to draw
            draw()
        barren = barren + 1 if len(made) == before else 0
    return made[:count]


def _request(case: Any, rng: random.Random) -> Request:
    body = case.body
    if isinstance(body, dict) and case.path in GOOD and rng.random() < 0.6:  # so that it gets past what is required
        case.body = {**GOOD[case.path], **{name: value for name, value in body.items() if value is not None}}
    import requests

    sent = requests.Request(**case.as_transport_kwargs(base_url="http://server")).prepare()
    raw = sent.body.encode() if isinstance(sent.body, str) else sent.body
    kept = ("content-type", "x-request-id")
    headers = {name: _text(value) for name, value in sent.headers.items() if name.lower() in kept}
    return Request(sent.method or "POST", _text(sent.path_url), raw, headers, f"schemathesis {json.dumps(case.path)}")


def _text(value: str | bytes) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value
