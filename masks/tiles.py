"""Tiles of a column mask: classes, counts, exact visible pairs and densities.

Everything that only counts works on per-column-block minima and maxima and closed forms over at most three row
intervals: O(Sk) memory, no scan over tiles. ``class_of_tiles`` alone returns the whole map, one byte a tile.
Classification follows the rule of the papers: *skipped* is exact (every element hidden by one cause), *full* is
conservative (a full tile may be called partial, never the reverse).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from masks.column_mask import BLOCK, ColumnMask, MaskError, tile_count

SKIPPED, PARTIAL, FULL = 0, 1, 2

# Elements of scratch that the chunked loops below may hold at once.
_CHUNK = 1 << 24


class TileCounts(NamedTuple):
    """Tiles of each class, summed over mask batch and mask heads."""

    skipped: int
    partial: int
    full: int

    @property
    def total(self) -> int:
        """All tiles."""
        return self.skipped + self.partial + self.full


class _Thresholds(NamedTuple):
    """Row-tile indices at which the class of a column block changes, int64 ``[B, Hm, C]`` each, R = row tiles.

    Skipped tiles are ``[lower_from, lower_to)``, ``[upper_from, upper_to)`` and ``[0, diagonal)``. A full tile lies
    outside both hulls (``< lower_clear or >= lower_past``, ``< upper_clear or >= upper_past``) and ``>= below``.
    """

    lower_from: Tensor
    lower_to: Tensor
    upper_from: Tensor
    upper_to: Tensor
    diagonal: Tensor
    lower_clear: Tensor
    lower_past: Tensor
    upper_clear: Tensor
    upper_past: Tensor
    below: Tensor


def column_block_bounds(mask: ColumnMask, tile_k: int = BLOCK) -> dict[str, tuple[Tensor, Tensor]]:
    """Minimum and maximum of each vector over every block of ``tile_k`` columns.

    Returns:
        ``{"lts": (min, max), "lte": ..., "uts": ..., "ute": ...}``, int32 ``[B, Hm, ceil(Sk/tile_k)]``. An empty
        interval counts as (Sq, 0), that is as start = +inf and end = -inf.
    """
    bounds = {}
    for name, vector in mask.intervals()._asdict().items():
        # The short last block repeats its last column: minima and maxima stay those of the real columns.
        missing = -mask.seqlen_k % tile_k
        padded = torch.cat([vector, vector[..., -1:].expand(-1, -1, missing)], dim=-1)
        blocks = padded.view(*vector.shape[:2], tile_count(mask.seqlen_k, tile_k), tile_k)
        bounds[name] = (blocks.amin(-1), blocks.amax(-1))
    return bounds


def _thresholds(mask: ColumnMask, tile_q: int, tile_k: int) -> _Thresholds:
    bounds = column_block_bounds(mask, tile_k)
    rows, row_tiles = mask.seqlen_q, tile_count(mask.seqlen_q, tile_q)

    def first_from(bound: Tensor) -> Tensor:
        """First row tile that starts at or after ``bound``."""
        return ((bound.long() + tile_q - 1) // tile_q).clamp(0, row_tiles)

    def tiles_up_to(bound: Tensor) -> Tensor:
        """Row tiles that end at or before ``bound``; the short last tile ends at ``rows``."""
        return torch.where(bound >= rows, row_tiles, bound.long() // tile_q)

    (lts_min, lts_max), (lte_min, lte_max) = bounds["lts"], bounds["lte"]
    (uts_min, uts_max), (ute_min, ute_max) = bounds["uts"], bounds["ute"]
    starts = torch.arange(0, mask.seqlen_k, tile_k, device=mask.device)
    ends = (starts + tile_k).clamp(max=mask.seqlen_k)
    if mask.causal:
        # Skipped while the tile's last row lies above the block's first column; cut until its first row reaches the last.
        diagonal = tiles_up_to((starts - mask.diagonal).clamp(0, rows))
        below = first_from((ends - 1 - mask.diagonal).clamp(min=0))
    else:
        diagonal = below = torch.zeros_like(starts)
    shape = lts_min.shape
    return _Thresholds(
        lower_from=first_from(lts_max),
        lower_to=tiles_up_to(lte_min),
        upper_from=first_from(uts_max),
        upper_to=tiles_up_to(ute_min),
        diagonal=diagonal.expand(shape),
        lower_clear=tiles_up_to(lts_min),
        lower_past=first_from(lte_max),
        upper_clear=tiles_up_to(uts_min),
        upper_past=first_from(ute_max),
        below=below.expand(shape),
    )


def _classes_of_rows(t: _Thresholds, row_tiles: Tensor) -> Tensor:
    """Class of every (given row tile, column block): uint8 ``[B, Hm, len(row_tiles), C]``."""
    r = row_tiles.view(1, 1, -1, 1)
    lower_from, lower_to, upper_from, upper_to, diagonal, lower_clear, lower_past, upper_clear, upper_past, below = (
        bound.unsqueeze(2) for bound in t
    )
    skipped = ((r >= lower_from) & (r < lower_to)) | ((r >= upper_from) & (r < upper_to)) | (r < diagonal)
    full = ((r < lower_clear) | (r >= lower_past)) & ((r < upper_clear) | (r >= upper_past)) & (r >= below)
    classes = torch.where(full, FULL, PARTIAL).masked_fill_(skipped, SKIPPED)
    return classes.to(torch.uint8)


def _row_chunks(mask: ColumnMask, tile_q: int, tile_k: int) -> Iterator[tuple[int, int, Tensor]]:
    """The class map in chunks of row tiles, block mask included: (first, end, classes)."""
    if mask.block_mask is not None and (tile_q != BLOCK or tile_k != BLOCK):
        raise MaskError(f"a block mask has {BLOCK}x{BLOCK} tiles; asked for {tile_q}x{tile_k}")
    thresholds = _thresholds(mask, tile_q, tile_k)
    row_tiles, column_tiles = tile_count(mask.seqlen_q, tile_q), tile_count(mask.seqlen_k, tile_k)
    keep = None if mask.block_mask is None else mask.block_keep()
    step = max(1, _CHUNK // max(1, mask.batch * mask.heads * column_tiles))
    for first in range(0, row_tiles, step):
        end = min(first + step, row_tiles)
        classes = _classes_of_rows(thresholds, torch.arange(first, end, device=mask.device))
        if keep is not None:
            classes = classes * keep[:, :, first:end].to(torch.uint8)
        yield first, end, classes


def class_of_tiles(mask: ColumnMask, tile_q: int = BLOCK, tile_k: int = BLOCK) -> Tensor:
    """The whole class map: uint8 ``[B, Hm, ceil(Sq/tile_q), ceil(Sk/tile_k)]`` of SKIPPED, PARTIAL, FULL.

    Raises:
        MaskError: the mask has a block mask and the tiles are not 128x128.
    """
    shape = (mask.batch, mask.heads, tile_count(mask.seqlen_q, tile_q), tile_count(mask.seqlen_k, tile_k))
    out = torch.empty(shape, dtype=torch.uint8, device=mask.device)
    for first, end, classes in _row_chunks(mask, tile_q, tile_k):
        out[:, :, first:end] = classes
    return out


def _length(start: Tensor, end: Tensor) -> Tensor:
    return (end - start).clamp(min=0)


def _overlap(*intervals: tuple[Tensor, Tensor]) -> Tensor:
    """Length of the intersection of half-open integer intervals."""
    start, end = intervals[0]
    for other_start, other_end in intervals[1:]:
        start, end = torch.maximum(start, other_start), torch.minimum(end, other_end)
    return _length(start, end)


def tile_counts(mask: ColumnMask, tile_q: int = BLOCK, tile_k: int = BLOCK) -> TileCounts:
    """How many tiles of each class, summed over mask batch and mask heads; O(Sk) memory without a block mask."""
    if mask.block_mask is not None:
        sums = torch.zeros(3, dtype=torch.int64)
        for _, _, classes in _row_chunks(mask, tile_q, tile_k):
            sums += torch.bincount(classes.flatten().long(), minlength=3).cpu()
        return TileCounts(*(int(n) for n in sums))
    t = _thresholds(mask, tile_q, tile_k)
    zero, last = torch.zeros_like(t.diagonal), torch.full_like(t.diagonal, tile_count(mask.seqlen_q, tile_q))
    lower, upper, above = (t.lower_from, t.lower_to), (t.upper_from, t.upper_to), (zero, t.diagonal)
    # Inclusion and exclusion over the three skipped runs.
    skipped = _overlap(lower) + _overlap(upper) + _overlap(above) + _overlap(lower, upper, above)
    skipped = skipped - _overlap(lower, upper) - _overlap(lower, above) - _overlap(upper, above)
    # A full tile is before or after each hull, and below the diagonal: four intervals that never meet.
    full = zero
    for lower_side in ((zero, torch.minimum(t.lower_clear, t.lower_past)), (t.lower_past, last)):
        for upper_side in ((zero, torch.minimum(t.upper_clear, t.upper_past)), (t.upper_past, last)):
            full = full + _overlap(lower_side, upper_side, (t.below, last))
    # Hull and skip rules can both hold only for a tile of no elements, which does not exist.
    total, n_skipped, n_full = int(last.sum()), int(skipped.sum()), int(full.sum())
    return TileCounts(n_skipped, total - n_skipped - n_full, n_full)


def visible_pairs(mask: ColumnMask) -> Tensor:
    """Exact number of visible (row, column) pairs, int64 ``[B, Hm]``.

    Per column ``Sq - d - |A| - |B| + |A and B|``, with d the rows above the diagonal and A, B the hidden intervals
    clipped to ``[d, Sq]``. O(Sk) memory; with a block mask O(Sk) a row tile.
    """
    intervals = mask.intervals()
    rows = mask.seqlen_q
    if mask.causal:
        columns = torch.arange(mask.seqlen_k, dtype=torch.int32, device=mask.device)
        above = (columns - mask.diagonal).clamp(0, rows)
    else:
        above = torch.zeros(1, dtype=torch.int32, device=mask.device)

    def visible(first: int, end: int) -> Tensor:
        """Visible rows of every column within ``[first, end)``."""
        start = above.clamp(first, end)
        a = (torch.maximum(intervals.lts, start), intervals.lte.clamp(max=end))
        b = (torch.maximum(intervals.uts, start), intervals.ute.clamp(max=end))
        return (end - start) - _overlap(a) - _overlap(b) + _overlap(a, b)

    if mask.block_mask is None:
        counts = visible(0, rows).sum(-1, dtype=torch.int64)
        return counts.expand(mask.batch, mask.heads).clone()
    keep = mask.block_keep()
    total = torch.zeros((mask.batch, mask.heads), dtype=torch.int64, device=mask.device)
    for tile in range(tile_count(rows)):
        kept = keep[:, :, tile].repeat_interleave(BLOCK, dim=-1)[..., : mask.seqlen_k]
        total += (visible(tile * BLOCK, min(rows, (tile + 1) * BLOCK)) * kept).sum(-1, dtype=torch.int64)
    return total


def exact_density(mask: ColumnMask) -> float:
    """Visible pairs / all pairs, mean over mask batch and heads (0 for an empty mask)."""
    pairs = visible_pairs(mask)
    whole = pairs.numel() * mask.seqlen_q * mask.seqlen_k
    return int(pairs.sum()) / whole if whole else 0.0


def tile_density(mask: ColumnMask, tile: int = BLOCK) -> float:
    """Tiles not skipped / tiles, the convention of the papers (0 for an empty mask)."""
    counts = tile_counts(mask, tile, tile)
    return (counts.partial + counts.full) / counts.total if counts.total else 0.0


def row_tile_costs(mask: ColumnMask, tile_q: int = BLOCK, tile_k: int = BLOCK) -> Tensor:
    """Full and partial tiles of every row tile: int32 ``[B, Hm, ceil(Sq/tile_q), 2]``."""
    shape = (mask.batch, mask.heads, tile_count(mask.seqlen_q, tile_q), 2)
    out = torch.zeros(shape, dtype=torch.int32, device=mask.device)
    for first, end, classes in _row_chunks(mask, tile_q, tile_k):
        out[:, :, first:end, 0] = (classes == FULL).sum(-1)
        out[:, :, first:end, 1] = (classes == PARTIAL).sum(-1)
    return out
