"""Blocks on accelerators, by the rule of the paper's artifact."""

from __future__ import annotations

import pytest

from octavo.errors import ConfigError
from octavo.sim.device_memory import device_memory
from octavo.sim.devices import DEVICES
from octavo.sim.known_models import KNOWN_MODELS

ARTIFACT_TOKENS = 2560
"""In a step, at most."""


def blocks(model: str, device: str, num_devices: int = 1, **rest: object) -> int:
    settings = {"block_size": 16, "max_num_batched_tokens": ARTIFACT_TOKENS} | rest
    return device_memory(KNOWN_MODELS[model], DEVICES[device], num_devices, **settings).num_blocks  # type: ignore[arg-type]


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
    found = device_memory(shape, device, 2, block_size=32, max_num_batched_tokens=1000, share=0.9)
    assert found.usable_bytes == 0.9 * 85e9
    layers = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336)
    assert found.weight_bytes == (layers + 2 * 128256 * 4096) * 2 / 2
    assert found.workspace_bytes == 2 * 128256 * 1000 * 2 + (1 << 30)
    assert found.block_bytes == 2 * 8 * 128 * 32 * 2 * 32 / 2
    left = found.usable_bytes - found.weight_bytes - found.workspace_bytes
    assert found.num_blocks == left // found.block_bytes


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
