"""A plan as a picture: latencies over the rate, with the objectives. Needs matplotlib, the extra `figures`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from octavo.errors import ConfigError

_PANELS = (("ttft", "time to first token (s)", 1e-3), ("tpot", "time per further token (ms)", 1.0))


def check_drawing(name: str) -> None:
    """See that the picture called `name` can be drawn.

    Raises:
        ConfigError: If matplotlib is not installed.
    """
    try:
        from octavo.figures import style  # noqa: F401
    except ImportError:
        raise ConfigError("plot", name, "left out, or matplotlib installed (the extra figures)") from None


def draw(report: dict[str, Any], path: Path) -> None:
    """Two panels below each other over one axis of rates: time to first token and time per further token, each at the
    median and at the percentile of the objectives, with the objective as a line and the sustained rate as another.

    Raises:
        ConfigError: If matplotlib is not installed.
    """
    check_drawing(str(path))
    from octavo.figures import style

    with style.settings():
        picture = style.new_picture(style.COLUMN_IN, 3.4)
        percent = report["objectives"]["percent"]
        all_axes = picture.subplots(2, 1, sharex=True)
        for axes, (name, label, scale) in zip(all_axes, _PANELS, strict=True):
            for suffix, shown, color, marker, line in (
                ("", f"{percent:g} % of requests", style.VERMILION, "o", "-"),
                ("_p50", "half of them", style.BLUE, "s", "--"),
            ):
                points = [(p["rate"], p[f"{name}{suffix}_ms"]) for p in report["curve"]]
                known = [(rate, ms * scale) for rate, ms in points if ms is not None]
                axes.plot(*zip(*known, strict=True), color=color, marker=marker, linestyle=line, label=shown)
            wanted = report["objectives"][f"{name}_ms"] * scale
            axes.axhline(wanted, color=style.BLACK, linestyle=":", label="objective")
            axes.axvline(report["sustained"]["requests_per_s"], color=style.GREY, linestyle="-.", label="sustained")
            axes.set_ylim(0, 1.6 * wanted)
            axes.set_xlim(left=0)
            style.settle(axes, "", label)
        all_axes[0].legend(loc="upper left")
        all_axes[1].set_xlabel("requests (1/s)")
        all_axes[0].set_title(f"{report['model']} on {report['settings']['num_devices']} x {report['device']}")
        picture.savefig(path)
