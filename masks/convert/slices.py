"""A column mask as attention slices: rectangles, some with one or two slanted edges, that tile the visible area.

The slice types are those of MagiAttention's flexible attention kernel. Here they are only derived, not computed with.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

import torch
from torch import Tensor

from masks.column_mask import ColumnMask, MaskError

Range = tuple[int, int]

SLICE_LIMIT = 4096


class SliceType(IntEnum):
    """Which part of the rectangle of rows ``[q0, q1)`` and columns ``[k0, k1)`` is visible (MagiAttention's codes).

    CAUSAL is aligned bottom-right (``j - k1 <= i - q1``), INVCAUSAL top-left (``j - k0 >= i - q0``), BICAUSAL is both.
    """

    FULL = 0
    CAUSAL = 1
    INVCAUSAL = 2
    BICAUSAL = 3

    @property
    def slanted_right(self) -> bool:
        """Whether the right edge moves one column a row."""
        return self in (SliceType.CAUSAL, SliceType.BICAUSAL)

    @property
    def slanted_left(self) -> bool:
        """Whether the left edge moves one column a row."""
        return self in (SliceType.INVCAUSAL, SliceType.BICAUSAL)


class AttentionSlice(NamedTuple):
    """One slice: half-open row range, half-open column range, type."""

    q_range: Range
    k_range: Range
    type: SliceType


def to_slices(mask: ColumnMask, limit: int = SLICE_LIMIT) -> list[list[list[AttentionSlice]]]:
    """The visible area as slices without overlap, for every batch item and mask head: ``result[b][h]``.

    Per column the visible rows form at most three runs; neighbouring columns whose runs stay in place or move down by
    one row a column are taken together, and the pieces are then merged where two make one. Slices are in row order.

    Args:
        mask: without a block mask.
        limit: most pieces before merging, and so most slices, per batch item and head.

    Raises:
        MaskError: a block mask, or more pieces than ``limit`` (random_eviction needs about one a column).
    """
    if mask.block_mask is not None:
        raise MaskError("attention slices cannot carry a block mask")
    starts, ends = _visible_runs(mask)
    return [
        [_slices_of(starts[:, b, h], ends[:, b, h], limit, f"batch item {b}, mask head {h}") for h in range(mask.heads)]
        for b in range(mask.batch)
    ]


def _visible_runs(mask: ColumnMask) -> tuple[Tensor, Tensor]:
    """Starts and ends of the three visible runs of every column, int64 ``[3, B, Hm, Sk]`` on the CPU; empty: (Sq, Sq)."""
    rows = mask.seqlen_q
    above = torch.zeros(mask.seqlen_k, dtype=torch.int64)
    if mask.causal:
        above = (torch.arange(mask.seqlen_k) - mask.diagonal).clamp(0, rows)
    a0, a1, b0, b1 = (bound.cpu().long().clamp(min=above) for bound in mask.intervals())
    a0, b0 = a0.masked_fill(a0 >= a1, rows), b0.masked_fill(b0 >= b1, rows)
    a1, b1 = a1.masked_fill(a0 >= a1, rows), b1.masked_fill(b0 >= b1, rows)
    swap = b0 < a0
    a0, b0 = torch.where(swap, b0, a0), torch.where(swap, a0, b0)
    a1, b1 = torch.where(swap, b1, a1), torch.where(swap, a1, b1)
    starts = torch.stack([above.expand_as(a0), a1, torch.maximum(a1, b1)])
    ends = torch.stack([a0, b0, torch.full_like(b0, rows)])
    empty = starts >= ends
    return starts.masked_fill(empty, rows), ends.masked_fill(empty, rows)


def _slices_of(starts: Tensor, ends: Tensor, limit: int, where: str) -> list[AttentionSlice]:
    pieces: list[AttentionSlice] = []
    for start, end in zip(starts, ends, strict=True):
        for first, last, moves in _column_runs(start, end):
            pieces += _pieces(first, last, int(start[first]), int(end[first]), moves)
            if len(pieces) > limit:
                raise MaskError(f"{where} needs more than {limit} attention slices (raise limit if that is wanted)")
    count = len(pieces) + 1
    while len(pieces) < count:
        count = len(pieces)
        pieces = _merge_rows(_merge_columns(pieces))
    one_row = [s._replace(type=SliceType.FULL) if s.q_range[1] - s.q_range[0] == 1 else s for s in pieces]
    return sorted(one_row)


def _column_runs(start: Tensor, end: Tensor) -> Iterator[tuple[int, int, int]]:
    """Runs of columns (first, end, moves) over which both edges are straight; moves = 2 * (start moves) + (end moves).

    A step between two columns is 0..3 when each edge stays or moves down by one row, else a break (-1). Columns where
    nothing is visible give no run, and their steps to each other (4) are passed over in one go.
    """
    empty = start >= end
    down, down_end = start.diff(), end.diff()
    straight = (down >= 0) & (down <= 1) & (down_end >= 0) & (down_end <= 1)
    step = torch.where(straight, 2 * down + down_end, -1)
    step = torch.where(empty[1:] != empty[:-1], -1, torch.where(empty[1:], 4, step))
    values, counts = step.unique_consecutive(return_counts=True)
    first, moves = 0, None  # the run that is open: its first column, and its moves once it has two columns
    column = 0
    for value, count in zip(values.tolist(), counts.tolist(), strict=True):
        while count:
            if value >= 0 and moves in (None, value):
                moves, taken = value, count  # the whole group of equal steps continues the run
            else:
                if moves != 4 and not empty[column]:
                    yield first, column + 1, moves or 0
                first, moves, taken = column + 1, None, 1
            column += taken
            count -= taken
    if start.numel() and not empty[column]:
        yield first, column + 1, moves or 0


def _pieces(c0: int, c1: int, s: int, e: int, moves: int) -> list[AttentionSlice]:
    """The slices of columns ``[c0, c1)`` whose visible rows are ``[s, e)`` in the first column and move by ``moves``."""
    width, height = c1 - c0, e - s
    full, causal, inverse, band = SliceType.FULL, SliceType.CAUSAL, SliceType.INVCAUSAL, SliceType.BICAUSAL
    if moves == 0:
        parts = [AttentionSlice((s, e), (c0, c1), full)]
    elif moves == 1:
        parts = [AttentionSlice((s, e - 1), (c0, c1), full), AttentionSlice((e - 1, e - 1 + width), (c0, c1), inverse)]
    elif moves == 2:
        parts = [AttentionSlice((s, s + width), (c0, c1), causal), AttentionSlice((s + width, e), (c0, c1), full)]
    elif width >= height:
        parts = [
            AttentionSlice((s, e - 1), (c0, c0 + height - 1), causal),
            AttentionSlice((e - 1, s + width), (c0, c1), band),
            AttentionSlice((s + width, e - 1 + width), (c1 - height + 1, c1), inverse),
        ]
    else:
        parts = [
            AttentionSlice((s, s + width), (c0, c1), causal),
            AttentionSlice((s + width, e - 1), (c0, c1), full),
            AttentionSlice((e - 1, e - 1 + width), (c0, c1), inverse),
        ]
    return [part for part in parts if part.q_range[0] < part.q_range[1] and part.k_range[0] < part.k_range[1]]


_TYPE_OF = {(t.slanted_left, t.slanted_right): t for t in SliceType}


def _merge_columns(pieces: list[AttentionSlice]) -> list[AttentionSlice]:
    """Joins slices of the same rows that share an upright edge: the result has the outer edges of the two."""
    merged: list[AttentionSlice] = []
    for piece in sorted(pieces):
        last = merged[-1] if merged else None
        if (
            last is not None
            and last.q_range == piece.q_range
            and last.k_range[1] == piece.k_range[0]
            and not last.type.slanted_right
            and not piece.type.slanted_left
        ):
            kind = _TYPE_OF[last.type.slanted_left, piece.type.slanted_right]
            merged[-1] = AttentionSlice(piece.q_range, (last.k_range[0], piece.k_range[1]), kind)
        else:
            merged.append(piece)
    return merged


def _merge_rows(pieces: list[AttentionSlice]) -> list[AttentionSlice]:
    """Joins a slice and the one right below it when both their edges run on, upright or slanted."""
    open_below: dict[tuple[int, int, int, int], AttentionSlice] = {}
    for piece in sorted(pieces):
        (q0, q1), (k0, k1), kind = piece
        upper = open_below.pop((q0, kind, k0, k1 - q1 if kind.slanted_right else k1), None)
        if upper is not None:
            q0, k0 = upper.q_range[0], upper.k_range[0]
        # Where the next slice must begin for both edges to run on.
        left = k0 + (q1 - q0) if kind.slanted_left else k0
        right = k1 - q1 if kind.slanted_right else k1
        open_below[q1, kind, left, right] = AttentionSlice((q0, q1), (k0, k1), kind)
    return list(open_below.values())
