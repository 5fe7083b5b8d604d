"""Speed-up heat map: how many times as fast one kernel is as another, mask by length, paired by round."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from plots import captions, style
from plots.bars import subject_of, wrap_label
from plots.cells import Cell, series_of, sort_key
from plots.slots import same_problem, slot_labels
from plots.statistics import ROUNDS_TO_BE_SURE

COLUMNS = ["mask", "seqlen", "series", "over", "status", "ratio", "low", "high", "rounds", "sure"]


# Where the colour scale is labelled.
_FINE_MARKS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0)
_COARSE_MARKS = tuple(2.0**power for power in range(-10, 11))


def pairs(cells: Sequence[Cell]) -> list[tuple[str, str]]:
    """(series, rival) pairs worth a map: the kernel in question, or the one with most figures, against each other one."""
    counts = Counter((series_of(cell), cell["kernel"]) for cell in cells if cell.ok)
    if len(counts) < 2:
        return []
    subject = subject_of(cells)
    able = [key for key in counts if subject in (None, key[1])]
    own = min(able, key=lambda key: (-counts[key], style.rank(key[1]), key[0]))
    return [(own[0], name) for name, kernel in sorted(counts, key=lambda key: (style.rank(key[1]), key[0])) if name != own[0]]


def data(cells: Sequence[Cell], pass_: str, series: str, over: str) -> pd.DataFrame:
    """One line a (mask, length) that both series were asked for; the status of the one that failed where one did.

    Measured figures are compared with measured ones, simulated with simulated.

    Raises:
        FigureError: no mask and length where both have figures, or cells that may not share a figure.
    """
    chosen = sorted((c for c in cells if c["pass"] == pass_ and series_of(c) in (series, over)), key=sort_key)
    captions.check_comparable(chosen)
    mixed = len(captions.sources(chosen)) > 1
    found: dict[tuple[str, int], dict[str, Cell]] = {}
    for cell, label in zip(chosen, slot_labels(chosen), strict=True):
        name = captions.series_title(label, cell["source"], mixed)
        found.setdefault((name, cell["seqlen"]), {})[series_of(cell)] = cell
    lines = []
    for (label, seqlen), both in found.items():
        if len(both) < 2:
            continue
        mine, rival = both[series], both[over]
        line = {"mask": label, "seqlen": seqlen, "series": series, "over": over, "status": "ok"}
        if not same_problem(mine, rival):
            line["status"] = "another mask"
        elif mine.ok and rival.ok:
            ratio = mine.speedup_over(rival)
            line |= {
                "ratio": ratio.value,
                "low": ratio.interval.low,
                "high": ratio.interval.high,
                "rounds": ratio.rounds,
                "sure": ratio.sure,
            }
        else:
            line["status"] = rival.status if mine.ok else mine.status
        lines.append(line)
    if not any("ratio" in line for line in lines):
        raise captions.FigureError(f"no mask and length where both {series} and {over} have figures ({pass_})")
    return pd.DataFrame(lines, columns=COLUMNS)


def draw(frame: pd.DataFrame, caption: str, *, title: str = "", simulated: bool = False) -> Figure:
    """The figure of :func:`data`'s frame. Colours are centred on 1 and logarithmic; ~ marks a ratio that is not sure."""
    masks = list(dict.fromkeys(frame["mask"]))
    lengths = sorted(set(frame["seqlen"]))
    grid = np.full((len(masks), len(lengths)), np.nan)
    words: dict[tuple[int, int], tuple[str, bool]] = {}
    for line in frame.to_dict("records"):
        spot = (masks.index(line["mask"]), lengths.index(line["seqlen"]))
        if math.isnan(line["ratio"]):
            words[spot] = (line["status"].replace("_", " "), False)
            continue
        grid[spot] = math.log2(line["ratio"])
        words[spot] = ("~" * (not line["sure"]) + style.times(line["ratio"]), True)
    reach = max(0.25, float(np.nanmax(np.abs(grid))))
    with style.context():
        figure = Figure(figsize=(max(5.4, 3.0 + 0.95 * len(lengths)), 1.7 + 0.34 * len(masks)))
        axes = figure.add_subplot()
        image = axes.pcolormesh(grid, cmap="PuOr_r", norm=TwoSlopeNorm(0.0, -reach, reach), edgecolors=style.PAPER, lw=1.5)
        for (row, column), (word, figured) in words.items():
            colour = readable_on(image.to_rgba(grid[row, column])) if figured else style.MUTED
            axes.text(column + 0.5, row + 0.5, word, ha="center", va="center", fontsize=8.5 if figured else 7, color=colour)
        axes.set_yticks(np.arange(len(masks)) + 0.5, [wrap_label(mask) for mask in masks])
        axes.set_xticks(np.arange(len(lengths)) + 0.5, [style.length_label(length) for length in lengths])
        axes.invert_yaxis()
        axes.tick_params(length=0)
        for side in axes.spines.values():
            side.set_visible(False)
        ticks = [math.log2(mark) for mark in (_FINE_MARKS if reach <= 1 else _COARSE_MARKS) if abs(math.log2(mark)) <= reach]
        bar = figure.colorbar(image, ax=axes, fraction=0.05, pad=0.02, aspect=24, ticks=ticks)
        bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{2**value:.3g}{style.TIMES}"))
        bar.outline.set_visible(False)
        bar.ax.tick_params(labelsize=7.5)
        figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")
        style.caption_below(figure, caption, watermark=simulated)
    return figure


def readable_on(rgba: Any) -> str:
    """Black or white, whichever stands out from the colour."""
    red, green, blue, _ = rgba
    return "#111111" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "#fefefe"


def note(frame: pd.DataFrame) -> str:
    """How the figure is read."""
    pair = frame.iloc[0]
    text = f"Time of {style.plain(pair['over'])} over time of {style.plain(pair['series'])}, median over paired rounds."
    unsure = (frame["ratio"].notna() & ~frame["sure"].eq(True)).any()
    return text + (f" ~ : the 95% interval holds 1, or fewer than {ROUNDS_TO_BE_SURE} rounds." if unsure else "")
