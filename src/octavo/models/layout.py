"""Where the weights of a decoder lie in a checkpoint: its `DecoderWeights`, with a Stack in each weight's place."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from octavo.models.decoder import (
    DecoderWeights,
    ExpertsWeights,
    LayerWeights,
    LinearWeights,
    MLPWeights,
    NormWeights,
)
from octavo.models.spec import DecoderSpec, ExpertsSpec

RowOrder = npt.NDArray[np.int64]


class Stack(msgspec.Struct, frozen=True, kw_only=True):
    """A weight of the decoder: tensors of the checkpoint one below the other."""

    names: tuple[str, ...]
    rows: tuple[int, ...]
    """Of each tensor."""
    columns: int | None = None
    """None for a vector."""
    transposed: bool = False
    """Each tensor is stored as [columns, rows]."""
    order: RowOrder | None = None
    """Which row of the stack is the first, the second, ... of the weight; None for all as they are."""
    offset: float = 0.0
    """Added to every element."""
    as_floats: bool = False
    """Never in groups."""
    is_table: bool = False
    """The embedding or the head."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the weight."""
        return (sum(self.rows),) if self.columns is None else (sum(self.rows), self.columns)

    @property
    def stored(self) -> dict[str, tuple[int, ...]]:
        """Shape of each tensor in the checkpoint."""
        if self.columns is None:
            return {name: (rows,) for name, rows in zip(self.names, self.rows, strict=True)}
        pairs = ((rows, self.columns) for rows in self.rows)
        stored = ((columns, rows) if self.transposed else (rows, columns) for rows, columns in pairs)
        return dict(zip(self.names, stored, strict=True))


def layout(spec: DecoderSpec, root: str | None = None, turned: Collection[str] = ()) -> DecoderWeights:
    """The decoder's weights, each a Stack.

    Args:
        root: Of the checkpoint's names; None for the first of the naming's.
        turned: Names of matrices that are stored as [out, in] though the naming says `transposed`.
    """
    return _Layout(spec, spec.naming.roots[0] if root is None else root, turned).decoder()


def expected_shapes(
    spec: DecoderSpec, root: str | None = None, turned: Collection[str] = ()
) -> dict[str, tuple[int, ...]]:
    """Every tensor that the decoder needs, by its name in the checkpoint. Arguments as those of `layout`."""
    shapes: dict[str, tuple[int, ...]] = {}
    for stack in _stacks(layout(spec, root, turned)):
        shapes |= stack.stored
    return shapes


def _stacks(node: Any) -> Iterator[Stack]:
    if isinstance(node, Stack):
        yield node
    elif isinstance(node, list):
        for item in node:
            yield from _stacks(item)
    elif isinstance(node, msgspec.Struct):
        for field in node.__struct_fields__:
            yield from _stacks(getattr(node, field))


class _Layout:
    def __init__(self, spec: DecoderSpec, root: str, turned: Collection[str]) -> None:
        self._spec = spec
        self._turned = turned
        self._naming = spec.naming
        self._root = root

    def decoder(self) -> DecoderWeights:
        spec, names = self._spec, self._naming
        table = Stack(
            names=(f"{self._root}{names.embedding}.weight",),
            rows=(spec.vocab_size,),
            columns=spec.embedded,
            is_table=True,
        )
        projected = spec.embedding_size is not None
        return DecoderWeights(
            embedding=table,
            layers=[self._layer(index) for index in range(spec.num_layers)],
            norm=self._norm(self._root + names.norm) if spec.final_norm else None,
            head=table if spec.tied_embeddings else msgspec.structs.replace(table, names=(f"{names.head}.weight",)),
            positions=self._positions(),
            project_in=self._matrix([names.project_in], [spec.hidden_size], spec.embedded) if projected else None,
            project_out=self._matrix([names.project_out], [spec.embedded], spec.hidden_size) if projected else None,
        )

    def _positions(self) -> Stack | None:
        offset = self._spec.position_offset
        if offset is None:
            return None
        return self._matrix([self._naming.positions], [self._spec.max_position + offset], self._spec.hidden_size)

    def _layer(self, index: int) -> LayerWeights:
        spec, names = self._spec, self._naming
        prefix = self._root + names.layer.format(index)
        norms = {role: self._norm(prefix + name) for role, name in zip(spec.norm_roles, names.norms, strict=True)}
        query, kv = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
        fused = len(names.qkv) == 1
        experts = spec.layers[index].experts
        return LayerWeights(
            **norms,
            qkv=self._linear(
                [prefix + name for name in names.qkv],
                [query + 2 * kv] if fused else [query, kv, kv],
                spec.hidden_size,
                bias=spec.qkv_bias,
                order=group_order(spec) if names.qkv_by_group else None,
            ),
            query_norm=self._head_norm(prefix + names.query_norm, query),
            key_norm=self._head_norm(prefix + names.key_norm, kv),
            output=self._linear([prefix + names.output], [spec.hidden_size], query, bias=spec.output_bias),
            mlp=self._experts(prefix, experts) if experts else self._mlp(prefix, names.up, names.down),
        )

    def _mlp(self, prefix: str, up: Sequence[str], down: str, inner: int | None = None) -> MLPWeights:
        """An MLP with `inner` hidden units, those of the spec if that is None."""
        spec, units = self._spec, self._spec.intermediate_size if inner is None else inner
        rows = [units] * (2 if spec.gated_mlp else 1)
        return MLPWeights(
            up=self._linear(
                [prefix + name for name in up],
                rows if len(up) == len(rows) else [sum(rows)],
                spec.hidden_size,
                bias=spec.mlp_bias,
            ),
            down=self._linear([prefix + down], [spec.hidden_size], units, bias=spec.mlp_bias),
        )

    def _experts(self, prefix: str, experts: ExpertsSpec) -> ExpertsWeights:
        names = self._naming.experts
        each = [
            self._expert(prefix + names.expert, number, experts.intermediate_size)
            for number in range(experts.num_experts)
        ]
        made = ExpertsWeights(
            router=self._router(prefix + names.router, experts.num_experts),
            gate_up=[mlp.up.weight for mlp in each],
            down=[mlp.down.weight for mlp in each],
        )
        if experts.shared_size:
            made.shared = self._expert(prefix + names.shared, 0, experts.shared_size)
            made.shared_gate = self._router(prefix + names.shared_gate, 1)
        return made

    def _expert(self, template: str, number: int, inner: int) -> MLPWeights:
        names = self._naming.experts
        up = [template.format(number=number, name=name) for name in names.up]
        return self._mlp("", up, template.format(number=number, name=names.down), inner)

    def _router(self, module: str, rows: int) -> Stack:
        return Stack(names=_of([module], "weight"), rows=(rows,), columns=self._spec.hidden_size, as_floats=True)

    def _linear(
        self, modules: list[str], rows: list[int], columns: int, *, bias: bool, order: RowOrder | None = None
    ) -> LinearWeights:
        names = _of(modules, "weight")
        weight = Stack(
            names=names,
            rows=tuple(rows),
            columns=columns,
            transposed=self._naming.transposed and not self._turned_all(names),
            order=order,
        )
        added = Stack(names=_of(modules, "bias"), rows=tuple(rows), order=order) if bias else None
        return LinearWeights(weight, added)

    def _turned_all(self, names: Iterable[str]) -> bool:
        return all(name in self._turned for name in names)

    def _matrix(self, modules: list[str], rows: list[int], columns: int) -> Stack:
        return Stack(names=_of([self._root + name for name in modules], "weight"), rows=tuple(rows), columns=columns)

    def _vector(self, name: str, size: int, offset: float = 0.0) -> Stack:
        return Stack(names=(name,), rows=(size,), offset=offset)

    def _norm(self, module: str) -> NormWeights:
        size = self._spec.hidden_size
        bias = self._vector(f"{module}.bias", size) if self._spec.norm_bias else None
        return NormWeights(self._vector(f"{module}.weight", size, self._norm_offset), bias)

    def _head_norm(self, module: str, width: int) -> Stack | None:
        if self._spec.qk_norm is None:
            return None
        size = self._spec.head_dim if self._spec.qk_norm == "head" else width
        return self._vector(f"{module}.weight", size, self._norm_offset)

    @property
    def _norm_offset(self) -> float:
        return 0.0 if self._naming.offset_in_norms else self._spec.norm_offset


def _of(modules: list[str], kind: Literal["weight", "bias"]) -> tuple[str, ...]:
    return tuple(f"{module}.{kind}" for module in modules)


def group_order(spec: DecoderSpec) -> RowOrder:
    """For rows that lie by KV head, its query heads first, then its key and its value: where those of all queries, all
    keys and all values are."""
    heads_each = spec.num_heads // spec.num_kv_heads
    rows = np.arange(spec.num_kv_heads * (heads_each + 2) * spec.head_dim)
    by_head = rows.reshape(spec.num_kv_heads, heads_each + 2, spec.head_dim)
    parts = by_head[:, :heads_each], by_head[:, heads_each], by_head[:, heads_each + 1]
    return np.concatenate([part.reshape(-1) for part in parts])
