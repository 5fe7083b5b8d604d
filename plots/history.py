"""History: what every case took from commit to commit, one panel a mask and one line a kernel, with notes where it steps.

Commits stand in the order in which they were first measured. What the rules of ``plots.cells`` say about one commit's rows
holds for each of them; a measurement by an older timing method, or of a mask with other content, is left out.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.figure import Figure

from harness.rows import Row
from plots import captions, style
from plots.bars import wrap_label
from plots.cells import Cell, cells_of, series_of, sort_key
from plots.changepoints import ENOUGH, steps
from plots.slots import slot_labels

COLUMNS = [
    "mask", "series", "kernel", "source", "commit", "place", "status", "median_ms", "low_ms", "high_ms", "rounds", "card",
    "step", "cards_differ",
]  # fmt: skip
"""``place``: of the commit, from 0. ``step``: new level of the median over the old one, at the first commit of the new one.
``cards_differ``: the cards are known, and none measured on both sides of it."""

_ACROSS = 4
_LABELS = 10
"""Most commits that are named under a panel."""

Commit = tuple[str, tuple[Cell, ...]]
"""A commit as captions name it, and its cells."""


def commits(rows: Iterable[Row]) -> list[Commit]:
    """The commits that rows are of, oldest measurement first. A tree with changes is a commit of its own, named with a +."""
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        groups[captions.commit(row)].append(row)
    ordered = sorted(groups, key=lambda name: (min(row["time"] for row in groups[name]), name))
    return [(name, tuple(cells_of(groups[name]))) for name in ordered]


def data(past: Sequence[Commit], seqlen: int, pass_: str) -> pd.DataFrame:
    """One line a (mask, series, commit) of one length and pass, for the masks that some series has two figures of.

    Args:
        past: of one machine and protocol, see :func:`commits`.

    Returns:
        A frame with COLUMNS, empty when nothing was measured twice; NaN where a case has no figures.

    Raises:
        FigureError: cells that may not share a figure.
    """
    places = {name: place for place, (name, _) in enumerate(past)}
    found: dict[tuple[str, str, str], list[tuple[str, Cell]]] = defaultdict(list)
    for name, cells in past:
        for cell in cells:
            if (cell["seqlen"], cell["pass"]) == (seqlen, pass_):
                found[(series_of(cell), cell["case_id"], cell["source"])].append((name, cell))
    newest = sorted((points[-1][1] for points in found.values()), key=sort_key)
    if not newest:
        return pd.DataFrame(columns=COLUMNS)
    captions.check_comparable(newest)
    mixed = len(captions.sources(newest)) > 1
    lines: list[dict[str, Any]] = []
    for last, label in zip(newest, slot_labels(newest), strict=True):
        points = found[(series_of(last), last["case_id"], last["source"])]
        points = [(name, cell) for name, cell in points if _same_measurement(cell, last)]
        title = captions.series_title(series_of(last), last["source"], mixed)
        lines += _series(points, places, {"mask": label, "series": title, "kernel": last["kernel"], "source": last["source"]})
    frame = pd.DataFrame(lines, columns=COLUMNS)
    good = frame[frame["status"] == "ok"]
    again = good.loc[good.duplicated(["mask", "series"]), "mask"]
    return frame[frame["mask"].isin(again)].reset_index(drop=True)


def _same_measurement(cell: Cell, last: Cell) -> bool:
    digests = (cell["mask_digest"], last["mask_digest"])
    return cell["timing_version"] == last["timing_version"] and (None in digests or digests[0] == digests[1])


def _series(points: Sequence[tuple[str, Cell]], places: dict[str, int], common: dict[str, str]) -> list[dict[str, Any]]:
    good = [(name, cell) for name, cell in points if cell.ok]
    found = {good[step.first][0]: step for step in steps([cell.median_ms for _, cell in good])}
    lines = []
    for name, cell in points:
        line: dict[str, Any] = common | {"commit": name, "place": places[name], "status": cell.status}
        if cell.ok:
            line |= {"median_ms": cell.median_ms, "low_ms": cell.interval_ms.low, "high_ms": cell.interval_ms.high}
            line |= {"rounds": len(cell.rows), "card": " ".join(sorted(_cards([cell])))}
        if name in found:
            index = found[name].first
            sides = [_cards([cell for _, cell in part]) for part in (good[:index], good[index:])]
            line |= {"step": found[name].ratio, "cards_differ": all(sides) and not sides[0] & sides[1]}
        lines.append(line)
    return lines


def _cards(cells: Iterable[Cell]) -> set[str]:
    return {style.plain(row["gpu_hash"], 12) for cell in cells for row in cell.rows if row["gpu_hash"] is not None}


def draw(frame: pd.DataFrame, caption: str, *, title: str = "", simulated: bool = False) -> Figure:
    """The figure of :func:`data`'s frame: every panel has its own scale of milliseconds; a dashed line marks a step."""
    masks = list(dict.fromkeys(frame["mask"]))
    names = dict(sorted(set(zip(frame["place"], frame["commit"], strict=True))))
    spots = {place: spot for spot, place in enumerate(names)}
    series = sorted(set(zip(frame["series"], frame["kernel"], strict=True)), key=lambda s: (style.rank(s[1]), s[0]))
    across = min(_ACROSS, len(masks))
    down = math.ceil(len(masks) / across)
    with style.context():
        figure = Figure(figsize=(max(6.2, 0.6 + 2.6 * across), 1.9 + 2.0 * down))
        panels = figure.subplots(down, across, squeeze=False, sharex=True)
        handles: dict[str, Artist] = {}
        for panel, mask in zip(panels.flat, masks, strict=False):
            for name, kernel in series:
                mine = frame[(frame["mask"] == mask) & (frame["series"] == name)].sort_values("place")
                if len(mine):
                    handles.setdefault(style.title_of(name), _line(panel, mine, spots, style.look(kernel)))
            low, high = panel.get_ylim()
            panel.set_ylim(min(low, 0.9 * high), max(high, low / 0.9))  # a percent of noise is not a cliff
            panel.set_title(wrap_label(mask), fontsize=9)
            panel.grid(axis="y")
            panel.yaxis.set_major_formatter(style.formatter())
        for panel in panels.flat[len(masks) :]:
            panel.set_visible(False)
        every = math.ceil(len(names) / _LABELS)
        shown = [(spot, name) for spot, name in enumerate(names.values()) if spot % every == 0]
        panels[0][0].set_xticks([spot for spot, _ in shown], [name[:8] + "+" * name.endswith("+") for _, name in shown])
        panels[0][0].set_xlim(-0.4, len(names) - 0.6)
        for column in range(across):  # the lowest visible panel of a column carries the commits
            lowest = max(row for row in range(down) if row * across + column < len(masks))
            panels[lowest][column].tick_params(axis="x", labelbottom=True, labelrotation=60, labelsize=7.5)
        figure.supylabel("ms", fontsize=9)
        style.title_and_legend(figure, title, list(handles.values()), list(handles))
        style.caption_below(figure, caption, watermark=simulated)
    return figure


def _line(panel: Any, mine: pd.DataFrame, spots: dict[int, int], look: style.Look) -> Artist:
    good = mine[mine["status"] == "ok"]
    where = [spots[place] for place in good["place"]]
    (line,) = panel.plot(
        where, good["median_ms"], color=look.colour, marker=look.marker, markersize=4.5, linewidth=1.4, markeredgewidth=0.0
    )
    panel.vlines(where, good["low_ms"], good["high_ms"], color=look.colour, linewidth=2.4, alpha=0.5)
    for spot, (_, point) in zip(where, good.iterrows(), strict=True):
        if not math.isnan(point["step"]):
            panel.axvline(spot - 0.5, color=look.colour, linewidth=0.9, linestyle=(0, (3, 2)))
            panel.annotate(
                change(point["step"]), (spot - 0.5, 1), xycoords=("data", "axes fraction"), fontsize=7, color=look.colour,
                ha="right", va="top", xytext=(-2, -1), textcoords="offset points",
            )  # fmt: skip
    failed = mine[mine["status"] != "ok"]
    crosses = [spots[place] for place in failed["place"]]
    panel.plot(crosses, [0.04] * len(crosses), "x", color=look.colour, markersize=4.5, transform=panel.get_xaxis_transform())
    return line


def change(ratio: float) -> str:
    """A step of the median in words: +3.1% is slower."""
    return f"{100 * (ratio - 1):+.1f}%"


def notes(frame: pd.DataFrame) -> list[str]:
    """One sentence a step: which kernel and mask, from which commit on, by how much, and whether the card changed too."""
    found = []
    for line in frame[frame["step"].notna()].to_dict("records"):
        ratio = line["step"]
        what = f"{style.title_of(line['series'])} on {wrap_label(line['mask'])}"
        text = f"{what}: {change(ratio)} ({'slower' if ratio > 1 else 'faster'}) from {line['commit']} on"
        found.append(f"{text}, and on other cards from there on." if line["cards_differ"] is True else f"{text}.")
    return found


def note(frame: pd.DataFrame) -> str:
    """How the figure is read, and a line a step."""
    text = f"Bars: {captions.interval_name(frame['source'])}. Commits in the order in which they were first measured."
    if frame["commit"].nunique() < ENOUGH:
        return f"{text} Steps are looked for from {ENOUGH} commits on."
    return "\n".join([text, *notes(frame)])
