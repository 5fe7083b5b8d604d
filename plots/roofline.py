"""Roofline: throughput against operations per byte, under what the card's matrix units and its memory allow.

Operations are those of the visible pairs. Bytes are assumed, not measured: every tensor of the call moved once between
memory and chip (:func:`least_bytes`), the mask's vectors left out (16 bytes a column at most). A kernel that reads keys
again moves more, so a point lies no further right than it is drawn. Roofs are the data sheets', at clocks that a
power-limited card does not hold.

The model: Williams, Waterman and Patterson, Roofline (Communications of the ACM 52:4, 2009).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from plots import captions, style
from plots.cells import Cell, series_of, sort_key
from plots.slots import slot_labels

COLUMNS = ["mask", "series", "kernel", "source", "seqlen", "flops_per_byte", "tflops", "low", "high", "roof", "share"]
"""``roof``: TFLOP/s that the card allows at this intensity. ``share``: of it that is reached."""

_ELEMENT_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
_LSE_BYTES = 4


class Roof(NamedTuple):
    """``tflops``: dense peak of 16-bit matrix products. ``terabytes``: memory bandwidth, TB/s."""

    tflops: float
    terabytes: float

    def at(self, flops_per_byte: float) -> float:
        """TFLOP/s that are possible at this intensity."""
        return min(self.tflops, self.terabytes * flops_per_byte)


ROOFS = {
    "NVIDIA H100 80GB HBM3": Roof(989.0, 3.35),
    "NVIDIA H200": Roof(989.0, 4.8),
}
"""NVIDIA H100 and H200 Tensor Core GPU data sheets, SXM columns; dense is half of what they print with sparsity."""


def roof_of(cells: Sequence[Cell]) -> Roof | None:
    """The roof of the machine of one setting; None: unknown, not of 16-bit elements, or ranks that share a sequence."""
    one = cells[0]
    known = one["device"] == "cuda" and one["dtype"] in ("bfloat16", "float16") and one["cp_degree"] == 1
    return ROOFS.get(one["gpu"]) if known else None


def least_bytes(cell: Cell) -> float:
    """Bytes of one call when every tensor is moved once.

    Forward: q, k, v in; out and float32 LSE out. Backward: q, k, v, out, dout and LSE in; dq, dk, dv out.
    """
    size = _ELEMENT_BYTES[cell["dtype"]] * cell["batch"] * cell["seqlen"] * cell["head_dim"]
    rows, columns = size * cell["heads"], size * cell["kv_heads"]
    lse = _LSE_BYTES * cell["batch"] * cell["seqlen"] * cell["heads"]
    forward, backward = 2 * rows + 2 * columns + lse, 4 * rows + 4 * columns + lse
    return float({"forward": forward, "backward": backward, "both": forward + backward}[cell["pass"]])


def data(cells: Sequence[Cell], pass_: str) -> pd.DataFrame:
    """One line a case with figures, of one pass.

    Raises:
        FigureError: no such cells, cells that may not share a figure, or a machine without a known roof.
    """
    chosen = sorted((cell for cell in cells if cell["pass"] == pass_), key=sort_key)
    captions.check_comparable(chosen)
    roof = roof_of(chosen)
    if roof is None:
        raise captions.FigureError(f"no roof is known for {style.plain(chosen[0]['gpu'])}; known: {', '.join(ROOFS)}")
    mixed = len(captions.sources(chosen)) > 1
    lines: list[dict[str, Any]] = []
    for cell, label in zip(chosen, slot_labels(chosen), strict=True):
        if not cell.ok:
            continue
        intensity = float(cell["flops"]) / least_bytes(cell)
        low, high = cell.tflops_interval()
        lines.append(
            {
                "mask": label,
                "series": captions.series_title(series_of(cell), cell["source"], mixed),
                "kernel": cell["kernel"],
                "source": cell["source"],
                "seqlen": cell["seqlen"],
                "flops_per_byte": intensity,
                "tflops": cell.tflops(),
                "low": low,
                "high": high,
                "roof": roof.at(intensity),
                "share": cell.tflops() / roof.at(intensity),
            }
        )
    return pd.DataFrame(lines, columns=COLUMNS)


def draw(frame: pd.DataFrame, caption: str, *, title: str = "", simulated: bool = False) -> Figure:
    """The figure of :func:`data`'s frame: a panel a length, a point a mask and kernel, the roof above them."""
    lengths = sorted(set(frame["seqlen"]))
    series = sorted(set(zip(frame["series"], frame["kernel"], strict=True)), key=lambda s: (style.rank(s[1]), s[0]))
    across = np.geomspace(frame["flops_per_byte"].min() / 1.6, frame["flops_per_byte"].max() * 1.6, 200)
    roof = _roof(frame)
    with style.context():
        figure = Figure(figsize=(max(6.2, 0.6 + 2.9 * len(lengths)), 4.2))
        panels = figure.subplots(1, len(lengths), squeeze=False, sharex=True, sharey=True)[0]
        handles: dict[str, Artist] = {}
        for panel, seqlen in zip(panels, lengths, strict=True):
            panel.plot(across, [roof.at(x) for x in across], color=style.INK, linewidth=1.2)
            for name, kernel in series:
                mine = frame[(frame["seqlen"] == seqlen) & (frame["series"] == name)]
                look = style.look(kernel)
                (points,) = panel.plot(
                    mine["flops_per_byte"], mine["tflops"], linestyle="", marker=look.marker, color=look.colour, markersize=5,
                    markeredgewidth=0.0, alpha=0.85,
                )  # fmt: skip
                handles.setdefault(style.title_of(name), points)
            panel.set_title(f"{style.length_label(seqlen)} tokens", fontsize=9)
            panel.grid(axis="both")
        first = panels[0]
        first.set_xscale("log")
        first.set_yscale("log")
        ticks = [2.0**power for power in range(20) if across[0] <= 2.0**power <= across[-1]]
        first.set_xticks(ticks[:: max(1, len(ticks) // 5)], [f"{tick:g}" for tick in ticks[:: max(1, len(ticks) // 5)]])
        heights = [mark for mark in (10, 20, 50, 100, 200, 500, 1000) if frame["tflops"].min() / 2 <= mark]
        first.set_yticks(heights, [str(height) for height in heights])
        for axis in (first.xaxis, first.yaxis):
            axis.set_minor_locator(NullLocator())
        first.set_ylim(frame["tflops"].min() / 1.5, roof.tflops * 1.25)
        figure.supylabel("TFLOP/s", fontsize=9)
        first.set_xlabel("operations a byte")
        style.title_and_legend(figure, title, list(handles.values()), list(handles))
        style.caption_below(figure, caption, watermark=simulated)
    return figure


def _roof(frame: pd.DataFrame) -> Roof:
    """The roof that the lines stand under: the known one that gives all of theirs."""
    points = list(zip(frame["flops_per_byte"], frame["roof"], strict=True))
    return next(roof for roof in ROOFS.values() if all(np.isclose(roof.at(x), y) for x, y in points))


def note(cells: Sequence[Cell], frame: pd.DataFrame) -> str:
    """The roof, what is assumed of the bytes, and the share of the roof that each series reaches."""
    roof = roof_of(cells)
    assert roof is not None  # `data` refuses a machine without one
    reached = [
        f"{style.title_of(str(name))} {100 * mine['share'].min():.0f} to {100 * mine['share'].max():.0f}%"
        for name, mine in frame.groupby("series", sort=False)
    ]
    return (
        f"Roof: {roof.tflops:g} TFLOP/s and {roof.terabytes:g} TB/s, the data sheet's. Bytes are assumed: every tensor moved "
        f"once, no mask. Of the roof reached: {', '.join(reached)}."
    )
