"""The ways of storing quantised weights in safetensors, by the `quant_method` of a config."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

import msgspec

from octavo.weights.files import JSONObject
from octavo.weights.quantized.awq import AWQ
from octavo.weights.quantized.compressed_tensors import CompressedTensors
from octavo.weights.quantized.fp4 import MXFP4
from octavo.weights.quantized.fp8 import FP8
from octavo.weights.quantized.gptq import GPTQ
from octavo.weights.quantized.matrix import StoredMatrix
from octavo.weights.quantized.options import Options
from octavo.weights.safetensors import SafeTensor
from octavo.weights.shards import Shards


class Method(Protocol):
    """One way of storing quantised weights."""

    @property
    def kept(self) -> tuple[str, ...]:
        """Modules that the config says are not quantised."""

    @property
    def activations(self) -> frozenset[str]:
        """Endings of tensors that only tell how activations are rounded."""

    def matrices(self, module: str, parts: Mapping[str, SafeTensor]) -> Iterable[tuple[str, StoredMatrix]]:
        """The quantised matrices of a module, under the names they would have as floats.

        Args:
            parts: Its tensors by the ending of their names.

        Raises:
            ModelFileError: Naming a tensor that is missing, or of a dtype or shape that it cannot have.
        """


class _MakeMethod(Protocol):
    def __call__(self, options: Options, shards: Shards, num_threads: int | None) -> Method: ...


METHODS: dict[str, _MakeMethod] = {
    "awq": AWQ,
    "gptq": GPTQ,
    "fp8": FP8,
    "fbgemm_fp8": FP8,
    "compressed-tensors": CompressedTensors,
    "mxfp4": MXFP4,
}


class Quantized(msgspec.Struct, frozen=True):
    """What of a checkpoint's tensors is quantised."""

    matrices: dict[str, StoredMatrix]
    """By the names they would have as floats."""
    stored: frozenset[str]
    """Tensors that are parts of them, or tell of activations: no weights by themselves."""
    notes: tuple[str, ...]
    """What is worth knowing, for people."""


def find_quantized(config: JSONObject, shards: Shards, num_threads: int | None = None) -> Quantized:
    """The quantised matrices that a config tells of, as the tensors show them.

    Raises:
        UnsupportedModelError: Naming the method or the option, if it is none of those known here.
        ModelFileError: Naming the tensor or the key at fault.
    """
    section = config.get("quantization_config") or config.get("compression_config")
    if not section:
        return Quantized({}, frozenset(), ())
    options = Options(section, "quantization_config")
    name = options.choice("quant_method", tuple(METHODS), "")
    if not name:
        raise options.unsupported("quant_method", f"supported: {', '.join(METHODS)}")
    method = METHODS[name](options, shards, num_threads)
    matrices: dict[str, StoredMatrix] = {}
    stored: set[str] = set()
    unused: set[str] = set()
    for module, parts in _by_module(shards).items():
        for matrix_name, matrix in method.matrices(module, parts):
            _check_kept(method, module, matrix, shards)
            if matrix_name in shards and matrix_name not in matrix.tensors:
                raise shards.error(matrix_name, f"stands beside {matrix.tensors[0]!r}, which is the same matrix")
            matrices[matrix_name] = matrix
            stored.update(matrix.tensors)
        unused |= {tensor.name for ending, tensor in parts.items() if ending in method.activations}
    notes = (f"{len(unused)} scales of activations: only weights are quantised",) if unused else ()
    return Quantized(matrices, frozenset(stored | unused), notes)


def _by_module(shards: Shards) -> dict[str, dict[str, SafeTensor]]:
    modules: dict[str, dict[str, SafeTensor]] = {}
    for name in shards:
        module, _, ending = name.rpartition(".")
        modules.setdefault(module, {})[ending] = shards.tensor(name)
    return modules


def _check_kept(method: Method, module: str, matrix: StoredMatrix, shards: Shards) -> None:
    dotted = f".{module}."
    for kept in method.kept:
        if kept and f".{kept}." in dotted:
            raise shards.error(matrix.tensors[0], f"is quantised, though the config keeps {kept[:100]!r} as it was")
