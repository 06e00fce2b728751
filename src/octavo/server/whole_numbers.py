"""Whole numbers that clients write with a decimal point: `2.0` is the integer 2, as JSON has but one kind of number."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

from msgspec import inspect


def with_integers(value: Any, kind: type) -> Any:
    """A copy of `value` in which floats without a fraction are integers wherever `kind` takes integers only."""
    return _converted(value, _shape(kind))


@functools.cache
def _shape(kind: type) -> inspect.Type:
    return inspect.type_info(kind)


def _converted(value: Any, *shapes: inspect.Type) -> Any:
    shapes = tuple(_alternatives(shapes))
    if isinstance(value, float):
        takes = {type(shape) for shape in shapes}
        only_integers = inspect.IntType in takes and inspect.FloatType not in takes
        return int(value) if only_integers and value.is_integer() else value
    if isinstance(value, list):
        of_items = [shape.item_type for shape in shapes if isinstance(shape, inspect.ListType)]
        return [_converted(item, *of_items) for item in value] if of_items else value
    if isinstance(value, dict):
        fields = {
            field.encode_name: field.type
            for shape in shapes
            if isinstance(shape, inspect.StructType)
            for field in shape.fields
        }
        return {name: _converted(item, fields[name]) if name in fields else item for name, item in value.items()}
    return value


def _alternatives(shapes: Iterable[inspect.Type]) -> Iterable[inspect.Type]:
    for shape in shapes:
        if isinstance(shape, inspect.UnionType):
            yield from shape.types
        else:
            yield shape
