"""Overlap timeline: what computing takes, what the exchange takes, and what of it is seen in the whole.

A panel a mask, for each strategy a lane of computing with the exposed time behind it and a lane of the exchange below. Lanes
begin together, as the calls do; where within them a kernel ran is not recorded. Of simulated ranks all three are predictions:
title, caption and watermark say so. When their steps ran is another figure (``plots.simulated_timeline``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from plots import captions, style
from plots.bars import wrap_label
from plots.cells import Cell, series_of, sort_key
from plots.ranks import NOISE, overlap_of
from plots.slots import slot_labels

COLUMNS = ["mask", "series", "source", "full_ms", "comp_ms", "comm_ms", "bare_ms", "exposed_ms", "overlap", "best", "noise"]
COMPUTE, EXCHANGE, EXPOSED = "#56B4E9", "#E69F00", "#D55E00"
PANELS = 3
"""Panels beside each other."""


def able(cells: Sequence[Cell]) -> list[Cell]:
    """The cells whose three runs were taken or predicted."""
    return [cell for cell in cells if cell.ok and overlap_of(cell) is not None]


def data(cells: Sequence[Cell]) -> pd.DataFrame:
    """One line a (mask, strategy), milliseconds; the cells are of one length and pass.

    Raises:
        FigureError: no cell with three runs, or cells that may not share a figure.
    """
    chosen = sorted(able(cells), key=sort_key)
    captions.check_comparable(chosen)
    mixed = len(captions.sources(chosen)) > 1
    lines = []
    for cell, label in zip(chosen, slot_labels(chosen), strict=True):
        three = overlap_of(cell)
        assert three is not None
        lines.append(
            {
                "mask": captions.series_title(label, cell["source"], mixed),
                "series": series_of(cell),
                "source": cell["source"],
                "full_ms": three.full_ms,
                "comp_ms": three.comp_ms,
                "comm_ms": three.comm_ms,
                "bare_ms": three.bare_ms,
                "exposed_ms": three.exposed_ms,
                "overlap": three.overlap,
                "best": three.best,
                "noise": three.is_noise,
            }
        )
    return pd.DataFrame(lines, columns=COLUMNS)


def draw(frame: pd.DataFrame, caption: str, *, title: str = "", simulated: bool = False) -> Figure:
    """The figure of :func:`data`'s frame. ~ marks an overlap that is noise."""
    masks, series = list(dict.fromkeys(frame["mask"])), list(dict.fromkeys(frame["series"]))
    columns = min(PANELS, len(masks))
    rows = math.ceil(len(masks) / columns)
    with style.context():
        figure = Figure(figsize=(max(6.0, 1.4 + 3.6 * columns), 1.6 + rows * (0.7 + 0.34 * len(series))))
        panels = figure.subplots(rows, columns, squeeze=False, sharey=True)
        for place, axes in enumerate(panels.flat):
            if place >= len(masks):
                axes.set_visible(False)
                continue
            longest = 0.0
            for line in frame[frame["mask"] == masks[place]].to_dict("records"):
                lane = series.index(line["series"])
                exposed = max(0.0, line["exposed_ms"])
                axes.barh(lane - 0.18, line["comp_ms"], 0.34, color=COMPUTE)
                axes.barh(lane - 0.18, exposed, 0.34, left=line["comp_ms"], color=EXPOSED, hatch="///", edgecolor=style.PAPER)
                axes.barh(lane + 0.18, line["comm_ms"], 0.3, color=EXCHANGE)
                axes.plot([line["full_ms"]] * 2, [lane - 0.42, lane + 0.06], color=style.INK, lw=1.2, solid_capstyle="butt")
                end = max(line["comp_ms"] + exposed, line["comm_ms"])
                word = ("~" if line["noise"] else "") + f"{100 * line['overlap']:.0f}%"
                axes.text(end, lane, f" {word}", va="center", ha="left", fontsize=7, color=style.INK)
                longest = max(longest, end)
            axes.set_xlim(0, 1.2 * longest)
            axes.set_title(wrap_label(masks[place]), loc="left", fontsize=8.5)
            axes.set_yticks(range(len(series)), [style.title_of(name) for name in series], fontsize=7)
            axes.set_ylim(len(series) - 0.5, -0.5)
            axes.set_xlabel("milliseconds", fontsize=7.5)
            axes.xaxis.set_major_formatter(style.formatter())
        looks = [("computing alone", COMPUTE, ""), ("exchange alone", EXCHANGE, ""), ("exposed", EXPOSED, "///")]
        handles: list[Any] = [Patch(facecolor=colour, hatch=hatch, edgecolor=style.PAPER) for _, colour, hatch in looks]
        handles.append(Line2D([], [], color=style.INK, lw=1.2))
        style.title_and_legend(figure, title, handles, [*(name for name, _, _ in looks), "both together"])
        style.caption_below(figure, caption, watermark=simulated)
    return figure


def note(frame: pd.DataFrame) -> str:
    """How the figure is read."""
    found = set(frame["source"])
    text = "Predictions for the slowest rank." if found == {"simulated"} else "Medians of the slowest rank."
    text += " Of simulated ones predictions." if len(found) > 1 else ""
    text += " The figure beside a lane is the share of the exchange that is hidden."
    if frame["noise"].any():
        text += f" ~ : the exchange is under {100 * NOISE:.0f}% of the whole, and its overlap is noise."
    return text + " Strategies named after other projects are re-implementations."
