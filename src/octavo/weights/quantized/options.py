"""Reading `quantization_config` of a config.json: every value that decides how weights are stored is checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from octavo.errors import ModelFileError, UnsupportedModelError
from octavo.weights.files import JSONObject

CONFIG = "config.json"

_T = TypeVar("_T", str, int, bool)


class Options:
    """An object of the config. `where` names it in errors, for example "quantization_config"."""

    def __init__(self, values: Any, where: str) -> None:
        if not isinstance(values, dict):
            raise ModelFileError(CONFIG, where, f"is {repr(values)[:60]}; must be an object")
        self._values: JSONObject = values
        self._where = where

    def get(self, key: str) -> Any:
        return self._values.get(key)

    def choice(self, key: str, allowed: Sequence[_T], default: _T) -> _T:
        """One of `allowed`; `default` where the key is absent or null.

        Raises:
            UnsupportedModelError: Naming the key, the value and what is supported.
        """
        value = self._values.get(key)
        if value is None:
            return default
        for each in allowed:
            if type(value) is type(each) and value == each:
                return each
        raise self.unsupported(key, f"supported: {', '.join(map(repr, allowed))}")

    def positive(self, key: str) -> int | None:
        """A positive integer; None where the key is absent or null."""
        value = self._values.get(key)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 1 << 20:
            raise self.wrong(key, "a positive integer")
        return value

    def group_size(self) -> int | None:
        """Columns that share a scale; None for whole rows, which are written as -1."""
        return None if self._values.get("group_size") == -1 else self.positive("group_size")

    def names(self, *keys: str) -> tuple[str, ...]:
        """The lists of modules under these keys, one after another."""
        found: list[str] = []
        for key in keys:
            value = self._values.get(key)
            if value is None:
                continue
            if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
                raise self.wrong(key, "a list of modules' names")
            found += value
        return tuple(found)

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(self._values)

    def below(self, key: str) -> Options:
        """The object under a key."""
        return Options(self._values.get(key), f"{self._where}.{key}")

    def wrong(self, key: str, allowed: str) -> ModelFileError:
        value = repr(self._values.get(key))[:60]
        return ModelFileError(CONFIG, f"{self._where}.{key}"[:200], f"is {value}; must be {allowed}")

    def unsupported(self, key: str, why: str) -> UnsupportedModelError:
        value = repr(self._values.get(key))[:60]
        return UnsupportedModelError(f"{CONFIG}: {self._where}.{key} = {value}: {why}"[:400])
