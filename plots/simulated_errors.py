"""Errors of the simulator against measured runs: a column a mask, a point a cell, the unseen half apart from the seen one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from plots import style
from plots.cells import mask_rank

COLUMNS = ["mask", "half", "error"]

HALVES: dict[str, tuple[str, str, float]] = {"unseen": ("#D55E00", "o", -0.14), "seen": ("#56B4E9", "s", 0.14)}
"""Colour, marker and place within the column."""


def data(points: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """One line a cell, masks in the registry's order.

    Raises:
        ValueError: no cells, or a half that is none.
    """
    frame = pd.DataFrame([{name: point[name] for name in COLUMNS} for point in points], columns=COLUMNS)
    if frame.empty or set(frame["half"]) - set(HALVES):
        raise ValueError(f"no cells to draw, or a half that is not one of {', '.join(HALVES)}")
    order = sorted(set(frame["mask"]), key=mask_rank)
    frame["place"] = frame["mask"].map(order.index)
    return frame.sort_values(["place", "half", "error"], ascending=[True, False, True], ignore_index=True)[COLUMNS]


def draw(frame: pd.DataFrame, caption: str, *, title: str = "") -> Figure:
    """The figure of :func:`data`'s frame. Points of one half lie side by side, the bar is their median."""
    masks = list(dict.fromkeys(frame["mask"]))
    with style.context():
        figure = Figure(figsize=(max(5.4, 1.2 + 0.75 * len(masks)), 3.8))
        axes = figure.subplots()
        handles: dict[str, Artist] = {}
        for half, (colour, marker, shift) in HALVES.items():
            for place, mask in enumerate(masks):
                errors = frame[(frame["mask"] == mask) & (frame["half"] == half)]["error"]
                if errors.empty:
                    continue
                (points,) = axes.plot([place + shift] * len(errors), errors, marker, color=colour, markersize=4, alpha=0.7)
                axes.plot([place + shift - 0.1, place + shift + 0.1], [errors.median()] * 2, color=style.INK, linewidth=1.4)
                handles.setdefault(half, points)
        axes.axhline(0, color=style.MUTED, linewidth=0.8)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes.set_xticks(range(len(masks)), masks, rotation=30, ha="right")
        axes.grid(axis="y")
        style.title_and_legend(figure, title, list(handles.values()), list(handles))
        style.caption_below(figure, caption)
    return figure


def note() -> str:
    """How the figure is read."""
    return "A point is a cell, a bar the median of its half."
