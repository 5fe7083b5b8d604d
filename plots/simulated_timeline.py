"""The timeline of a simulated run: a line a rank, attention above what it receives, and what the exchange costs in the end.

Drawn from spans of a model and never from measurements: the watermark is part of the figure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from plots import style

COLUMNS = ["rank", "lane", "begin_ms", "end_ms"]

LANES: dict[str, tuple[str, float, float]] = {
    "attention": ("#D55E00", 0.04, 0.52),
    "copies and sums": ("#E69F00", 0.04, 0.52),
    "from its node": ("#56B4E9", 0.60, 0.16),
    "from other nodes": ("#0072B2", 0.78, 0.16),
}
"""Colour, upper edge and height of a lane within the line of a rank."""


def data(spans: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """One line a span: rank, lane, begin and end in milliseconds.

    Raises:
        ValueError: no spans, or a lane that is not one of ``LANES``.
    """
    frame = pd.DataFrame([{name: span[name] for name in COLUMNS} for span in spans], columns=COLUMNS)
    unknown = sorted(set(frame["lane"]) - set(LANES))
    if frame.empty or unknown:
        raise ValueError(f"a timeline of {unknown or 'no spans'}; lanes: {', '.join(LANES)}")
    return frame


def draw(frame: pd.DataFrame, caption: str, *, title: str = "", compute_ms: float | None = None) -> Figure:
    """The figure of :func:`data`'s frame.

    Args:
        frame: the spans.
        caption: below the axes.
        title: above them.
        compute_ms: when the slowest rank would be done with all keys there; what lies behind is what the exchange costs.
    """
    ranks = int(frame["rank"].max()) + 1
    last = float(frame["end_ms"].max())
    with style.context():
        figure = Figure(figsize=(8.6, 1.9 + 0.21 * max(4, ranks)))
        axes = figure.subplots()
        for lane, (colour, top, height) in LANES.items():
            for rank in range(ranks):
                mine = frame[(frame["lane"] == lane) & (frame["rank"] == rank)]
                bars = list(zip(mine["begin_ms"], mine["end_ms"] - mine["begin_ms"], strict=True))
                if bars:
                    axes.broken_barh(bars, (rank + top, height), facecolors=colour, linewidth=0)
        if compute_ms is not None and compute_ms < last:
            axes.axvspan(compute_ms, last, color=style.GRID, zorder=0)
            axes.axvline(compute_ms, color=style.MUTED, linewidth=0.8, linestyle="--", zorder=1)
        axes.set_xlim(0, last * 1.01)
        axes.set_ylim(ranks, 0)
        step = -(-ranks // 16)
        axes.set_yticks([rank + 0.5 for rank in range(0, ranks, step)], [str(rank) for rank in range(0, ranks, step)])
        axes.set_ylabel("rank")
        axes.set_xlabel("ms")
        axes.xaxis.set_major_formatter(style.formatter())
        present = [lane for lane in LANES if (frame["lane"] == lane).any()]
        handles = [Patch(facecolor=LANES[lane][0], linewidth=0) for lane in present]
        style.title_and_legend(figure, title, handles, present)
        style.caption_below(figure, caption, watermark=True)
    return figure


def note() -> str:
    """How the figure is read."""
    return "Transfers stand at the rank that receives them. Grey: what exchanges cost beside attention with all keys there."
