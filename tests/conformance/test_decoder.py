"""A whole small decoder on every back end, and on the CPU's paths the promise that a row's bits are its own."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import msgspec
import numpy as np
import oracle
import pytest

from octavo.backends import cpu
from octavo.backends.protocol import RopeParams
from octavo.models.decoder import DecoderWeights, LayerWeights, LinearWeights, MLPWeights, NormWeights, decoder
from octavo.models.families import decoder_spec
from octavo.models.spec import DecoderSpec, LayerSpec
from support.backends import CPU_WAYS, Way, ways
from support.paged_steps import Chunk, kv_shape, run_steps, scatter_blocks, together, whole
from support.tiny_models import TinyLlama, tensors

MODEL = TinyLlama(num_layers=3, bias=True, tied=False, hidden_size=40, num_heads=6, num_kv_heads=2, head_dim=10)
WINDOW = 24
LENGTHS = (150, 1, 37, 129)
RNG = np.random.default_rng(3)
TOKENS = [RNG.integers(0, MODEL.vocab_size, length) for length in LENGTHS]


def two_groups() -> DecoderSpec:
    """Full attention and a window take turns: two KV groups. The middle layer has no positions."""
    spec = decoder_spec(MODEL.config())
    rope = RopeParams(inv_freq=tuple(100.0 ** (-i / 5) for i in range(5)), max_position=256)
    layers = (LayerSpec(rope=rope), LayerSpec(window=WINDOW), LayerSpec(rope=rope))
    return msgspec.structs.replace(spec, layers=layers)


SPEC = two_groups()
WEIGHTS = tensors(MODEL)


def load(backend: Any) -> DecoderWeights:
    def matrix(*names: str) -> Any:
        return backend.matrix([WEIGHTS[f"{name}.weight"] for name in names])

    def linear(*names: str) -> LinearWeights:
        bias = np.concatenate([WEIGHTS[f"{name}.bias"] for name in names])
        return LinearWeights(matrix(*names), backend.vector(bias))

    def norm(name: str) -> NormWeights:
        return NormWeights(backend.vector(WEIGHTS[f"{name}.weight"]))

    layers = []
    for index in range(SPEC.num_layers):
        prefix = f"model.layers.{index}."
        layers.append(
            LayerWeights(
                attention_norm=norm(f"{prefix}input_layernorm"),
                qkv=linear(*(f"{prefix}self_attn.{name}_proj" for name in "qkv")),
                output=linear(f"{prefix}self_attn.o_proj"),
                mlp_norm=norm(f"{prefix}post_attention_layernorm"),
                mlp=MLPWeights(
                    up=linear(*(f"{prefix}mlp.{name}_proj" for name in ("gate", "up"))),
                    down=linear(f"{prefix}mlp.down_proj"),
                ),
            )
        )
    return DecoderWeights(
        embedding=matrix("model.embed_tokens"), layers=layers, norm=norm("model.norm"), head=matrix("lm_head")
    )


def logits(
    backend: Any, steps: Sequence[Sequence[Chunk]], *, kv_dtype: str, block_size: int = 16, seed: int = 0
) -> list[oracle.Array]:
    kv = backend.allocate_kv(kv_shape((0, 1, 0), num_kv_heads=2, head_dim=10, dtype=kv_dtype, block_size=block_size))
    scatter_blocks(kv, LENGTHS, seed=seed)
    program = backend.compile(decoder(SPEC, load(backend)), kv, sum(LENGTHS))
    return run_steps(program, TOKENS, steps)


@cache
def expected_logits(dtype: str, kv_dtype: str) -> list[oracle.Array]:
    """For weights in `dtype`; one for each of `TOKENS`."""
    rounded = {name: oracle.rounded(w, dtype if w.ndim == 2 else "float32") for name, w in WEIGHTS.items()}
    return [oracle.decoder(SPEC, rounded, tokens.tolist(), kv_dtype) for tokens in TOKENS]


@pytest.mark.parametrize("kv_dtype", ["float32", "bfloat16", "int8"])
def test_logits(backend: Any, way: Way, kv_dtype: str) -> None:
    found = logits(backend, together(LENGTHS, 64), kv_dtype=kv_dtype)
    for rows, expected in zip(found, expected_logits(way.dtype, kv_dtype), strict=True):
        if way.dtype == kv_dtype == "float32":
            assert np.abs(rows - expected).max() <= 1e-5 * np.abs(expected).max()
        else:  # what bfloat16 loses of activations and queries, and what that moves across a step of int8
            assert np.sqrt(np.square(rows - expected).mean()) <= 0.03 * np.sqrt(np.square(expected).mean())


@pytest.mark.parametrize("way", ways(CPU_WAYS))
@pytest.mark.parametrize("kv_dtype", ["float32", "bfloat16", "int8"])
def test_bits_of_a_row_are_its_own(way: Way, kv_dtype: str) -> None:
    """Batch, chunking, block size, block ids and threads change nothing, with two KV groups and a window."""
    single, double = way.open(num_threads=1), way.open(num_threads=2)
    alone = logits(single, whole(LENGTHS), kv_dtype=kv_dtype)
    mixed = [[(0, 0, 90)], [(3, 0, 60), (0, 90, 91), (1, 0, 1)], [(2, 0, 37), (0, 91, 150), (3, 60, 129)]]
    decoding = [[(0, 0, 149), (3, 0, 128)], *[[(0, 149, 150), (3, 128, 129)]], [(2, 0, 36)], [(1, 0, 1), (2, 36, 37)]]
    variants: list[tuple[Any, list[list[Chunk]], dict[str, Any]]] = [
        (double, whole(LENGTHS), {}),
        (double, [[(row, 0, n) for row, n in enumerate(LENGTHS)]], {"block_size": 8, "seed": 1}),
        (single, together(LENGTHS, 7), {"block_size": 32, "seed": 2}),
        (double, together(LENGTHS, 64), {"block_size": 1, "seed": 3}),
        (double, mixed, {"block_size": 256, "seed": 4}),
        (single, decoding, {"block_size": 16, "seed": 5}),
    ]
    for backend, steps, settings in variants:
        for row, (found, expected) in enumerate(
            zip(logits(backend, steps, kv_dtype=kv_dtype, **settings), alone, strict=True)
        ):
            assert np.array_equal(found, expected), f"row {row} with {settings}"
    single.close(), double.close()


@pytest.mark.parametrize("way", ways(CPU_WAYS))
@pytest.mark.parametrize("kv_dtype", ["float32", "bfloat16", "int8"])
def test_joined_ops_change_no_bit(way: Way, kv_dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = way.open(num_threads=2)
    for steps in (together(LENGTHS, 64), whole(LENGTHS)):
        joined = logits(backend, steps, kv_dtype=kv_dtype)
        with monkeypatch.context() as patch:
            patch.setattr(cpu, "fuse", lambda calls, result: calls)
            apart = logits(backend, steps, kv_dtype=kv_dtype)
        for found, expected in zip(joined, apart, strict=True):
            assert np.array_equal(found, expected)
    backend.close()
