"""Load-balance heat map: how long each rank computes over the mean of the ranks, mask by rank, a panel a strategy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from plots import captions, style
from plots.bars import wrap_label
from plots.cells import Cell, series_of, sort_key
from plots.heatmap import readable_on
from plots.ranks import by_rank
from plots.slots import slot_labels

COLUMNS = ["mask", "series", "rank", "comp_ms", "over_mean", "tiles", "recv_bytes"]
WRITTEN = 8
"""Up to so many ranks every field has its figure written in it."""


def able(cells: Sequence[Cell]) -> list[Cell]:
    """The cells whose ranks computed alone, with time to compare."""
    return [cell for cell in cells if cell.ok and sum(by_rank(cell, "comp_ms") or [0.0]) > 0]


def data(cells: Sequence[Cell]) -> pd.DataFrame:
    """One line a (mask, strategy, rank); the cells are of one length and pass.

    Raises:
        FigureError: no cell with times by rank, or cells that may not share a figure.
    """
    chosen = sorted(able(cells), key=sort_key)
    captions.check_comparable(chosen)
    mixed = len(captions.sources(chosen)) > 1
    lines = []
    for cell, label in zip(chosen, slot_labels(chosen), strict=True):
        spent = by_rank(cell, "comp_ms") or []
        tiles, received = (by_rank(cell, name) or [np.nan] * len(spent) for name in ("tiles", "recv_bytes"))
        for rank, time in enumerate(spent):
            lines.append(
                {
                    "mask": captions.series_title(label, cell["source"], mixed),
                    "series": series_of(cell),
                    "rank": rank,
                    "comp_ms": time,
                    "over_mean": time * len(spent) / sum(spent),
                    "tiles": tiles[rank],
                    "recv_bytes": received[rank],
                }
            )
    return pd.DataFrame(lines, columns=COLUMNS)


def draw(frame: pd.DataFrame, caption: str, *, title: str = "", simulated: bool = False) -> Figure:
    """The figure of :func:`data`'s frame. Colours are centred on the mean."""
    masks, series = list(dict.fromkeys(frame["mask"])), list(dict.fromkeys(frame["series"]))
    ranks = int(frame["rank"].max()) + 1
    reach = max(0.05, float((frame["over_mean"] - 1).abs().max()))
    with style.context():
        width = max(1.5, 0.42 * ranks)
        figure = Figure(figsize=(max(5.4, 2.2 + (width + 0.2) * len(series)), 1.9 + 0.34 * len(masks)))
        panels = figure.subplots(1, len(series), squeeze=False, sharey=True)[0]
        image = None
        for name, axes in zip(series, panels, strict=True):
            grid = np.full((len(masks), ranks), np.nan)
            for line in frame[frame["series"] == name].to_dict("records"):
                grid[masks.index(line["mask"]), line["rank"]] = line["over_mean"]
            norm = TwoSlopeNorm(1.0, 1 - reach, 1 + reach)
            image = axes.pcolormesh(grid, cmap="PuOr_r", norm=norm, edgecolors=style.PAPER, lw=1.0)
            for row, column in np.argwhere(~np.isnan(grid)) if ranks <= WRITTEN else ():
                value = grid[row, column]
                colour = readable_on(image.to_rgba(value))
                axes.text(column + 0.5, row + 0.5, f"{value:.2f}", ha="center", va="center", fontsize=6.5, color=colour)
            axes.set_title(wrap_label(style.title_of(name)), fontsize=7.5)
            axes.set_xticks(np.arange(ranks) + 0.5, [str(rank) for rank in range(ranks)], fontsize=7)
            axes.set_xlabel("rank", fontsize=7.5)
            axes.set_yticks(np.arange(len(masks)) + 0.5, [wrap_label(mask) for mask in masks])
            axes.tick_params(length=0)
            for side in axes.spines.values():
                side.set_visible(False)
        panels[0].invert_yaxis()
        assert image is not None
        bar = figure.colorbar(image, ax=list(panels), fraction=0.04, pad=0.02, aspect=24)
        bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.2f}{style.TIMES}"))
        bar.outline.set_visible(False)
        bar.ax.tick_params(labelsize=7.5)
        figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")
        style.caption_below(figure, caption, watermark=simulated)
    return figure


def note(frame: pd.DataFrame) -> str:
    """How the figure is read."""
    return (
        "Time that a rank computes, with all keys there already, over the mean of the ranks. "
        "Strategies named after other projects are re-implementations."
    )
