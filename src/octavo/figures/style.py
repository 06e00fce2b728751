"""How every figure looks: sizes of a two-column paper, Okabe and Ito's colours, and a look for each system.

Colours come from the palette that people with any common colour blindness can tell apart (Okabe and Ito 2008, "Color
Universal Design"). No difference is shown by colour alone: systems also differ by marker and line style, parts of a bar
by hatching, so a figure survives a black-and-white printer.

Importing this module needs matplotlib, the extra `figures`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Picture

from octavo.figures import paper

BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
YELLOW, BLUE, VERMILION, PURPLE = "#F0E442", "#0072B2", "#D55E00", "#CC79A7"
GREY = "#999999"
PALETTE = (BLACK, ORANGE, SKY, GREEN, YELLOW, BLUE, VERMILION, PURPLE, GREY)
"""Okabe and Ito's eight, and the grey that usually goes with them."""

COLUMN_IN, PAGE_IN = 3.3, 7.0
"""Widths of one column and of the whole page, inches."""
DOTS_PER_INCH = 300

SETTINGS: dict[Any, Any] = {
    "font.size": 7.5,
    "axes.labelsize": 7.5,
    "axes.titlesize": 7.5,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "legend.handlelength": 2.4,
    "legend.columnspacing": 1.2,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "grid.linewidth": 0.4,
    "grid.color": "#DDDDDD",
    "lines.linewidth": 1.2,
    "lines.markersize": 3.6,
    "hatch.linewidth": 0.5,
    "svg.fonttype": "none",  # text stays text: it can be searched, read aloud and edited
    "svg.hashsalt": "octavo",  # so that equal figures are equal files
    "savefig.dpi": DOTS_PER_INCH,
    "figure.dpi": DOTS_PER_INCH,
}


def settings() -> AbstractContextManager[None]:
    """While this lasts, pictures are made and saved in the style of all figures; others of the process are not."""
    return mpl.rc_context(SETTINGS)


class Look(NamedTuple):
    """How one series is drawn."""

    label: str
    color: str
    marker: str
    line: str | tuple[int, tuple[float, ...]]
    hatch: str = ""

    def line_style(self) -> dict[str, Any]:
        """Arguments of `Axes.plot`."""
        return {"label": self.label, "color": self.color, "marker": self.marker, "linestyle": self.line}

    def bar_style(self) -> dict[str, Any]:
        """Arguments of `Axes.bar`."""
        return {"color": self.color, "hatch": self.hatch, "edgecolor": "white", "linewidth": 0}


LOOKS: dict[str, Look] = {
    paper.PAGED: Look("Octavo (paged)", BLUE, "o", "-"),
    paper.ORACLE: Look(paper.NAMES[paper.ORACLE], VERMILION, "^", "--", "////"),
    paper.POW2: Look(paper.NAMES[paper.POW2], GREEN, "s", "-.", "...."),
    paper.MAX: Look(paper.NAMES[paper.MAX], PURPLE, "D", ":", "\\\\\\\\"),
    paper.FASTER_TRANSFORMER: Look(
        paper.NAMES[paper.FASTER_TRANSFORMER], BLACK, "x", (0, (4, 1.2, 1, 1.2, 1, 1.2)), "xxxx"
    ),
}
"""Of the systems that are compared, by their names in `figures.paper`."""


def new_picture(width_in: float, height_in: float) -> Picture:
    """An empty picture, whose parts make room for each other by themselves."""
    picture = Picture(figsize=(width_in, height_in), layout="constrained")
    FigureCanvasAgg(picture)
    return picture


def settle(axes: Axes, x_label: str, y_label: str, grid: str = "y") -> None:
    """Name the axes, with units, and draw a light grid across the one that values are read from."""
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    if grid:
        axes.grid(axis=grid)  # type: ignore[arg-type]


def label_bars(axes: Axes, ours: Sequence[float], papers: Sequence[float], width: float) -> None:
    """Across each bar (at 0, 1, ...) a black line at the paper's number; above both, in figures, ours."""
    top = 1.13 * max(*ours, *papers)
    for place, (value, quoted) in enumerate(zip(ours, papers, strict=True)):
        axes.hlines(
            quoted, place - width / 2, place + width / 2, colors=BLACK, linewidth=1.4,
            label="the paper" if place == 0 else "_nolegend_",
        )  # fmt: skip
        axes.text(place, max(value, quoted) + 0.015 * top, f"{value:.1f}", ha="center", va="bottom", fontsize=6.5)
    axes.set_ylim(0, top)


def bar_legend(picture: Picture, num_columns: int) -> None:
    """A legend over all plots of a picture from the first one's series, the bars first and then the paper's line."""
    handles, labels = picture.axes[0].get_legend_handles_labels()
    order = sorted(range(len(labels)), key=lambda i: labels[i] == "the paper")
    picture.legend(
        [handles[i] for i in order], [labels[i] for i in order], loc="outside upper center", ncols=num_columns
    )
