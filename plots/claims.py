"""The claims table as a figure: the range that a paper states and the range that rows give, one line a claim.

Takes lines that are judged already (``harness.claims``): nothing is decided here. A share, which is no ratio, stands as a
word and has no bar.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import NullLocator

from plots import style

COLUMNS = [
    "claim", "text", "verdict", "paper_low", "paper_high", "drawn", "passes", "low", "high", "cases", "of", "machine",
    "protocol", "reason",
]  # fmt: skip
"""``drawn``: whether the bounds are ratios. ``passes``: ``both`` (forward and backward) or a pass that stands alone."""

_VERDICT_COLOURS = {"reproduced": "#009E73", "not reproduced": "#D55E00"}
_TICKS = (0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)


def data(lines: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """One line a claim and machine, with COLUMNS; NaN where rows give nothing."""
    return pd.DataFrame([dict(line) for line in lines], columns=COLUMNS)


def draw(frame: pd.DataFrame, caption: str, *, title: str = "", simulated: bool = False) -> Figure:
    """The figure of :func:`data`'s frame; a pass that stands alone is hatched."""
    lines = frame.to_dict("records")
    ours = style.look("fm3")
    with style.context():
        figure = Figure(figsize=(10.5, 1.6 + 0.62 * len(lines)))
        axes = figure.add_subplot()
        for row, line in enumerate(lines):
            if line["drawn"]:
                _bar(axes, row - 0.2, line["paper_low"], line["paper_high"], color=style.MUTED)
            if line["drawn"] and not _missing(line["low"]):
                alone = {} if line["passes"] == "both" else {"hatch": "////", "facecolor": "none", "edgecolor": ours.colour}
                _bar(axes, row + 0.12, line["low"], line["high"], **(alone or {"color": ours.colour}))
            colour = _VERDICT_COLOURS.get(line["verdict"], style.MUTED)
            words = f"{line['verdict']} ({line['cases']} of {line['of']})" if line["of"] else line["verdict"]
            axes.text(1.01, row, words, transform=axes.get_yaxis_transform(), va="center", color=colour, fontsize=8.5)
        axes.axvline(1.0, color=style.INK, linewidth=0.8)
        labels = ["\n".join(textwrap.wrap(style.plain(line["text"], 120), 48)) for line in lines]
        axes.set_yticks(range(len(lines)), labels, fontsize=8)
        axes.set_ylim(len(lines) - 0.5, -0.5)
        axes.set_xscale("log")
        axes.set_xlim(*_limits(frame))
        axes.set_xticks(_TICKS, [f"{tick:g}{style.TIMES}" for tick in _TICKS])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlim(*_limits(frame))
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="x")
        handles = [Patch(color=style.MUTED), Patch(color=ours.colour), Patch(fc="none", ec=ours.colour, hatch="////")]
        style.title_and_legend(figure, title, handles, ["the paper", "these rows", "these rows, forward alone"])
        style.caption_below(figure, caption, watermark=simulated)
    return figure


def _bar(axes: Any, centre: float, low: float, high: float, **look: Any) -> None:
    axes.barh(centre, max(high - low, 0.004 * low), left=low, height=0.26, linewidth=0.8, **look)


def _limits(frame: pd.DataFrame) -> tuple[float, float]:
    bounds = frame.loc[frame["drawn"].astype(bool), ["paper_low", "paper_high", "low", "high"]].astype(float)
    return 0.94 * min(1.0, float(bounds.min().min())), 1.06 * max(2.0, float(bounds.max().max()))


def _missing(value: Any) -> bool:
    return value is None or math.isnan(value)
