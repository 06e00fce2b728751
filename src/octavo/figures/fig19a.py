"""Figure 19a: what swapping and computing again take, by block size: a model of the A100, and this machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from octavo.figures import paper
from octavo.figures.figure import Comparison, Figure, Findings, Numbers, Row
from octavo.measure.model import random_model
from octavo.measure.shapes import Shapes
from octavo.measure.swapping import BLOCK_SIZES, swap_points, swap_turns
from octavo.sim.cost_model import Chunk, StepWork
from octavo.sim.paper_systems import PAGED, paper_system

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Picture

NUM_TOKENS = 256
MODEL = "opt-13b"
REPEATS = 5
MODELLED, MEASURED = "A100, modelled", "CPU, measured"
SHORT_SIZES = (1, 16, 256)
MODELS = {
    "SmolLM2-135M": Shapes(),
    "tiny": Shapes(
        hidden_size=32, intermediate_size=48, num_heads=4, num_kv_heads=2, head_dim=16, num_layers=2, vocab_size=512
    ),
}


class SwapModel(msgspec.Struct, frozen=True, kw_only=True):
    """One block size in the cost model that the simulations use."""

    block_size: int
    is_alone: bool = False

    @property
    def label(self) -> str:
        return f"swapping blocks of {self.block_size}, modelled"

    @property
    def weight(self) -> float:
        return 1e-3

    def run(self) -> Numbers:
        """Seconds, each of a step that does nothing else."""
        cost = paper_system(MODEL, PAGED, block_size=self.block_size).cost
        num_blocks = -(-NUM_TOKENS // self.block_size)
        again = StepWork(num_tokens=NUM_TOKENS, chunks=[Chunk(NUM_TOKENS, 0)], num_sampled=1)
        out_s = cost.step(StepWork(num_swapped_out_blocks=num_blocks)).swap_s
        in_s = cost.step(StepWork(num_swapped_in_blocks=num_blocks)).swap_s
        found = {"out": out_s, "in": in_s, "both": out_s + in_s, "recompute": cost.step(again).forward_s}
        return {f"{self.block_size}: {name}": seconds for name, seconds in found.items()}


class SwapTiming(msgspec.Struct, frozen=True, kw_only=True):
    """All block sizes in turn in the real worker."""

    model: str
    block_sizes: tuple[int, ...]
    repeats: int
    is_alone: bool = True

    @property
    def label(self) -> str:
        return f"swapping {NUM_TOKENS} tokens of {self.model}"

    @property
    def weight(self) -> float:
        return 1.0

    def run(self) -> Numbers:
        """Seconds, medians over the turns."""
        model = random_model(MODELS[self.model], self.model)
        try:
            turns = swap_turns(model, NUM_TOKENS, self.block_sizes, self.repeats)
        finally:
            model.close()
        found: Numbers = {}
        for point in swap_points(turns):
            times = {"out": point.out_s, "in": point.in_s, "both": point.both_s, "recompute": point.recompute_s}
            found |= {f"{point.block_size}: {name}": seconds for name, seconds in times.items()}
        return found


AnyJob = SwapModel | SwapTiming


def plan(is_short: bool) -> list[AnyJob]:
    modelled: list[AnyJob] = [SwapModel(block_size=size) for size in BLOCK_SIZES]
    if is_short:
        return [*modelled, SwapTiming(model="tiny", block_sizes=SHORT_SIZES, repeats=1)]
    return [*modelled, SwapTiming(model="SmolLM2-135M", block_sizes=BLOCK_SIZES, repeats=REPEATS)]


def derive(results: Mapping[AnyJob, Numbers]) -> Findings:
    rows: list[Row] = []
    for job, numbers in results.items():
        for name in [name for name in numbers if name.endswith(": both")]:
            size = int(name.partition(":")[0])
            row: Row = {"where": MEASURED if job.is_alone else MODELLED, "block_size": size}
            for part in ("out", "in", "both", "recompute"):
                row[f"{part}_ms"] = 1e3 * numbers[f"{size}: {part}"]
            rows.append(row)
    return Findings(rows, [*_modelled(rows), *_measured(rows)], list(_NOTES))


def column(rows: list[Row], where: str, name: str) -> dict[int, float]:
    """Block size -> milliseconds, ascending."""
    found = {int(row["block_size"] or 0): float(row[name] or 0.0) for row in rows if row["where"] == where}
    return dict(sorted(found.items()))


def _modelled(rows: list[Row]) -> list[Comparison]:
    both, again = column(rows, MODELLED, "both_ms"), column(rows, MODELLED, "recompute_ms")
    over = {size: again[size] / both[size] for size in both}
    medium = [over[size] for size in paper.FIG19_COMPARABLE]
    crossing = min(size for size in both if again[size] >= both[size]) if max(over.values()) >= 1 else None
    found = [
        Comparison(
            what="A100: swapping out and in over computing again, blocks of 1",
            ours=1 / over[1], unit="x", said="far slower [P]", low=2.0,
        ),
        Comparison(
            what="A100: computing again, slowest over fastest block size",
            ours=max(again.values()) / min(again.values()), unit="x", said="constant [P]", high=1.05,
        ),
        Comparison(
            what="A100: computing again over swapping, blocks of 16 to 64, largest",
            ours=max(medium), unit="x", said="comparable [P]", low=0.8, high=1.25,
        ),
        Comparison(
            what="A100: computing again longer than swapping by at most",
            ours=100 * (max(over.values()) - 1), unit="%",
            said=f"never more than {paper.FIG19_RECOMPUTE_AT_MOST.value:g} % [P]",
            high=paper.FIG19_RECOMPUTE_AT_MOST.value,
        ),
    ]  # fmt: skip
    if crossing is not None:
        found.append(
            Comparison(
                what="A100: smallest block size with which swapping is faster", ours=crossing, unit="tokens",
                said="swapping wins with large blocks [P]", low=2, high=paper.FIG19_COMPARABLE[-1],
            )
        )  # fmt: skip
    return found


def _measured(rows: list[Row]) -> list[Comparison]:
    both, again = column(rows, MEASURED, "both_ms"), column(rows, MEASURED, "recompute_ms")
    smallest, largest = min(both), max(both)
    return [
        Comparison(
            what=f"CPU: computing again over swapping out and in, blocks of {size}",
            ours=again[size] / both[size], unit="x", reason=_REASON if size == smallest else "",
        )
        for size in both
    ] + [
        Comparison(
            what=f"CPU: swapping with blocks of {smallest} over blocks of {largest}",
            ours=both[smallest] / both[largest], unit="x",
        )
    ]  # fmt: skip


_REASON = (
    "on a CPU nothing crosses a bus: host memory is the memory that KV lies in, a block is one piece over all layers, "
    "and a swap is a copy at memory speed, while computing takes far longer than on a GPU. So there is no crossing: "
    "swapping wins by far with every block size, and small blocks cost it little."
)
_NOTES = [
    "The A100's swap makes one copy for each block, layer, and K or V, as the paper's engine does. A copy takes 3.5 us "
    "at least and the bus moves 12.5 GB/s; both are others' measurements (`sim/roofline.py`, `sim/devices.py`), "
    "neither is read from this figure. Computing again is a step of 256 prompt tokens, the host's share of it "
    "included, and does not depend on blocks, because prompts are computed by an ordinary kernel.",
    f"On the CPU one sequence of {NUM_TOKENS} tokens is computed, swapped out and brought back in turn by the real "
    f"worker, with weights out of the air in the sizes of SmolLM2-135M; medians of {REPEATS} turns.",
]


def draw(findings: Findings) -> Picture:
    from octavo.figures import style

    picture = style.new_picture(style.COLUMN_IN, 2.2)
    modelled, measured = picture.subplots(1, 2)
    _draw(modelled, findings.rows, MODELLED)
    _draw(measured, findings.rows, MEASURED)
    modelled.set_ylim(0)
    measured.set_yscale("log")
    modelled.set_title("(a) A100, modelled")
    measured.set_title("(b) CPU, measured")
    modelled.set_ylabel("Time for 256 tokens (ms)")
    handles, labels = modelled.get_legend_handles_labels()
    picture.legend(handles, labels, loc="outside upper center", ncols=2)
    return picture


def _draw(axes: Axes, rows: list[Row], where: str) -> None:
    from octavo.figures import style

    for name, label, color, marker, line in (
        ("recompute_ms", "compute again", style.BLUE, "o", "-"),
        ("both_ms", "swap out and in", style.VERMILION, "^", "--"),
        ("out_ms", "swap out", style.ORANGE, "s", ":"),
        ("in_ms", "swap in", style.GREEN, "x", "-."),
    ):
        points = column(rows, where, name)
        axes.plot(list(points), list(points.values()), color=color, marker=marker, linestyle=line, label=label)
    axes.set_xscale("log", base=2)
    axes.set_xticks([1, 4, 16, 64, 256], ["1", "4", "16", "64", "256"])
    axes.minorticks_off()
    style.settle(axes, "Block size (tokens)", "")


FIGURE = Figure(
    name="fig19a",
    title="Figure 19a: swapping or computing again, by block size",
    caption=(
        "What it takes to bring 256 tokens of a preempted sequence back: swapping them out and in, or computing them "
        "again. (a) OPT-13B on an A100-40GB, by the cost model of the simulations; (b) a model of SmolLM2-135M's sizes "
        "on this machine's processor."
    ),
    plan=plan,
    derive=derive,
    draw=draw,
)
