"""Tiny models some of whose layers have windows: what a family with local and global layers loads as."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import msgspec

from octavo.models.families import decoder_spec
from octavo.models.spec import DecoderSpec


def alternating(num_layers: int, window: int, every: int = 6) -> list[int | None]:
    """Windows of layers of which the last of each `every` sees everything."""
    return [None if i % every == every - 1 else window for i in range(num_layers)]


@contextmanager
def mixed_windows(windows: Sequence[int | None]) -> Iterator[None]:
    """While this lasts, models that are loaded have these windows, whatever their files say."""

    def mixed(config: dict[str, Any], context: int | None = None) -> DecoderSpec:
        spec = decoder_spec(config, context)
        layers = tuple(
            msgspec.structs.replace(layer, window=window) for layer, window in zip(spec.layers, windows, strict=True)
        )
        return msgspec.structs.replace(spec, layers=layers)

    with mock.patch("octavo.executor.local.decoder_spec", mixed):
        yield
