"""Every mechanism of a tiny model decides its golden: without it the logits are wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from golden import cases, compare
from octavo.backends import reference
from octavo.backends.protocol import Routing
from octavo.backends.reference import ReferenceBackend
from octavo.models.decoder import DecoderWeights, ExpertsWeights, decoder
from octavo.models.families import decoder_spec
from octavo.models.loader import load
from octavo.models.spec import DecoderSpec, ExpertsSpec
from octavo.weights.huggingface import HFCheckpoint
from support.paged_steps import kv_shape, run_steps, scatter_blocks, whole
from support.tiny_models import write_tiny_llama

Change = Callable[[DecoderSpec, DecoderWeights], DecoderSpec]


def off(**fields: Any) -> Change:
    return lambda spec, weights: msgspec.structs.replace(spec, **fields)


def each_layer(**fields: Any) -> Change:
    """The same for all layers."""

    def change(spec: DecoderSpec, weights: DecoderWeights) -> DecoderSpec:
        layers = tuple(msgspec.structs.replace(layer, **fields) for layer in spec.layers)
        return msgspec.structs.replace(spec, layers=layers)

    return change


def as_layer(index: int, *fields: str) -> Change:
    """All layers like one of them."""
    return lambda spec, weights: each_layer(**{f: getattr(spec.layers[index], f) for f in fields})(spec, weights)


def without(*fields: str) -> Change:
    """Some weights of every layer left out."""

    def change(spec: DecoderSpec, weights: DecoderWeights) -> DecoderSpec:
        for layer in weights.layers:
            for field in fields:
                setattr(layer, field, None)
        return spec

    return change


def without_biases(*places: str) -> Change:
    def change(spec: DecoderSpec, weights: DecoderWeights) -> DecoderSpec:
        for layer in weights.layers:
            for place in places:
                getattr(layer, place).bias = None
        return spec

    return change


def norms_before(spec: DecoderSpec, weights: DecoderWeights) -> DecoderSpec:
    """Those of the sums moved to where most families have them."""
    for layer in weights.layers:
        layer.attention_norm, layer.mlp_norm = layer.attention_sum_norm, layer.mlp_sum_norm
        layer.attention_sum_norm = layer.mlp_sum_norm = None
    return spec


def rope(**fields: Any) -> Change:
    """Other rotary embeddings in the layers that have any."""

    def change(spec: DecoderSpec, weights: DecoderWeights) -> DecoderSpec:
        changed = (
            layer.rope if layer.rope is None else msgspec.structs.replace(layer.rope, **fields) for layer in spec.layers
        )
        layers = zip(spec.layers, changed, strict=True)
        replaced = tuple(msgspec.structs.replace(layer, rope=own) for layer, own in layers)
        return msgspec.structs.replace(spec, layers=replaced)

    return change


def plain(rotated: int) -> Change:
    return rope(inv_freq=tuple(1e4 ** (-2 * i / rotated) for i in range(rotated // 2)))


def served(context: int) -> Change:
    """As with another served context."""

    def change(spec: DecoderSpec, weights: DecoderWeights) -> DecoderSpec:
        model = next(m for m in cases.FAMILIES.values() if decoder_spec(m.config(), m.context) == spec)
        return decoder_spec(model.config(), context)

    return change


def swapped_norms(spec: DecoderSpec, weights: DecoderWeights) -> DecoderSpec:
    for layer in weights.layers:
        layer.attention_norm, layer.mlp_norm = layer.mlp_norm, layer.attention_norm
    return spec


def routed(**fields: Any) -> Change:
    """Another choice among the experts, in the layers that have any."""

    def change(spec: DecoderSpec, weights: DecoderWeights) -> DecoderSpec:
        def other(experts: ExpertsSpec | None) -> ExpertsSpec | None:
            if experts is None:
                return None
            return msgspec.structs.replace(experts, routing=msgspec.structs.replace(experts.routing, **fields))

        layers = (msgspec.structs.replace(layer, experts=other(layer.experts)) for layer in spec.layers)
        return msgspec.structs.replace(spec, layers=tuple(layers))

    return change


def mixtures(weights: DecoderWeights) -> list[ExpertsWeights]:
    return [layer.mlp for layer in weights.layers if isinstance(layer.mlp, ExpertsWeights)]


def without_shared(spec: DecoderSpec, weights: DecoderWeights) -> DecoderSpec:
    for mixture in mixtures(weights):
        mixture.shared = None
    return spec


def open_shared_gate(spec: DecoderSpec, weights: DecoderWeights) -> DecoderSpec:
    """A gate that lets half of the shared expert through, whatever the token."""
    for mixture in mixtures(weights):
        mixture.shared_gate = np.zeros_like(mixture.shared_gate)
    return spec


def one_expert_for_all(spec: DecoderSpec, weights: DecoderWeights) -> DecoderSpec:
    for mixture in mixtures(weights):
        mixture.gate_up, mixture.down = mixture.gate_up[:1] * len(mixture.down), mixture.down[:1] * len(mixture.down)
    return spec


NO_WINDOW = each_layer(window=None)
NO_QK_NORM = without("query_norm", "key_norm")
NO_POST_NORMS = without("post_attention_norm", "post_mlp_norm")
GEMMA: dict[str, Change] = {"embedding scale": off(embedding_scale=1.0), "activation": off(activation="relu")}
GEMMA_2: dict[str, Change] = {
    **GEMMA,
    "attention scale": off(attention_scale=None),
    "post norms": NO_POST_NORMS,
    "windows": NO_WINDOW,
}
GEMMA_3: dict[str, Change] = {
    **GEMMA_2,
    "qk norm": NO_QK_NORM,
    "windows where there is none": as_layer(0, "window"),
    "rope of its own": as_layer(1, "rope"),
}
OFF: dict[str, dict[str, Change]] = {
    "opt": {
        "position offset": off(position_offset=0),
        "activation": off(activation="silu"),
        "biases": without_biases("qkv", "output"),
    },
    "opt-350m": {"norms of sums": norms_before},
    "gpt2": {"positions": off(position_offset=1), "activation": off(activation="relu")},
    "gpt-neox": {"parallel": off(parallel=False), "rotated part": plain(12), "activation": off(activation="relu")},
    "gpt-neox-sequential": {"sequence": off(parallel=True)},
    "qwen2-windows": {"windows": NO_WINDOW, "a layer without": as_layer(1, "window"), "bias": without_biases("qkv")},
    "qwen3": {"qk norm": NO_QK_NORM},
    "gemma": GEMMA,
    "gemma2": {
        **GEMMA_2,
        "attention soft cap": off(attention_soft_cap=None),
        "logits soft cap": off(logits_soft_cap=None),
    },
    "gemma3": GEMMA_3,
    "gemma3-images": GEMMA_3,
    "phi3": {"window": NO_WINDOW},
    "phi3-long": {"long factors": served(16), "scale": rope(scale=1.0)},
    "phi3-short": {"short factors": served(256), "rotated part": plain(12)},
    "smollm3": {"layers without positions": as_layer(0, "rope")},
    "falcon-7b": {"parallel": off(parallel=False)},
    "falcon-40b": {"two norms": off(shared_norm=True), "which norm": swapped_norms},
    "falcon-11b": {"parallel": off(parallel=False)},
    "falcon-sequential": {"sequence": off(parallel=True), "biases": without_biases("qkv", "output")},
    "granite": {
        "embedding": off(embedding_scale=1.0),
        "attention": off(attention_scale=None),
        "residual": off(residual_scale=1.0),
        "logits": off(logits_scale=1.0),
    },
    "mixtral": {"normalised": routed(normalise=False), "top k": routed(top_k=1), "experts": one_expert_for_all},
    "qwen2-moe": {
        "not normalised": routed(normalise=True),
        "top k": routed(top_k=2),
        "shared expert": without_shared,
        "its gate": open_shared_gate,
        "experts": one_expert_for_all,
    },
    "qwen3-moe": {"normalised": routed(normalise=False), "top k": routed(top_k=4), "qk norm": NO_QK_NORM},
    "olmoe": {"not normalised": routed(normalise=True), "top k": routed(top_k=3), "qk norm": NO_QK_NORM},
    "olmo2": {"qk norm": NO_QK_NORM, "post norms": NO_POST_NORMS},
    "olmo3": {"windows": NO_WINDOW, "qk norm": NO_QK_NORM},
    "starcoder2": {"window": NO_WINDOW, "biases": without_biases("qkv", "output")},
    "stablelm": {"rotated part": plain(12), "bias": without_biases("qkv")},
    "stablelm-parallel": {"parallel": off(parallel=False)},
    "rope-yarn": {"frequencies": plain(12), "scale": rope(scale=1.0)},
    "rope-yarn-mscale": {"scale": rope(scale=1.0)},
    "rope-dynamic": {"frequencies": plain(12)},
}
CASES = [(name, what) for name, changes in OFF.items() for what in changes]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mechanisms")


def worst(root: Path, name: str, change: Change) -> float:
    """As `compare.worst_logits`, of the longest prompt."""
    model, expected = cases.FAMILIES[name], compare.load(name)[-1]
    folder, backend = root / name, ReferenceBackend("float32")
    checkpoint = HFCheckpoint(folder if folder.exists() else write_tiny_llama(folder, model))
    spec = decoder_spec(checkpoint.config, model.context)
    weights = load(checkpoint, spec, backend, "float32")
    checkpoint.close()
    spec = change(spec, weights)
    tokens = np.array([*cases.tiny_prompts(model)[-1], *expected.tokens[:-1]])
    kv = backend.allocate_kv(kv_shape(range(spec.num_layers), num_kv_heads=spec.num_kv_heads, head_dim=spec.head_dim))
    scatter_blocks(kv, [len(tokens)])
    (found,) = run_steps(backend.compile(decoder(spec, weights), kv, len(tokens)), [tokens], whole([len(tokens)]))
    kept = found[cases.kept_positions(len(tokens))]
    return float((np.abs(kept - expected.logits).max(axis=-1) / expected.scale).max())


@pytest.mark.parametrize("name", OFF)
def test_with_all_mechanisms_the_golden_holds(root: Path, name: str) -> None:
    """Or the tests below would find a difference of another origin."""
    assert worst(root, name, lambda spec, weights: spec) < compare.LOGITS_TOLERANCE


@pytest.mark.parametrize(("name", "what"), CASES)
def test_without_a_mechanism_the_golden_fails(root: Path, name: str, what: str) -> None:
    assert worst(root, name, OFF[name][what]) > 2 * compare.LOGITS_TOLERANCE


def test_every_tiny_model_has_its_mechanisms_switched_off() -> None:
    assert set(OFF) == set(cases.FAMILIES)


@pytest.mark.parametrize("name", ["mixtral", "qwen2-moe", "qwen3-moe", "olmoe"])
def test_experts_are_unevenly_loaded(root: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[int] = []

    def counted(self: Any, x: Any, logits: Any, gate_up: Any, down: Any, routing: Routing, kind: Any) -> Any:
        chosen = np.argsort(-logits, axis=1, kind="stable")[:, : routing.top_k]
        loads[:] = np.bincount(chosen.ravel(), minlength=logits.shape[1]).tolist()
        return experts(self, x, logits, gate_up, down, routing, kind)

    experts = reference._EagerOps.experts
    monkeypatch.setattr(reference._EagerOps, "experts", counted)
    worst(root, name, lambda spec, weights: spec)
    assert 1.25 * min(loads) <= max(loads) != 0, loads
