"""8-bit floats, E4M3, with scales for the whole matrix, each row, or blocks.

    weight                              F8_E4M3 [N, K]
    weight_scale or weight_scale_inv    a number; [N] or [N, 1]; or [ceil(N / tall), ceil(K / wide)]

Both names mean a factor. Activations are not rounded to 8 bits here, so their scales are not used.

Source: Micikevicius et al., arXiv:2209.05433; blocks: DeepSeek-AI, arXiv:2412.19437, section 3.3.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from octavo.weights.quantized.matrix import SCALES, Float8Matrix, StoredMatrix, expect, expect_matrix
from octavo.weights.quantized.options import Options
from octavo.weights.safetensors import SafeTensor
from octavo.weights.shards import Shards

ACTIVATIONS = frozenset({"input_scale", "activation_scale", "output_scale", "k_scale", "v_scale", "q_scale"})


class FP8:
    """See `methods.Method`."""

    activations = ACTIVATIONS

    def __init__(self, options: Options, shards: Shards, num_threads: int | None) -> None:
        options.choice("fmt", ("e4m3",), "e4m3")
        self.kept = options.names("modules_to_not_convert", "ignored_layers")
        self._block = block_of(options, "weight_block_size")
        self._shards = shards

    def matrices(self, module: str, parts: Mapping[str, SafeTensor]) -> Iterable[tuple[str, StoredMatrix]]:
        if "weight" in parts and parts["weight"].dtype == "F8_E4M3":
            yield f"{module}.weight", float8(self._shards, module, parts, self._block)


def float8(shards: Shards, module: str, parts: Mapping[str, SafeTensor], block: tuple[int, int] | None) -> Float8Matrix:
    """The matrix of these tensors; `block` is what the config says of its blocks."""
    weight = expect_matrix(shards, parts["weight"], ("F8_E4M3",))
    rows, columns = weight.shape
    scale = parts.get("weight_scale_inv") or shards.tensor(f"{module}.weight_scale")
    shapes: dict[tuple[int, ...], tuple[int, int]] = {(rows, 1): (1, columns), (rows,): (1, columns)}
    shapes |= {(): (rows, columns), (1,): (rows, columns), (1, 1): (rows, columns)}
    if block is not None:
        shapes = {(-(-rows // block[0]), -(-columns // block[1])): block} | shapes
    expect(shards, scale, SCALES, *shapes)
    tall, wide = shapes[scale.shape]
    what = {(rows, columns): "one scale", (1, columns): "a scale for each row"}.get(
        (tall, wide), f"blocks {tall}x{wide}"
    )
    return Float8Matrix(
        kind=f"fp8 e4m3, {what}",
        shape=(rows, columns),
        shards=shards,
        values=weight.name,
        scales=scale.name,
        block=(min(tall, rows), min(wide, columns)),
    )


def block_of(options: Options, key: str) -> tuple[int, int] | None:
    """Rows and columns that share a scale, as a config's list of two."""
    value = options.get(key)
    if value is None:
        return None
    if isinstance(value, list) and len(value) == 2 and all(type(each) is int and each > 0 for each in value):
        return value[0], value[1]
    raise options.wrong(key, "two positive integers")
