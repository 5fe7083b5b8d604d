"""What every chunk computes and needs: tiles of each class, their predicted time, units of columns.

Times are integers, so that every rank adds up the same numbers in any order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from context_parallel.grid import Grid, require
from context_parallel.needs import merged, needed_units
from masks.column_mask import BLOCK, ColumnMask
from masks.tiles import FULL, PARTIAL, class_of_tiles


@dataclass(frozen=True)
class Costs:
    """Predicted times, integers >= 0 of one unit of time, for one query head of one batch item.

    The defaults are picoseconds on an H200. ``full``, ``partial`` and ``row_tile`` are a least-squares fit (of relative
    errors) to the forward kernel's measured times of the 12 masks at 4K to 128K tokens, head dim 128, bf16, in
    ``results/summary.csv``: within 8% of all 48, within 3% of most. The transfers are those of one KV head a query head:
    512 bytes a token at 366 GB/s from a GPU of the same node (measured, copy engines over NVLink) and, assumed and not
    measured, at 50 GB/s across the network. With fewer KV heads than query heads divide them by the ratio.

    Args:
        full: a full 128x128 tile.
        partial: a partial one.
        row_tile: what a tile of 128 rows costs besides.
        near: receiving the keys and values of one token from the same node.
        far: the same from another node.
        hidden_eighths: how much of the shorter one of computing and receiving hides behind the longer, in eighths.

    Raises:
        PlanError: a number that is not an integer, or not in its range.
    """

    full: int = 12425
    partial: int = 15007
    row_tile: int = 18614
    near: int = 1398
    far: int = 10240
    hidden_eighths: int = 7

    def __post_init__(self) -> None:
        for name in ("full", "partial", "row_tile", "near", "far"):
            require(name, getattr(self, name), 0)
        require("hidden_eighths", self.hidden_eighths, 0, most=8)


@dataclass(frozen=True)
class Work:
    """The work of one mask on one grid.

    Args:
        grid: the chunks and units.
        costs: the prices.
        needs: bool ``[chunks, units]``.
        full, partial: int64 ``[chunks, units]``, tiles of needed units, summed over mask batch and mask heads.
        weights: int64 ``[chunks]``, predicted time of a chunk, mean over mask batch and mask heads.
    """

    grid: Grid
    costs: Costs
    needs: np.ndarray
    full: np.ndarray
    partial: np.ndarray
    weights: np.ndarray


def work_of(mask: ColumnMask, grid: Grid, costs: Costs | None = None) -> Work:
    """Tiles, needs and weights of a mask. O(tiles) time and bytes; the mask may lie on any device.

    Raises:
        PlanError: a mask of another sequence.
    """
    costs = costs or Costs()
    needs = needed_units(mask, grid)
    classes = class_of_tiles(mask.to("cpu")).flatten(0, 1).numpy()
    down, across = grid.chunk // BLOCK, grid.unit // BLOCK
    full, partial = (sum(merged(head == kind, down, across) for head in classes) * needs for kind in (FULL, PARTIAL))
    return Work(grid, costs, needs, full, partial, weights_of(full, partial, grid, costs, len(classes)))


def weights_of(full: np.ndarray, partial: np.ndarray, grid: Grid, costs: Costs, heads: int) -> np.ndarray:
    """Predicted time of every chunk, int64 ``[chunks]``, from its tiles over so many heads of all batch items."""
    rows = np.minimum(grid.seqlen - np.arange(grid.chunks, dtype=np.int64) * grid.chunk, grid.chunk)
    tiles = (costs.full * full.sum(1) + costs.partial * partial.sum(1)) // max(1, heads)
    return tiles + costs.row_tile * ((rows + BLOCK - 1) // BLOCK)
