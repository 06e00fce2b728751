"""Figure 18a: what paging costs in the attention kernel, measured on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from octavo.figures import paper
from octavo.figures.figure import Comparison, Figure, Findings, Numbers, Row
from octavo.measure.attention import CONTIGUOUS, PAGED, Batch, Layout
from octavo.measure.paging import IN_ORDER, LAYOUTS, OPT_13B, paging_points, scattered
from octavo.measure.shapes import Shapes
from octavo.measure.threads import best_path, thread_pool

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Picture

_TINY = Shapes(num_heads=4, num_kv_heads=2, head_dim=16, num_layers=2)
MODELS: dict[str, Shapes] = {"OPT-13B": OPT_13B, "SmolLM2-135M": Shapes(), "tiny": _TINY}
BATCH_SIZES = (8, 32)
PAPERS_CONTEXTS = (64, 128, 256)
LONG_CONTEXTS = (1024, 4096)
"""Of SmolLM2-135M only, of which so many tokens fit a small machine."""
BLOCK_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
BY_BLOCK_SIZE = Batch(8, 512)
REPEATS = 25


class PagingTiming(msgspec.Struct, frozen=True, kw_only=True):
    """The layouts of one batch in turn; or, with `is_by_block_size`, scattered blocks of every size."""

    model: str
    num_seqs: int
    context: int
    repeats: int
    is_by_block_size: bool = False

    @property
    def label(self) -> str:
        return f"attention, {self.model}, {self.num_seqs} x {self.context}"

    @property
    def is_alone(self) -> bool:
        return True

    @property
    def weight(self) -> float:
        return self.num_seqs * self.context

    def run(self) -> Numbers:
        """Microseconds per layer of each layout, and its time over the first one's: median and quartiles."""
        layouts: tuple[Layout, ...] = LAYOUTS
        if self.is_by_block_size:
            layouts = (PAGED, *(scattered(size) for size in BLOCK_SIZES if size != PAGED.block_size))
        found: Numbers = {}
        for point in paging_points(
            MODELS[self.model],
            [Batch(self.num_seqs, self.context)],
            thread_pool(),
            best_path(),
            layouts=layouts,
            repeats=self.repeats,
        ):
            found |= {
                f"{point.layout}: us": point.us_per_layer,
                f"{point.layout}: ratio": point.ratio,
                f"{point.layout}: low": point.ratio_low,
                f"{point.layout}: high": point.ratio_high,
            }
        return found


def plan(is_short: bool) -> list[PagingTiming]:
    if is_short:
        batch = PagingTiming(model="tiny", num_seqs=2, context=64, repeats=2)
        return [batch, msgspec.structs.replace(batch, is_by_block_size=True)]
    cases = [
        (model, num_seqs, context)
        for model, contexts in (("OPT-13B", PAPERS_CONTEXTS), ("SmolLM2-135M", (*PAPERS_CONTEXTS, *LONG_CONTEXTS)))
        for num_seqs in BATCH_SIZES
        for context in contexts
    ]
    timings = [
        PagingTiming(model=model, num_seqs=num_seqs, context=context, repeats=REPEATS)
        for model, num_seqs, context in cases
    ]
    by_size = PagingTiming(
        model="SmolLM2-135M",
        num_seqs=BY_BLOCK_SIZE.num_seqs,
        context=BY_BLOCK_SIZE.context,
        repeats=REPEATS,
        is_by_block_size=True,
    )
    return [*timings, by_size]


def derive(results: Mapping[PagingTiming, Numbers]) -> Findings:
    rows: list[Row] = []
    for job, numbers in results.items():
        rows += [
            {
                "model": job.model,
                "num_seqs": job.num_seqs,
                "context": job.context,
                "layout": name.removesuffix(": us"),
                "compared_with": PAGED.name if job.is_by_block_size else CONTIGUOUS.name,
                "us_per_layer": us,
                "ratio": numbers[name.replace(": us", ": ratio")],
                "ratio_low": numbers[name.replace(": us", ": low")],
                "ratio_high": numbers[name.replace(": us", ": high")],
            }
            for name, us in numbers.items()
            if name.endswith(": us")
        ]
    return Findings(rows, [*_slower(rows), *_by_block_size(rows)], list(_NOTES))


def _slower(rows: list[Row]) -> list[Comparison]:
    """Per cent that scattered blocks take longer: the mean over the paper's contexts, then each longer one."""
    found: list[Comparison] = []
    paged = [row for row in rows if row["layout"] == PAGED.name and row["compared_with"] == CONTIGUOUS.name]
    for model, num_seqs in dict.fromkeys((row["model"], row["num_seqs"]) for row in paged):
        own = [row for row in paged if (row["model"], row["num_seqs"]) == (model, num_seqs)]
        slower = {row["context"]: 100 * (_number(row, "ratio") - 1) for row in own}
        papers = [value for context, value in slower.items() if context in PAPERS_CONTEXTS]
        what = f"{model}, {num_seqs} sequences of"
        if papers:
            found.append(
                Comparison(
                    what=f"{what} 64 to 256 tokens: paged longer than contiguous, mean",
                    ours=sum(papers) / len(papers),
                    unit="%",
                    said=paper.FIG18A_SLOWER.words("%"),
                    reason="" if found else _REASON,
                )
            )
        found += [
            Comparison(what=f"{what} {context} tokens: paged longer than contiguous", ours=value, unit="%")
            for context, value in slower.items()
            if context not in PAPERS_CONTEXTS
        ]
    return found


def _by_block_size(rows: list[Row]) -> list[Comparison]:
    small = [row for row in rows if row["compared_with"] == PAGED.name and row["layout"] != PAGED.name]
    return [
        Comparison(
            what=f"{row['model']}, {row['num_seqs']} x {row['context']} tokens: {row['layout']} over blocks of 16",
            ours=_number(row, "ratio"),
            unit="x",
        )
        for row in small
    ]


def _number(row: Row, name: str) -> float:
    value = row[name]
    assert isinstance(value, int | float)
    return float(value)


_REASON = (
    "the paper compares its CUDA kernel with FasterTransformer's, another program without tables, branches and "
    "variable lengths; here one kernel reads both layouts, so only the table and the jumps between blocks are counted. "
    "A CPU core looks a block up once for 16 tokens of a head and then reads kilobytes in order, which hides the jump "
    "unless the whole context is long."
)
_NOTES = [
    "Attention of a decode step: one new token of each sequence, bfloat16 KV. Contiguous means the largest blocks, up "
    "to 256 tokens, next to each other in a memory of their own for each layer. Layouts take turns within a run, each "
    "ratio is the median of the turns' own, and quartiles are in the CSV.",
]


def draw(findings: Findings) -> Picture:
    from octavo.figures import style

    picture = style.new_picture(style.PAGE_IN, 2.3)
    times, ratios, sizes = picture.subplots(1, 3)
    timed = [row for row in findings.rows if row["compared_with"] == CONTIGUOUS.name]
    _draw_times(times, timed)
    _draw_ratios(ratios, timed)
    _draw_sizes(sizes, [row for row in findings.rows if row["compared_with"] == PAGED.name])
    return picture


def _draw_times(axes: Axes, rows: list[Row]) -> None:
    """Bars of the first model: contiguous beside paged."""
    from octavo.figures import style

    model = rows[0]["model"]
    groups = sorted({(int(r["num_seqs"] or 0), int(r["context"] or 0)) for r in rows if r["model"] == model})
    looks = {CONTIGUOUS.name: (style.GREY, ""), IN_ORDER.name: (style.SKY, "...."), PAGED.name: (style.BLUE, "////")}
    for place, (layout, (color, hatch)) in enumerate(looks.items()):
        own = {
            (row["num_seqs"], row["context"]): _number(row, "us_per_layer") / 1e3
            for row in rows
            if row["model"] == model and row["layout"] == layout
        }
        axes.bar(
            [i + (place - 1) * 0.27 for i in range(len(groups))], [own[group] for group in groups], 0.25,
            color=color, hatch=hatch, edgecolor="white", linewidth=0, label=layout,
        )  # fmt: skip
    axes.set_xticks(range(len(groups)), [f"{num_seqs}\n{context}" for num_seqs, context in groups])
    axes.set_title(f"(a) {model}, one layer")
    style.settle(axes, "Sequences, context (tokens)", "Time (ms)")
    axes.legend()


def _draw_ratios(axes: Axes, rows: list[Row]) -> None:
    """How much longer scattered blocks take, with quartiles, over the context."""
    from octavo.figures import style

    low, high, _ = paper.FIG18A_SLOWER
    axes.axhspan(low, high, color=style.YELLOW, alpha=0.35, linewidth=0, label="the paper's GPU kernel")
    axes.axhline(0, color=style.BLACK, linewidth=0.6)
    looks = zip((style.BLUE, style.SKY, style.VERMILION, style.ORANGE), "osD^", ("-", "--", "-.", ":"), strict=True)
    series = dict.fromkeys((row["model"], row["num_seqs"]) for row in rows)
    for (model, num_seqs), (color, marker, line) in zip(series, looks, strict=False):
        own = [r for r in rows if (r["model"], r["num_seqs"], r["layout"]) == (model, num_seqs, PAGED.name)]
        values = [100 * (_number(row, "ratio") - 1) for row in own]
        spread = [
            [100 * (_number(row, "ratio") - _number(row, "ratio_low")) for row in own],
            [100 * (_number(row, "ratio_high") - _number(row, "ratio")) for row in own],
        ]
        axes.errorbar(
            [_number(row, "context") for row in own], values, yerr=spread,
            color=color, marker=marker, linestyle=line, elinewidth=0.6, capsize=1.5, label=f"{model}, {num_seqs} seqs",
        )  # fmt: skip
    axes.set_xscale("log", base=2)
    ticks = sorted({int(row["context"] or 0) for row in rows})
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    medians = [100 * (_number(row, "ratio") - 1) for row in rows if row["layout"] == PAGED.name]
    axes.set_ylim(min(-15, *medians) - 5, max(60, *medians) + 5)  # of a disturbed run's quartiles some are cut off
    axes.set_title("(b) Blocks of 16 against contiguous")
    style.settle(axes, "Context (tokens)", "Longer by (%)")
    axes.legend(loc="upper left", fontsize=6)


def _draw_sizes(axes: Axes, rows: list[Row]) -> None:
    from octavo.figures import style

    points = sorted((int(str(row["layout"]).rsplit(" ", 1)[1]), _number(row, "ratio")) for row in rows)
    axes.plot(*zip(*points, strict=True), color=style.BLUE, marker="o")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xticks([1, 4, 16, 64, 256], ["1", "4", "16", "64", "256"])
    axes.set_yticks([1, 2, 4, 8, 16], ["1", "2", "4", "8", "16"])
    axes.minorticks_off()
    row = rows[0]
    axes.set_title(f"(c) {row['model']}, {row['num_seqs']} x {row['context']} tokens")
    style.settle(axes, "Block size (tokens)", "Time over blocks of 16 (x)")


FIGURE = Figure(
    name="fig18a",
    title="Figure 18a: what paging costs in the attention kernel",
    caption=(
        "Measured on this machine's processor with the kernels that serve requests. Attention of one decode step over "
        "scattered blocks beside the same kernel over the same tokens in one piece, and over blocks of other sizes."
    ),
    plan=plan,
    derive=derive,
    draw=draw,
)
