"""Naming: where a checkpoint keeps the parts of the decoder, as data."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec


class ExpertsNaming(msgspec.Struct, frozen=True, kw_only=True):
    """Names of modules of a mixture of experts, inside a layer. The defaults are Qwen's."""

    router: str = "mlp.gate"
    expert: str = "mlp.experts.{number}.{name}"
    """Module of an expert, by its number and the names below."""
    up: tuple[str, str] = ("gate_proj", "up_proj")
    down: str = "down_proj"
    shared: str = "mlp.shared_expert.{name}"
    """The same of the shared expert."""
    shared_gate: str = "mlp.shared_expert_gate"


class Naming(msgspec.Struct, frozen=True, kw_only=True):
    """Names of modules; `.weight` and `.bias` are left out. The defaults are Llama's.

    Where a family fuses projections, one module stands for them all, and its rows are those of the parts, one part
    below the other, unless said otherwise.
    """

    roots: tuple[str, ...] = ("model.", "")
    """What comes before all names but the head's: the first under which the checkpoint has the embedding. Without any:
    what transformers' base models save."""
    embedding: str = "embed_tokens"
    head: str = "lm_head"
    norm: str = "norm"
    positions: str = "embed_positions"
    project_in: str = "project_in"
    project_out: str = "project_out"

    layer: str = "layers.{}."
    """What comes before the names below."""
    norms: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm")
    """In the order of `DecoderSpec.norm_roles`."""
    qkv: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    qkv_by_group: bool = False
    """The rows of the fused projection are ordered by KV head: the query heads that read it, its key, its value."""
    query_norm: str = "self_attn.q_norm"
    key_norm: str = "self_attn.k_norm"
    output: str = "self_attn.o_proj"
    up: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj")
    """Of MLPs without a gate: one module."""
    down: str = "mlp.down_proj"
    experts: ExpertsNaming = ExpertsNaming()
    """In layers with experts, in the place of `up` and `down`."""

    transposed: bool = False
    """The layers' matrices are stored as [in, out]."""
    offset_in_norms: bool = False
    """The norms are stored with the spec's `norm_offset` added."""
    unused: tuple[str, ...] = (".rotary_emb.inv_freq",)
    """Ends of names of tensors that say what the config says."""
    left_out: tuple[str, ...] = ()
    """Starts of names of other models in the same checkpoint."""

    def root_in(self, names: Iterable[str]) -> str:
        """The root that these names of tensors have."""
        present = frozenset(names)
        found = (root for root in self.roots if f"{root}{self.embedding}.weight" in present)
        return next(found, self.roots[0])
