"""Reads a model's config as its family understands it: defaults, other names, checks. Rules say what to read."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Mapping
from typing import Any

from octavo.backends.protocol import Activation
from octavo.errors import ModelFileError, UnsupportedModelError

FILE = "config"
MAX_LAYERS = 1 << 12
MAX_SIZE = 1 << 24
MAX_WIDTH = 1 << 20
"""Elements of all heads together; the widest models in use have 2^15."""


class Config:
    """A Hugging Face config.

    Args:
        values: The keys of config.json. Llama's names count where the family's own are not there, as in transformers.
        keys: The family's own names of keys that are asked for by Llama's.
        defaults: Values of keys that the config leaves out, by the family's names.
        context: Tokens of the longest sequence that will be served; None for the trained context.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        *,
        keys: Mapping[str, str] | None = None,
        defaults: Mapping[str, Any] | None = None,
        context: int | None = None,
    ) -> None:
        self._keys = keys or {}
        own = {self.name(key): value for key, value in values.items() if self.name(key) not in values}
        self.values = {**(defaults or {}), **own, **values}
        self._context = context

    @property
    def context(self) -> int:
        return self.size("max_position_embeddings") if self._context is None else self._context

    @property
    def head_dim(self) -> int:
        hidden, heads = self.size("hidden_size"), self.size("num_attention_heads")
        if self.get("head_dim") is None and hidden % heads:
            raise self.wrong("hidden_size", f"must be a multiple of {self.name('num_attention_heads')} ({heads})")
        width = self.size("head_dim", hidden // heads)
        # Orders of rows and tables of angles are made by it, before a tensor is looked at.
        if width * heads > MAX_WIDTH:
            raise self.wrong("head_dim", f"{heads} heads of it must have at most {MAX_WIDTH} elements")
        return width

    def name(self, key: str) -> str:
        """The family's own name of a key."""
        return self._keys.get(key, key)

    def get(self, key: str) -> Any:
        return self.values.get(self.name(key))

    def size(self, key: str, default: int | None = None) -> int:
        """An integer above 0; a null stands for the default."""
        value = self.get(key)
        value = default if value is None else value
        most = MAX_LAYERS if key == "num_hidden_layers" else MAX_SIZE
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
            raise self.wrong(key, f"must be an integer from 1 to {most}")
        return value

    def optional_size(self, key: str) -> int | None:
        return None if self.get(key) is None else self.size(key)

    def flag(self, key: str) -> bool:
        value = self.values.get(self.name(key), False)
        if not isinstance(value, bool):
            raise self.wrong(key, "must be true or false")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A number for which products and powers stay finite."""
        value = self.get(key)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float) or not 1e-12 <= value <= 1e15:
            raise self.wrong(key, "must be a number from 1e-12 to 1e15")
        return float(value)

    def optional_number(self, key: str) -> float | None:
        return None if self.get(key) is None else self.number(key)

    def tokens(self, key: str) -> tuple[int, ...]:
        value = self.get(key)
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids):
            raise self.wrong(key, "must be a token id or a list of them")
        return tuple(ids)

    def wrong(self, key: str, allowed: str) -> ModelFileError:
        return ModelFileError(FILE, self.name(key), f"is {str(self.get(key))[:40]}; {allowed}")


Rule = Callable[[Config], Any]
"""How a field of a spec follows from a config."""


def size(key: str) -> Rule:
    return lambda config: config.size(key)


def flag(key: str) -> Rule:
    return lambda config: config.flag(key)


def number(key: str) -> Rule:
    return lambda config: config.number(key)


def optional_number(key: str) -> Rule:
    return lambda config: config.optional_number(key)


ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_tanh": "gelu_tanh",
    "relu": "relu",
}
"""By Hugging Face's names."""


def activation(key: str) -> Rule:
    def rule(config: Config) -> Activation:
        name = str(config.get(key))
        if name not in ACTIVATIONS:
            raise unsupported("activation", name, ACTIVATIONS)
        return ACTIVATIONS[name]

    return rule


def unsupported(what: str, name: str, known: Collection[str]) -> UnsupportedModelError:
    """Names what is not there and what comes nearest to it."""
    nearest = difflib.get_close_matches(name[:60], known, n=1, cutoff=0.0)[0]
    return UnsupportedModelError(f"{what} {name[:60]!r}; the nearest supported one is {nearest!r}")
