"""What a GGUF file says of its model, asked for without the architecture's name in front of each key."""

from __future__ import annotations

from typing import TypeVar

from octavo.errors import ModelFileError
from octavo.weights.gguf import GGUFFile

_T = TypeVar("_T")


class GGUFHeader:
    """The metadata `{arch}.*` of a file, and which tensors it has.

    Each getter raises ModelFileError if the value is of another type, those that need one also if there is none.
    """

    def __init__(self, file: GGUFFile, arch: str) -> None:
        self.file = file
        self.arch = arch
        self.name = file.path.name

    def get_int(self, key: str) -> int | None:
        return self.file.metadata.get_int(self._key(key))

    def get_float(self, key: str) -> float | None:
        return self.file.metadata.get_float(self._key(key))

    def get_bool(self, key: str) -> bool | None:
        return self.file.metadata.get_bool(self._key(key))

    def get_str(self, key: str) -> str | None:
        return self.file.metadata.get_str(self._key(key))

    def need_int(self, key: str) -> int:
        return self._needed(key, self.get_int(key))

    def need_float(self, key: str) -> float:
        return self._needed(key, self.get_float(key))

    def floats(self, **keys: str) -> dict[str, float]:
        """The numbers that are there, each under the name that is given for its key."""
        found = {name: self.get_float(key) for name, key in keys.items()}
        return {name: value for name, value in found.items() if value is not None}

    def has(self, *names: str) -> bool:
        """Whether one of these tensors is in the file."""
        return any(name in self.file.tensors for name in names)

    def pattern(self, key: str) -> int | list[bool] | None:
        """A period of layers, or a flag for each layer."""
        full = self._key(key)
        if not isinstance(self.file.metadata.get(full), int):
            array = self.file.metadata.get_array(full, "bool", "uint32", "int32")
            return None if array is None else [bool(flag) for flag in array.to_list()]
        return self.need_int(key)

    def wrong(self, key: str, why: str) -> ModelFileError:
        return ModelFileError(self.name, f"metadata '{self._key(key)}'", why)

    def _key(self, key: str) -> str:
        return f"{self.arch}.{key}"

    def _needed(self, key: str, value: _T | None) -> _T:
        if value is None:
            raise ModelFileError(self.name, "metadata", f"'{self._key(key)}' is missing")
        return value
