"""Pictures of masks: every element visible or hidden, over the class of the tile that it lies in.

Element by element, so for small lengths (up to a few thousand); builds no masks for measurements.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from masks.column_mask import BLOCK, ColumnMask
from masks.tiles import FULL, PARTIAL, SKIPPED, class_of_tiles
from plots import style
from plots.captions import FigureError

COLUMNS = ["mask", "seqlen_q", "seqlen_k", "tile", "skipped", "partial", "full", "density", "tile_density"]

LARGEST = 4096
"""Longest side that is drawn: a picture has no more pixels to show."""

# (tile class, visible) to colour. A hidden element of a full tile cannot be; red would show the mistake.
_COLOURS = {
    (SKIPPED, 0): "#EEF1F4",
    (SKIPPED, 1): "#FF0000",
    (PARTIAL, 0): "#FBE3C0",
    (PARTIAL, 1): "#E69F00",
    (FULL, 0): "#FF0000",
    (FULL, 1): "#0072B2",
}


def elements(mask: ColumnMask, tile: int = BLOCK, batch: int = 0, head: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Visibility bool ``[Sq, Sk]`` and tile class uint8 ``[ceil(Sq/tile), ceil(Sk/tile)]`` of one mask head.

    A mask with a block mask has tiles of BLOCK, whatever ``tile`` says.

    Raises:
        FigureError: the mask is empty or larger than LARGEST, or has no such batch item or head.
    """
    sides = (mask.seqlen_q, mask.seqlen_k)
    if min(sides) < 1 or max(sides) > LARGEST:
        raise FigureError(f"a mask of {sides[0]} x {sides[1]} cannot be drawn; sides from 1 to {LARGEST}")
    if not (0 <= batch < mask.batch and 0 <= head < mask.heads):
        raise FigureError(f"no mask for batch item {batch}, head {head}; it has {mask.batch} items, {mask.heads} heads")
    seen = mask.visible(torch.arange(sides[0]), torch.arange(sides[1])).expand(mask.batch, mask.heads, -1, -1)
    side = tile_of(mask, tile)
    classes = class_of_tiles(mask, side, side).expand(mask.batch, mask.heads, -1, -1)
    return seen[batch, head].cpu().numpy(), classes[batch, head].cpu().numpy()


def tile_of(mask: ColumnMask, tile: int) -> int:
    """Side of the tiles to draw: a block mask's are fixed."""
    return tile if mask.block_mask is None else BLOCK


def data(masks: Mapping[str, ColumnMask], tile: int = BLOCK) -> pd.DataFrame:
    """One line a mask: counts of its tiles by class and both densities, of its first batch item and head."""
    lines = []
    for name, mask in masks.items():
        seen, classes = elements(mask, tile)
        count = {kind: int((classes == kind).sum()) for kind in (SKIPPED, PARTIAL, FULL)}
        lines.append(
            {
                "mask": name,
                "seqlen_q": mask.seqlen_q,
                "seqlen_k": mask.seqlen_k,
                "tile": tile_of(mask, tile),
                "skipped": count[SKIPPED],
                "partial": count[PARTIAL],
                "full": count[FULL],
                "density": float(seen.mean()),
                "tile_density": (count[PARTIAL] + count[FULL]) / classes.size,
            }
        )
    return pd.DataFrame(lines, columns=COLUMNS)


def draw(mask: ColumnMask, *, tile: int = BLOCK, title: str = "", batch: int = 0, head: int = 0) -> Figure:
    """One mask with its legend."""
    with style.context():
        figure = Figure(figsize=(4.6, 5.2))
        axes = figure.add_subplot()
        _paint(axes, mask, tile, batch, head)
        axes.set_xlabel("key column")
        axes.set_ylabel("query row")
        axes.set_xticks([0, mask.seqlen_k])
        axes.set_yticks([0, mask.seqlen_q])
        figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")
        figure.legend(handles=legend(), loc="outside lower left", ncols=2, fontsize=8)
    return figure


def draw_gallery(
    masks: Mapping[str, ColumnMask], caption: str, *, tile: int = BLOCK, title: str = "", across: int = 5
) -> Figure:
    """Many masks in one figure, one panel each, with one legend.

    Raises:
        FigureError: no masks.
    """
    if not masks:
        raise FigureError("no masks to draw")
    across = min(across, len(masks))
    down = math.ceil(len(masks) / across)
    with style.context():
        figure = Figure(figsize=(0.2 + 2.0 * across, 1.1 + 2.25 * down))
        panels = figure.subplots(down, across, squeeze=False)
        for panel, (name, mask) in zip(panels.flat, masks.items(), strict=False):
            _paint(panel, mask, tile, 0, 0)
            panel.set_title(style.plain(name.replace("_", " "), 30), fontsize=9)
        for panel in panels.flat[len(masks) :]:
            panel.set_axis_off()
        handles = legend()
        style.title_and_legend(figure, title, handles, [str(handle.get_label()) for handle in handles])
        style.caption_below(figure, caption)
    return figure


def legend() -> list[Patch]:
    """What the colours mean."""
    names = {
        (FULL, 1): "full tile",
        (PARTIAL, 1): "partial tile, visible",
        (PARTIAL, 0): "partial tile, hidden",
        (SKIPPED, 0): "skipped tile",
    }
    return [Patch(facecolor=_COLOURS[key], edgecolor=style.GRID, label=name) for key, name in names.items()]


def picture(seen: np.ndarray, classes: np.ndarray, tile: int) -> np.ndarray:
    """uint8 ``[Sq, Sk, 3]``: the colour of every element."""
    rows, columns = seen.shape
    wide = classes.repeat(tile, axis=0).repeat(tile, axis=1)[:rows, :columns]
    table = np.zeros((3, 2, 3), dtype=np.uint8)
    for (kind, visible), colour in _COLOURS.items():
        table[kind, visible] = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    return table[wide, seen.astype(np.uint8)]


def _paint(axes: Axes, mask: ColumnMask, tile: int, batch: int, head: int) -> None:
    seen, classes = elements(mask, tile, batch, head)
    tile = tile_of(mask, tile)
    rows, columns = seen.shape
    axes.imshow(picture(seen, classes, tile), extent=(0, columns, rows, 0), interpolation="nearest", aspect="equal")
    for edge in range(tile, columns, tile):
        axes.axvline(edge, color=style.PAPER, linewidth=0.35)
    for edge in range(tile, rows, tile):
        axes.axhline(edge, color=style.PAPER, linewidth=0.35)
    axes.set_xticks([])
    axes.set_yticks([])
    for side in axes.spines.values():
        side.set_visible(True)
        side.set_color(style.GRID)
