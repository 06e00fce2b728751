"""What `multipleOf` may ask for: the compiler takes whatever it is given, and its work has no limit there.

It makes an automaton with one state for each remainder at most, and as many for most numbers: time and memory grow with
the number in units of its last decimal, but for 10, 2000 and the like. Where schemas are combined (allOf, anyOf,
references ...) the least common multiple counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from octavo.errors import RequestError
from octavo.structured import Grammar
from octavo.worker.grammar_schemas import Schema, place, schemas_of

MAX_REMAINDERS = 100_000
"""Of a schema: of all its numbers together, and of their least common multiple. As many take a second to compile."""

ABOVE_0 = "a number above 0"
_COMBINE = ('"allOf"', '"anyOf"', '"oneOf"', '"$ref"', '"patternProperties"')


def check_multiples(grammar: Grammar) -> None:
    """Raises RequestError, naming the place, for a `multipleOf` that is not above 0 or that is too large to hold."""
    if "multipleOf" not in grammar.text:
        return
    schemas = schemas_of(grammar)
    for schema in schemas:
        for path, node in schema.nodes():
            step: Any = node.get("multipleOf", 1)
            if _is_number(step) and step <= 0:
                where = place(schema.field, path, "multipleOf")
                raise RequestError(schema.field, message=f"{where}: must be {ABOVE_0}")
    combines = any(keyword in grammar.text for keyword in _COMBINE)
    for schema in schemas:
        _check_remainders(schema, combines)


def digits_of(number: float) -> str:
    """The digits of a number, without the zeros around them."""
    return "".join(map(str, Decimal(repr(number)).as_tuple().digits)).strip("0")


def _check_remainders(schema: Schema, combines: bool) -> None:
    steps = {step for step in _steps(schema.value) if 0 < step < math.inf}
    total = sum(_remainders([step]) for step in steps)
    if total <= MAX_REMAINDERS and combines:  # else there may be too many numbers for their multiple to be found
        total = _remainders(list(steps))
    if total <= MAX_REMAINDERS:
        return
    largest = max(steps, key=lambda step: _remainders([step]))
    others = f", together with the {len(steps) - 1} others of the schema" if len(steps) > 1 else ""
    why = f"{repr(largest)[:24]} has too many remainders to hold{others}; at most {MAX_REMAINDERS} are allowed"
    for path, node in schema.nodes():
        if node.get("multipleOf") == largest:
            where = place(schema.field, path, "multipleOf")
            raise RequestError(schema.field, message=f"{where}: {why}")
    raise RequestError(schema.field, message=f"{schema.field}: multipleOf {why}")


def _remainders(steps: list[float]) -> int:
    """Of the least common multiple of numbers, in units of the last decimal of any of them."""
    parts = [Decimal(repr(step)).as_tuple() for step in steps]
    digits = [int("".join(map(str, part.digits))) for part in parts]
    exponents = [int(part.exponent) for part in parts]
    unit = min(0, *exponents)
    common = math.lcm(*(number * 10 ** (power - unit) for number, power in zip(digits, exponents, strict=True)))
    stripped = common
    while stripped and stripped % 10 == 0:
        stripped //= 10
    return stripped if stripped < 10 else common


def _steps(value: Any) -> Iterator[float]:
    """Whatever is called so, wherever it stands: a reference may make a schema of any part."""
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            step: Any = item.get("multipleOf")
            if _is_number(step):
                yield step
            pending += item.values()
        elif isinstance(item, list):
            pending += item


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
