"""The sizes of a model, as far as its kernels' speed depends on them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo.errors import ConfigError
from octavo.models.overrides import overridden_spec
from octavo.models.spec import DecoderSpec
from octavo.weights.files import JSONObject, read_json
from octavo.weights.sources import open_checkpoint, resolve


def spec_of_model(model: str, overrides: Mapping[str, Any] | None = None) -> DecoderSpec:
    """The spec of a model by its name or path, as `octavo serve` takes it. Its weights are not read.

    Args:
        overrides: Keys in the place of those of its config.

    Raises:
        ConfigError: Naming a key of `overrides` that changes nothing.
        ModelError: If there is no such model, or it is of a kind that Octavo does not run.
    """
    checkpoint = open_checkpoint(resolve(model))
    try:
        return overridden_spec(checkpoint.config, overrides or {})
    finally:
        checkpoint.close()


def spec_of_config(path: Path, overrides: Mapping[str, Any] | None = None) -> DecoderSpec:
    """The spec of the model that a config.json describes.

    Args:
        overrides: Keys in the place of those in it.

    Raises:
        ConfigError: Naming a key of `overrides` that changes nothing.
        ModelError: If it is not one, or the model is of a kind that Octavo does not run.
    """
    return overridden_spec(read_json(path, JSONObject), overrides or {})


@dataclass(frozen=True, kw_only=True)
class Shapes:
    """A Llama-like decoder; widths in elements. The defaults are SmolLM2-135M's."""

    hidden_size: int = 576
    intermediate_size: int = 1536
    num_heads: int = 9
    num_kv_heads: int = 3
    head_dim: int = 64
    num_layers: int = 30
    vocab_size: int = 49152

    @property
    def query_width(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_width(self) -> int:
        return self.num_kv_heads * self.head_dim

    @property
    def layer_linears(self) -> list[tuple[int, int]]:
        """`(n, k)` of a layer's products: q/k/v in one, output, gate and up in one, down."""
        return [
            (self.query_width + 2 * self.kv_width, self.hidden_size),
            (self.hidden_size, self.query_width),
            (2 * self.intermediate_size, self.hidden_size),
            (self.hidden_size, self.intermediate_size),
        ]

    @property
    def logits(self) -> tuple[int, int]:
        return self.vocab_size, self.hidden_size

    @property
    def linears(self) -> list[tuple[int, int]]:
        """`(n, k)` of every product of a pass, in its order."""
        return [*self.layer_linears * self.num_layers, self.logits]

    @classmethod
    def of_spec(cls, spec: DecoderSpec) -> Shapes:
        return cls(**{field.name: getattr(spec, field.name) for field in dataclasses.fields(cls)})

    @classmethod
    def of_model(cls, model: str) -> Shapes:
        """Of a model by its name or path, as `octavo serve` takes it. Its weights are not read.

        Raises:
            ModelError: If there is no such model, or it is of a kind that Octavo does not run.
        """
        return cls.of_spec(spec_of_model(model))

    def changed(self, text: str) -> Shapes:
        """With sizes such as `hidden_size=1024,num_layers=4` in place of its own.

        Raises:
            ConfigError: For a name that is no size, or a value that is no positive integer; also when the heads do not
                divide.
        """
        names = {field.name for field in dataclasses.fields(self)}
        sizes: dict[str, int] = {}
        for part in filter(None, text.split(",")):
            name, _, value = part.partition("=")
            if name not in names or not value.isdigit() or int(value) < 1:
                raise ConfigError("shape", part, f"NAME=SIZE with a name of {', '.join(sorted(names))}")
            sizes[name] = int(value)
        made = dataclasses.replace(self, **sizes)
        if made.num_heads % made.num_kv_heads:
            raise ConfigError("shape", text, "one whose num_heads are a multiple of its num_kv_heads")
        return made
