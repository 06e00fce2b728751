"""Joins recorded ops into fewer, before their values get memory.

A joined op gives the bits of its parts one after another: it saves passes over memory and waits for threads, nothing
else. Only neighbours are joined, so that nothing can have happened between them.

    rms_norm, linear            rms_norm_linear: rows are normalised while they are converted for the product
    layer_norm, linear          layer_norm_linear
    gated, linear               gated_linear
    activation, linear          activation_linear
    linear, gated               ..._gated: gate and up never leave the cache they were computed in
    any of these linears, add   ..._add: the product is added where it belongs instead of being stored
    rotary, rotary, write_kv    rotary_write_kv: query and key of a token are rotated, and the key stored, at once
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import msgspec


class View(msgspec.Struct, frozen=True):
    """A tensor while recording: columns `offset : offset + width` of value `root`, as call number `made` left them."""

    root: int
    offset: int
    width: int
    made: int


class Call(msgspec.Struct, frozen=True):
    """Something to be done."""

    method: str
    """Of the native program."""
    root: int | None
    """The value it produces; None: it works in place or on the KV memory."""
    arguments: tuple[Any, ...]
    """All before the output."""

    def views(self) -> Iterator[View]:
        return (argument for argument in self.arguments if isinstance(argument, View))


Join = tuple[int, Call]
"""How many of the calls before are replaced, and by what they and the next one are."""


def fuse(calls: list[Call], result: View) -> list[Call]:
    """The same with joined ops. `result` is what is read at the end."""
    num_reads = Counter(view.root for call in calls for view in call.views())
    num_reads[result.root] += 1
    fused: list[Call] = []
    for call in calls:
        for rule in _RULES:
            if fused and (join := rule(fused, call, num_reads)) is not None:
                count, call = join
                del fused[len(fused) - count :]
        fused.append(call)
    return fused


def last_uses(calls: list[Call], result: View) -> dict[int, int]:
    """The last call that reads or makes each value; one past the last for the result's."""
    last = {}
    for step, call in enumerate(calls):
        if call.root is not None:
            last[call.root] = step
        last.update((view.root, step) for view in call.views())
    return {**last, result.root: len(calls)}


def _made_for(view: View, call: Call, width: int, num_reads: Counter[int]) -> bool:
    """Whether `view` is all that `call` made, and nobody else reads any of it."""
    return view.root == call.root and (view.offset, view.width) == (0, width) and num_reads[view.root] == 1


def _prologue(before: list[Call], call: Call, num_reads: Counter[int]) -> Join | None:
    source = before[-1]
    if call.method != "linear" or source.method not in ("rms_norm", "layer_norm", "gated"):
        return None
    x, weight, bias = call.arguments
    if not _made_for(x, source, source.arguments[0].width, num_reads):
        return None
    if source.method == "rms_norm" and len(source.arguments[1]) != x.width:
        return None
    return 1, Call(f"{source.method}_linear", call.root, (*source.arguments, weight, bias))


def _activate(before: list[Call], call: Call, num_reads: Counter[int]) -> Join | None:
    """An activation works in place: nobody else may read what it makes, nor what stands beside it."""
    source = before[-1]
    if call.method != "linear" or source.method != "activation":
        return None
    taken, (x, *weight_and_bias) = source.arguments[0], call.arguments
    if (x.root, x.offset, x.width) != (taken.root, taken.offset, taken.width) or num_reads[x.root] != 2:
        return None
    return 1, Call("activation_linear", call.root, (*source.arguments, *weight_and_bias))


def _gate(before: list[Call], call: Call, num_reads: Counter[int]) -> Join | None:
    product = before[-1]
    if call.method != "gated" or product.method not in ("linear", "rms_norm_linear", "layer_norm_linear"):
        return None
    gate, up, kind = call.arguments
    weight = product.arguments[-2]
    halves = [(view.root, view.offset, 2 * view.width) for view in (gate, up)]
    expected = [(product.root, offset, weight.n) for offset in (0, weight.n // 2)]
    if halves != expected or num_reads[gate.root] != 2 or not weight.has_halves:
        return None
    return 1, Call(f"{product.method}_gated", call.root, (kind, *product.arguments))


def _epilogue(before: list[Call], call: Call, num_reads: Counter[int]) -> Join | None:
    product = before[-1]
    if call.method != "add" or not product.method.endswith("linear"):
        return None
    x, y = call.arguments
    weight = product.arguments[-2]
    # Parts of the sum are stored while other threads still read what is multiplied.
    reads_the_sum = any(view.root == x.root for view in product.views())
    if reads_the_sum or x.width != y.width or not _made_for(y, product, weight.n, num_reads):
        return None
    return 1, Call(f"{product.method}_add", None, (*product.arguments, x))


def _rotate_and_write(before: list[Call], call: Call, num_reads: Counter[int]) -> Join | None:
    if call.method != "write_kv" or [other.method for other in before[-2:]] != ["rotary", "rotary"]:
        return None
    (query, *rope), (rotated, *same_rope) = (other.arguments for other in before[-2:])
    layer, key, value = call.arguments
    if rope != same_rope or (key.root, key.offset, key.width) != (rotated.root, rotated.offset, rotated.width):
        return None
    return 2, Call("rotary_write_kv", None, (query, key, *rope, layer, value))


_RULES: tuple[Callable[[list[Call], Call, Counter[int]], Join | None], ...] = (
    _prologue,
    _activate,
    _gate,
    _epilogue,
    _rotate_and_write,
)
