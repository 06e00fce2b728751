"""Blocks on accelerators, by the rule of the paper's artifact."""

from __future__ import annotations

import msgspec
import pytest

from octavo.errors import ConfigError
from octavo.sim.device_memory import device_memory
from octavo.sim.devices import DEVICES
from octavo.sim.known_models import KNOWN_MODELS
from octavo.sim.model_shape import Experts, LayerShape

ARTIFACT_TOKENS = 2560
"""In a step, at most."""


def blocks(model: str, device: str, num_devices: int = 1, **rest: object) -> int:
    shape = KNOWN_MODELS[model]
    settings = {"kv_spec": shape.kv_spec(16, shape.max_len), "max_num_batched_tokens": ARTIFACT_TOKENS} | rest
    return device_memory(shape, DEVICES[device], num_devices, **settings).num_blocks  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("model", "device", "num_devices", "artifact"),
    [("opt-13b", "a100-40gb", 1, 998), ("opt-66b", "a100-40gb", 4, 624), ("opt-175b", "a100-80gb", 8, 3775)],
)
def test_the_papers_models_get_the_blocks_that_its_artifact_counts(
    model: str, device: str, num_devices: int, artifact: int
) -> None:
    """Nearly: the shapes here leave out biases and position embeddings."""
    assert blocks(model, device, num_devices) == pytest.approx(artifact, rel=0.03)


def test_the_arithmetic_by_hand() -> None:
    shape, device = KNOWN_MODELS["llama-3.1-8b"], DEVICES["h100"]
    found = device_memory(shape, device, 2, kv_spec=shape.kv_spec(32, 2048), max_num_batched_tokens=1000, share=0.9)
    assert found.usable_bytes == 0.9 * 85e9
    layers = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336)
    assert found.weight_bytes == (layers + 2 * 128256 * 4096) * 2 / 2
    assert found.workspace_bytes == 2 * 128256 * 1000 * 2 + (1 << 30)
    assert found.block_bytes == 2 * 8 * 128 * 32 * 2 * 32 / 2
    left = found.usable_bytes - found.weight_bytes - found.workspace_bytes
    assert found.num_blocks == left // found.block_bytes


def test_the_arithmetic_by_hand_where_windows_differ() -> None:
    """Gemma 3 1B: 22 layers of 26 have a window. A page holds four of them, or the four that see everything."""
    shape, device = KNOWN_MODELS["gemma-3-1b"], DEVICES["l4"]
    kv_spec = shape.kv_spec(16, shape.max_len)
    assert [(len(group.layers), group.window) for group in kv_spec.groups if group.window is None] == [(4, None)]
    assert sum(len(group.layers) for group in kv_spec.groups if group.window == 512) == 22
    found = device_memory(shape, device, 1, kv_spec=kv_spec, max_num_batched_tokens=1000)
    assert found.block_bytes == 2 * 1 * 256 * 4 * 2 * 16
    left = found.usable_bytes - found.weight_bytes - found.workspace_bytes
    assert found.num_blocks == left // found.block_bytes
    with pytest.raises(ConfigError, match="num_blocks = 6: must be from 7 to"):  # one for each group of layers
        blocks("gemma-3-1b", "l4", num_blocks=6)


def test_activations_of_experts_are_as_wide_as_all_that_a_token_passes_through() -> None:
    experts = Experts(num_experts=8, top_k=3, ffn=40_000, shared_ffn=5_000)
    base = msgspec.structs.replace(KNOWN_MODELS["llama-3.2-1b"], vocab=1000)
    shape = msgspec.structs.replace(base, layers=(LayerShape(), LayerShape(experts=experts)))
    found = device_memory(shape, DEVICES["h100"], 1, kv_spec=shape.kv_spec(16, 2048), max_num_batched_tokens=1000)
    assert found.workspace_bytes == 2 * (125_000 + 2048) * 1000 * 2 + (1 << 30)


def test_more_memory_and_more_devices_hold_more() -> None:
    assert blocks("llama-3.1-8b", "l4") < blocks("llama-3.1-8b", "a100-40gb") < blocks("llama-3.1-8b", "h100")
    assert blocks("llama-3.1-8b", "h100", 2) > 2 * blocks("llama-3.1-8b", "h100")
    assert blocks("opt-13b", "h100", max_num_batched_tokens=512) > blocks("opt-13b", "h100")
    assert blocks("opt-13b", "h100", share=0.9) < blocks("opt-13b", "h100")


def test_blocks_may_be_asked_for() -> None:
    assert blocks("opt-13b", "h100", num_blocks=100) == 100
    assert blocks("opt-13b", "h100", kv_bytes=16 * 819_200 * 55.5) == 55
    assert blocks("opt-13b", "h100", 4, kv_bytes=16 * 819_200 * 55.5) == 55


@pytest.mark.parametrize(
    ("model", "device", "rest", "said"),
    [
        ("opt-66b", "h100", {}, "num_devices = 1: must be more: opt-66b's weights take 131 GB"),
        ("opt-13b", "h100", {"num_devices": 3}, "num_devices = 3: must be a divisor of opt-13b's 40 heads"),
        ("opt-13b", "h100", {"num_blocks": 10**6}, "num_blocks = 1000000: must be from 1 to 4"),
        ("opt-13b", "h100", {"kv_bytes": 1e12}, "kv_cache_memory_bytes = .*: must be from 1 to 4"),
    ],
)
def test_what_does_not_fit_is_told_with_the_numbers(model: str, device: str, rest: dict[str, int], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        blocks(model, device, **rest)


def test_known_models_have_about_the_parameters_of_their_names() -> None:
    for name, billions in {"llama-3.1-8b": 8.03, "llama-3.1-70b": 70.6, "qwen2.5-7b": 7.6, "qwen2.5-72b": 72.7,
                           "mistral-7b-v0.3": 7.25, "llama-3.2-1b": 1.24, "smollm2-135m": 0.1345,
                           "qwen2.5-0.5b": 0.494}.items():  # fmt: skip
        assert KNOWN_MODELS[name].total_bytes / 2e9 == pytest.approx(billions, rel=0.01), name


@pytest.mark.parametrize(
    ("name", "published", "norms"),
    [
        ("qwen3-8b", 8_190_735_360, 36 * (2 * 4096 + 2 * 128) + 4096),
        ("gemma-2-9b", 9_241_705_984, 42 * 4 * 3584 + 3584),
        ("gemma-3-1b", 999_885_952, 26 * (4 * 1152 + 2 * 256) + 1152),
        ("mixtral-8x7b", 46_702_792_704, 32 * 2 * 4096 + 4096),
        ("qwen3-30b-a3b", 30_532_122_624, 48 * (2 * 2048 + 2 * 128) + 2048),
    ],
)
def test_known_models_have_the_parameters_of_their_checkpoints(name: str, published: int, norms: int) -> None:
    """All but those of the norms, which no step notices."""
    assert KNOWN_MODELS[name].total_bytes / 2 == published - norms


def test_known_windows() -> None:
    assert [layer.window for layer in KNOWN_MODELS["gemma-2-9b"].layers[:4]] == [4096, None, 4096, None]
    assert [layer.window for layer in KNOWN_MODELS["gemma-3-1b"].layers[:8]] == [*[512] * 5, None, 512, 512]
