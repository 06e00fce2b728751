"""The tensor types of ggml: their numbers in a GGUF file, and how many bytes a block of elements takes."""

from __future__ import annotations

import msgspec


class GGMLType(msgspec.Struct, frozen=True):
    """A tensor type. A row is cut into blocks of `block_size` elements, each stored in `block_bytes` bytes."""

    id: int
    name: str
    block_size: int
    block_bytes: int
    readable: bool = False
    """Whether Octavo can turn it into floats; the others are known by size only, so that files can be checked."""

    def num_bytes(self, num_elements: int) -> int:
        """Bytes of `num_elements` elements, a multiple of `block_size`."""
        return num_elements // self.block_size * self.block_bytes


_TYPES = (
    GGMLType(0, "f32", 1, 4, True),
    GGMLType(1, "f16", 1, 2, True),
    GGMLType(2, "q4_0", 32, 18, True),
    GGMLType(3, "q4_1", 32, 20, True),
    GGMLType(6, "q5_0", 32, 22, True),
    GGMLType(7, "q5_1", 32, 24, True),
    GGMLType(8, "q8_0", 32, 34, True),
    GGMLType(9, "q8_1", 32, 40),
    GGMLType(10, "q2_k", 256, 84, True),
    GGMLType(11, "q3_k", 256, 110, True),
    GGMLType(12, "q4_k", 256, 144, True),
    GGMLType(13, "q5_k", 256, 176, True),
    GGMLType(14, "q6_k", 256, 210, True),
    GGMLType(15, "q8_k", 256, 292),
    GGMLType(16, "iq2_xxs", 256, 66, True),
    GGMLType(17, "iq2_xs", 256, 74, True),
    GGMLType(18, "iq3_xxs", 256, 98, True),
    GGMLType(19, "iq1_s", 256, 50, True),
    GGMLType(20, "iq4_nl", 32, 18, True),
    GGMLType(21, "iq3_s", 256, 110, True),
    GGMLType(22, "iq2_s", 256, 82, True),
    GGMLType(23, "iq4_xs", 256, 136, True),
    GGMLType(24, "i8", 1, 1),
    GGMLType(25, "i16", 1, 2),
    GGMLType(26, "i32", 1, 4),
    GGMLType(27, "i64", 1, 8),
    GGMLType(28, "f64", 1, 8, True),
    GGMLType(29, "iq1_m", 256, 56, True),
    GGMLType(30, "bf16", 1, 2, True),
    GGMLType(34, "tq1_0", 256, 54, True),
    GGMLType(35, "tq2_0", 256, 66, True),
    GGMLType(39, "mxfp4", 32, 17, True),
    GGMLType(40, "nvfp4", 64, 36, True),
    GGMLType(41, "q1_0", 128, 18),
)

BY_ID = {kind.id: kind for kind in _TYPES}
BY_NAME = {kind.name: kind for kind in _TYPES}


def readable_names() -> list[str]:
    """Names of the types that Octavo can turn into floats."""
    return [kind.name for kind in _TYPES if kind.readable]
