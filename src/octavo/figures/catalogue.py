"""Which figures there are."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Sequence

from octavo.errors import ConfigError
from octavo.figures.figure import AnyFigure

MODULES: dict[str, str] = {
    "fig2": "octavo.figures.fig2",
    "fig12": "octavo.figures.fig12",
    "fig13": "octavo.figures.fig13",
    "fig14": "octavo.figures.fig14",
    "fig15": "octavo.figures.fig15",
    "fig16": "octavo.figures.fig16",
    "fig17": "octavo.figures.fig17",
    "fig18a": "octavo.figures.fig18a",
    "fig18b": "octavo.figures.fig18b",
    "fig19a": "octavo.figures.fig19a",
    "fig19b": "octavo.figures.fig19b",
}
"""Name -> module, in the paper's order. A module has its figure as `FIGURE`, and is imported when it is asked for."""


def load(names: Sequence[str]) -> list[AnyFigure]:
    """The figures of these names, in the paper's order; all of them if there are none. "2" is "fig2".

    Raises:
        ConfigError: If a name is not a figure's.
    """
    chosen = {_full(name) for name in names} or set(MODULES)
    return [_load(name) for name in MODULES if name in chosen]


def _load(name: str) -> AnyFigure:
    figure: AnyFigure = importlib.import_module(MODULES[name]).FIGURE
    return figure


def _full(name: str) -> str:
    for candidate in (name, f"fig{name}"):
        if candidate in MODULES:
            return candidate
    near = difflib.get_close_matches(f"fig{name.removeprefix('fig')}", MODULES, n=1)
    guess = f" (did you mean {near[0]}?)" if near else ""
    raise ConfigError("figure", name, "one of " + ", ".join(MODULES) + guess)
