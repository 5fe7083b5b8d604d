"""Throughput against sequence length: one panel a mask, one line a competitor, intervals as bands."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from plots import captions, style
from plots.bars import wrap_label
from plots.cells import Cell, series_of, sort_key
from plots.slots import slot_labels

COLUMNS = ["mask", "series", "kernel", "source", "seqlen", "status", "tflops", "low", "high", "median_ms"]

_ACROSS = 4


def data(cells: Sequence[Cell], pass_: str, convention: str = "exact") -> pd.DataFrame:
    """One line a (mask, series, length) of one pass, in that order; NaN where a cell has no figures.

    Raises:
        FigureError: no such cells, or cells that may not share a figure.
    """
    chosen = sorted((cell for cell in cells if cell["pass"] == pass_), key=sort_key)
    captions.check_comparable(chosen)
    mixed = len(captions.sources(chosen)) > 1
    lines: list[dict[str, Any]] = []
    for cell, label in zip(chosen, slot_labels(chosen), strict=True):
        low, high = cell.tflops_interval(convention) if cell.ok else (math.nan, math.nan)
        lines.append(
            {
                "mask": label,
                "series": captions.series_title(series_of(cell), cell["source"], mixed),
                "kernel": cell["kernel"],
                "source": cell["source"],
                "seqlen": cell["seqlen"],
                "status": cell.status,
                "tflops": cell.tflops(convention) if cell.ok else math.nan,
                "low": low,
                "high": high,
                "median_ms": cell.median_ms if cell.ok else math.nan,
            }
        )
    places = {mask: place for place, mask in enumerate(dict.fromkeys(line["mask"] for line in lines))}
    lines.sort(key=lambda line: (places[line["mask"]], style.rank(line["kernel"]), line["series"], line["seqlen"]))
    return pd.DataFrame(lines, columns=COLUMNS)


def draw(frame: pd.DataFrame, caption: str, *, title: str = "", simulated: bool = False) -> Figure:
    """The figure of :func:`data`'s frame: panels share both axes, so heights compare across masks."""
    masks = list(dict.fromkeys(frame["mask"]))
    lengths = sorted(set(frame["seqlen"]))
    series = sorted(set(zip(frame["series"], frame["kernel"], strict=True)), key=lambda s: (style.rank(s[1]), s[0]))
    largest = float(frame["high"].fillna(frame["tflops"]).max())
    scale = style.scale_for(largest)
    top = largest * scale.factor if largest > 0 else 1.0
    across = min(_ACROSS, len(masks))
    down = math.ceil(len(masks) / across)
    with style.context():
        figure = Figure(figsize=(max(5.4, 0.6 + 2.6 * across), 1.3 + 2.0 * down))
        panels = figure.subplots(down, across, squeeze=False, sharex=True, sharey=True)
        handles: dict[str, Artist] = {}
        # First, and for all panels at once: limits that are known need not be found again for every line.
        first = panels[0][0]
        first.set_xscale("log", base=2)
        first.set_xticks(lengths, [style.length_label(length) for length in lengths])
        first.xaxis.set_minor_locator(NullLocator())
        spread = 2 ** (0.06 * max(1.0, math.log2(lengths[-1] / lengths[0]))) if lengths[0] > 0 else 1.1
        first.set_xlim(lengths[0] / spread, lengths[-1] * spread)
        first.set_ylim(0, top * 1.06)
        first.yaxis.set_major_formatter(style.formatter())
        for panel, mask in zip(panels.flat, masks, strict=False):
            panel.set_autoscale_on(False)
            crosses = 0
            for name, kernel in series:
                look = style.look_of(name, kernel)
                mine = frame[(frame["mask"] == mask) & (frame["series"] == name)].sort_values("seqlen")
                if not len(mine):
                    continue
                good = mine[mine["status"] == "ok"]
                label = style.title_of(name)
                (line,) = panel.plot(
                    good["seqlen"], good["tflops"] * scale.factor,
                    color=look.colour, marker=look.marker, markersize=4.5, linewidth=1.6, markeredgewidth=0.0,
                )  # fmt: skip
                handles.setdefault(label, line)
                low, high = good["low"] * scale.factor, good["high"] * scale.factor
                panel.fill_between(good["seqlen"], low, high, color=look.colour, alpha=0.25, linewidth=0)
                failed = mine[mine["status"] != "ok"]
                # Crosses sit at the foot of the panel, a row of their own for every series that has some.
                height = top * (0.035 + 0.06 * crosses)
                panel.plot(failed["seqlen"], [height] * len(failed), "x", color=look.colour, markersize=4.5)
                crosses += len(failed) > 0
            panel.set_title(wrap_label(mask), fontsize=9)
            panel.grid(axis="y")
        for panel in panels.flat[len(masks) :]:
            panel.set_visible(False)
        for column in range(across):  # the lowest visible panel of a column carries the lengths
            lowest = max(row for row in range(down) if row * across + column < len(masks))
            panels[lowest][column].tick_params(labelbottom=True)
        figure.supylabel(scale.unit, fontsize=9)
        style.title_and_legend(figure, title, list(handles.values()), list(handles))
        style.caption_below(figure, caption, watermark=simulated)
    return figure


def note(frame: pd.DataFrame) -> str:
    """How the figure is read."""
    text = f"Bands: {captions.interval_name(frame['source'])}."
    words = sorted(set(frame["status"]) - {"ok"})
    return text + (f" Cross: no figure ({', '.join(word.replace('_', ' ') for word in words)})." if words else "")
