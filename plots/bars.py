"""Grouped bars: TFLOP/s of every competitor on every mask, at one length and pass.

The number above a group is how many times as fast the kernel in question is as the best of the others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from plots import captions, style
from plots.cells import Cell, series_of, sort_key
from plots.slots import same_problem, slot_labels

COLUMNS = [
    "mask", "series", "kernel", "source", "status", "tflops", "low", "high", "median_ms", "rival", "ratio", "ratio_low",
    "ratio_high",
    "sure",
]  # fmt: skip

OURS = ("fm3", "reference")
"""Whose ratio over the best competitor is written: the first of these that the rows hold, else the fastest's."""


def data(cells: Sequence[Cell], seqlen: int, pass_: str, convention: str = "exact") -> pd.DataFrame:
    """One line a (mask, series): figures with their interval, and for one series a mask the ratio over the best of the rest.

    Args:
        cells: of one machine and protocol; other lengths and passes are left out.
        seqlen: tokens.
        pass_: forward, backward or both.
        convention: a key of ``cells.CONVENTIONS``.

    Returns:
        A frame with COLUMNS; NaN where a cell has no figures.

    Raises:
        FigureError: no such cells, or cells that may not share a figure.
    """
    chosen = sorted((cell for cell in cells if cell["seqlen"] == seqlen and cell["pass"] == pass_), key=sort_key)
    captions.check_comparable(chosen)
    labels = slot_labels(chosen)
    mixed = len(captions.sources(chosen)) > 1
    subject = subject_of(chosen)
    lines = []
    for label in dict.fromkeys(labels):
        group = [cell for cell, name in zip(chosen, labels, strict=True) if name == label]
        judged = judge(group, subject, convention)
        for cell in sorted(group, key=lambda c: (style.rank(c["kernel"]), series_of(c), c["source"])):
            low, high = cell.tflops_interval(convention) if cell.ok else (math.nan, math.nan)
            line = {
                "mask": label,
                "series": captions.series_title(series_of(cell), cell["source"], mixed),
                "kernel": cell["kernel"],
                "source": cell["source"],
                "status": cell.status,
                "tflops": cell.tflops(convention) if cell.ok else math.nan,
                "low": low,
                "high": high,
                "median_ms": cell.median_ms if cell.ok else math.nan,
            }
            if judged is not None and cell is judged[0]:
                ratio = cell.speedup_over(judged[1])
                line |= {"rival": series_of(judged[1]), "ratio": ratio.value}
                line |= {"ratio_low": ratio.interval.low, "ratio_high": ratio.interval.high, "sure": ratio.sure}
            lines.append(line)
    return pd.DataFrame(lines, columns=COLUMNS)


def subject_of(cells: Sequence[Cell]) -> str | None:
    """The kernel whose ratio is asked for: the first of OURS with figures; None: the fastest of each mask."""
    present = {cell["kernel"] for cell in cells if cell.ok}
    return next((kernel for kernel in OURS if kernel in present), None)


def judge(group: Sequence[Cell], subject: str | None, convention: str = "exact") -> tuple[Cell, Cell] | None:
    """The cell whose ratio is written and the best of the others; None when there are not two.

    Only times of the very same problem are compared.
    """
    good = sorted((cell for cell in group if cell.ok), key=lambda c: (-c.tflops(convention), series_of(c)))
    own = next((cell for cell in good if subject in (None, cell["kernel"])), None)
    if own is None:
        return None
    rest = [cell for cell in good if cell is not own and cell["kernel"] != subject and same_problem(own, cell)]
    return (own, rest[0]) if rest else None


def draw(frame: pd.DataFrame, caption: str, *, title: str = "", simulated: bool = False) -> Figure:
    """The figure of :func:`data`'s frame."""
    masks = list(dict.fromkeys(frame["mask"]))
    series = sorted(set(zip(frame["series"], frame["kernel"], strict=True)), key=lambda s: (style.rank(s[1]), s[0]))
    largest = float(frame["high"].fillna(frame["tflops"]).max())
    scale = style.scale_for(largest)
    top = largest * scale.factor if largest > 0 else 1.0
    most = int(frame.groupby("mask").size().max())
    width = 0.84 / most
    with style.context():
        figure = Figure(figsize=(max(5.4, 1.2 + len(masks) * max(0.72, 0.14 * most)), 4.4))
        axes = figure.add_subplot()
        # Only the competitors asked about a mask take room in its group.
        asked = {mask: list(frame.loc[frame["mask"] == mask, "series"]) for mask in masks}
        handles = []
        for name, kernel in series:
            look = style.look_of(name, kernel)
            here = frame[frame["series"] == name]
            spots = [masks.index(m) + (asked[m].index(name) - (len(asked[m]) - 1) / 2) * width for m in here["mask"]]
            heights = here["tflops"].to_numpy() * scale.factor
            handles.append(
                axes.bar(
                    spots, heights, width * 0.92, color=look.colour, hatch=look.hatch, edgecolor=style.PAPER, linewidth=0.0
                )
            )
            for spot, (_, line) in zip(spots, here.iterrows(), strict=True):
                if not math.isnan(line["low"]):
                    bounds = [line["low"] * scale.factor, line["high"] * scale.factor]
                    axes.plot([spot, spot], bounds, color=style.INK, linewidth=1.1, solid_capstyle="butt")
                if line["status"] != "ok":
                    word = str(line["status"]).replace("_", " ")
                    axes.text(spot, top * 0.012, word, rotation=90, ha="center", va="bottom", fontsize=6.5, color=style.MUTED)
        for i, mask in enumerate(masks):
            group = frame[frame["mask"] == mask]
            told = group[group["ratio"].notna()]
            if len(told):
                line = told.iloc[0]
                height = group["high"].fillna(group["tflops"]).max() * scale.factor
                weight = "bold" if line["ratio"] > 1.0 and line["sure"] else "normal"
                text = style.times(line["ratio"])
                axes.text(i, height + top * 0.02, text, ha="center", va="bottom", fontsize=8.5, fontweight=weight)
        slant: dict[str, Any] = {"rotation": 35, "ha": "right", "rotation_mode": "anchor"} if len(masks) > 3 else {}
        axes.set_xticks(range(len(masks)), [wrap_label(mask) for mask in masks], **slant)
        axes.tick_params(axis="x", length=0)
        axes.set_xlim(-0.6, len(masks) - 0.4)
        axes.set_ylim(0, top * 1.12)
        axes.set_ylabel(scale.unit)
        axes.yaxis.set_major_formatter(style.formatter())
        axes.grid(axis="y")
        axes.spines["left"].set_visible(False)
        axes.tick_params(axis="y", length=0)
        style.title_and_legend(figure, title, handles, [style.title_of(name) for name, _ in series])
        style.caption_below(figure, caption, watermark=simulated)
    return figure


def wrap_label(mask: str) -> str:
    """A mask's label for an axis: spaces for underscores, whatever tells variants apart kept."""
    return style.plain(mask.replace("_", " "), 34)


def note(frame: pd.DataFrame) -> str:
    """One sentence that says what the number above a group is."""
    told = frame[frame["ratio"].notna()]
    if not len(told):
        return ""
    names = sorted(set(told["series"]))
    interval = captions.interval_name(frame["source"])
    who = style.plain(names[0], 40) if len(names) == 1 else "the fastest"
    return f"Above each group: {who} over the best of the others, paired by round. Lines: {interval}."
