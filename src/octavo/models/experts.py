"""What a config says of mixtures of experts, as rules for the table of families."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from octavo.backends.protocol import Routing
from octavo.models.config_reader import Config, Rule
from octavo.models.spec import ExpertsSpec, LayerSpec

ExpertsRule = Callable[[Config, int], ExpertsSpec | None]
"""The experts of a layer; None for one with an MLP."""


def with_experts(layers: Rule, experts: ExpertsRule) -> Rule:
    """The same layers, with experts in the place of MLPs."""

    def rule(config: Config) -> tuple[LayerSpec, ...]:
        made: tuple[LayerSpec, ...] = layers(config)
        return tuple(msgspec.structs.replace(layer, experts=experts(config, index)) for index, layer in enumerate(made))

    return rule


def mixtral_experts(config: Config, index: int) -> ExpertsSpec:
    return _experts(config, "intermediate_size", normalise=True)


def olmoe_experts(config: Config, index: int) -> ExpertsSpec:
    return _experts(config, "intermediate_size", normalise=config.flag("norm_topk_prob"))


def qwen_experts(*, shared: bool) -> ExpertsRule:
    """In every `decoder_sparse_step`-th layer, but those of `mlp_only_layers`.

    Args:
        shared: Whether every token passes through an MLP besides.
    """

    def rule(config: Config, index: int) -> ExpertsSpec | None:
        if index in _dense_layers(config) or (index + 1) % config.size("decoder_sparse_step"):
            return None
        shared_size = config.size("shared_expert_intermediate_size") if shared else 0
        return _experts(config, "moe_intermediate_size", config.flag("norm_topk_prob"), shared_size)

    return rule


def _experts(config: Config, inner: str, normalise: bool, shared_size: int = 0) -> ExpertsSpec:
    key = "num_experts" if config.get("num_experts") is not None else "num_local_experts"  # newer configs of Qwen3
    count, top_k = config.size(key), config.size("num_experts_per_tok")
    if top_k > count:
        raise config.wrong("num_experts_per_tok", f"must be at most {key} ({count})")
    return ExpertsSpec(
        num_experts=count,
        routing=Routing(top_k=top_k, normalise=normalise),
        intermediate_size=config.size(inner),
        shared_size=shared_size,
    )


def _dense_layers(config: Config) -> list[int]:
    listed = config.get("mlp_only_layers") or []
    if not isinstance(listed, list) or not all(isinstance(i, int) and not isinstance(i, bool) for i in listed):
        raise config.wrong("mlp_only_layers", "must be a list of numbers of layers")
    return listed
