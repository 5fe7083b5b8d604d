"""Which chunk of rows needs which unit of columns: exact, from the column mask, without a dense mask.

A chunk needs a unit when some row of it sees some column of it, in any batch item and mask head. The chunks that see nothing
of a column are those that its hidden rows cover whole: at most two runs of chunks, once runs that touch are taken as one. So
counting the covered columns of a unit takes a difference array and no loop over pairs.
"""

from __future__ import annotations

import numpy as np

from context_parallel.grid import Grid
from masks.column_mask import BLOCK, ColumnMask, tile_count
from masks.tiles import SKIPPED, class_of_tiles


def needed_units(mask: ColumnMask, grid: Grid) -> np.ndarray:
    """bool ``[chunks, units]``: some row of the chunk sees some column of the unit.

    Args:
        mask: of the grid's rows and columns, on any device (copied to the host).

    Raises:
        PlanError: a mask of another sequence.
    """
    grid.check(mask)
    hidden = np.stack([vector.cpu().numpy() for vector in mask.without_causal_flag().intervals()], axis=2)
    batch, heads = hidden.shape[:2]
    if mask.block_mask is None:
        needs = np.zeros((grid.chunks, grid.units), dtype=bool)
        for item in hidden.reshape(batch * heads, *hidden.shape[2:]):
            needs |= _seen(item, grid.seqlen, grid.chunk, grid.unit)
        return needs
    # A tile is needed when the bits keep it and the vectors leave something of it, so both are asked tile by tile.
    keep = mask.block_keep().cpu().numpy()
    tiles = np.zeros((tile_count(grid.seqlen),) * 2, dtype=bool)
    for item, head in np.ndindex(batch, heads):
        # Bits that belong to the same vectors count as one: all of them where the vectors are shared.
        bits = keep[item if batch > 1 and len(keep) > 1 else slice(None)].reshape(-1, *keep.shape[1:])
        bits = bits[:, head if heads > 1 and keep.shape[1] > 1 else slice(None)].reshape(-1, *keep.shape[2:])
        tiles |= _seen(hidden[item, head], grid.seqlen, BLOCK, BLOCK) & bits.any(0)
    return merged(tiles, grid.chunk // BLOCK, grid.unit // BLOCK) > 0


def visible_of_chunks(mask: ColumnMask, grid: Grid) -> np.ndarray:
    """int64 ``[chunks]``: pairs (row, column) that a chunk's rows see, over mask batch and heads.

    Exact from the vectors, in O(rows + columns). With a block mask tiles that are not skipped count whole.

    Args:
        mask: of the grid's rows and columns, on any device (copied to the host).
    """
    grid.check(mask)
    if mask.block_mask is not None:
        classes = class_of_tiles(mask.to("cpu")).flatten(0, 1).numpy() != SKIPPED
        seen: np.ndarray = merged(classes.sum(0), grid.chunk // BLOCK, classes.shape[2])[:, 0] * BLOCK**2
        return seen
    flat = mask.without_causal_flag()
    lts, lte, uts, ute = (vector.cpu().numpy().astype(np.int64).ravel() for vector in flat.intervals())
    rows = grid.seqlen
    steps = np.zeros(rows + 1, dtype=np.int64)
    steps[0] = len(lts)
    # Hidden by one run or the other: what both hide was taken off twice.
    for start, end, sign in ((lts, lte, -1), (uts, ute, -1), (np.maximum(lts, uts), np.minimum(lte, ute), 1)):
        start, end = start.clip(0, rows), end.clip(0, rows)
        some = start < end
        np.add.at(steps, start[some], sign)
        np.add.at(steps, end[some], -sign)
    return np.add.reduceat(steps.cumsum()[:rows], np.arange(0, rows, grid.chunk))


def merged(tiles: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """Sums of a map over blocks of ``rows`` by ``columns`` entries, int64; the last blocks may be short."""
    down = np.add.reduceat(tiles, np.arange(0, tiles.shape[0], rows), axis=0, dtype=np.int32)
    return np.add.reduceat(down, np.arange(0, tiles.shape[1], columns), axis=1, dtype=np.int64)


def _seen(hidden: np.ndarray, rows: int, chunk: int, unit: int) -> np.ndarray:
    """bool ``[chunks, units]`` of one mask head, from its two hidden runs a column, int32 ``[4, Sk]``."""
    lts, lte, uts, ute = hidden
    columns = lts.shape[0]
    chunks, units = tile_count(rows, chunk), tile_count(columns, unit)
    touch = (lts < lte) & (uts < ute) & (np.maximum(lts, uts) <= np.minimum(lte, ute))
    starts = np.concatenate([np.where(touch, np.minimum(lts, uts), lts), uts])
    ends = np.concatenate([np.where(touch, np.maximum(lte, ute), lte), np.where(touch, uts, ute)])
    first = (starts + np.int64(chunk - 1)) // chunk
    last = np.where(ends >= rows, chunks, ends // chunk)
    covers = first < last
    row_of_unit = np.tile(np.arange(columns, dtype=np.int64) // unit * (chunks + 1), 2)[covers]
    size = units * (chunks + 1)
    steps = np.bincount(row_of_unit + first[covers], minlength=size)
    steps -= np.bincount(row_of_unit + last[covers], minlength=size)
    covered = steps.reshape(units, chunks + 1)[:, :chunks].cumsum(axis=1)
    lengths = np.bincount(np.arange(columns) // unit, minlength=units)
    return (covered < lengths[:, None]).T
