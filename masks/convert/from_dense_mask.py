"""A column mask from a dense one, exactly or not at all.

Which interval a hidden run goes to does not change what is visible, but decides how well tiles can be skipped, because
a tile is skipped by one interval at a time over many columns.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from masks.column_mask import ColumnMask, MaskError


class _Placed(NamedTuple):
    """The hidden intervals of every column, int64 ``[B, Hm, Sk]``; empty ones are LT = (Sq, Sq), UT = (0, 0)."""

    lts: Tensor
    lte: Tensor
    uts: Tensor
    ute: Tensor


def from_dense(visible: Tensor) -> ColumnMask:
    """The column mask of a dense mask, in the smallest form that holds it, on the same device.

    Placement, per column: of two hidden runs the upper goes to UT and the lower to LT. A single run that starts at row
    0 goes to UT, one that ends at the last row to LT, another one to LT when it starts at or below the diagonal, else
    to UT. A wholly hidden column is both, so it goes along with whichever interval hides its neighbours.

    Args:
        visible: bool ``[B, Hm, Sq, Sk]``, True = visible.

    Raises:
        MaskError: another dtype or rank, or a column with more than two hidden runs of rows.
    """
    if visible.dtype != torch.bool or visible.dim() != 4:
        raise MaskError(f"the dense mask is {visible.dtype} {tuple(visible.shape)}; expected torch.bool [B, Hm, Sq, Sk]")
    rows, columns = visible.shape[2:]
    if 0 in visible.shape or bool(visible.all()):
        return ColumnMask(seqlen_q=rows, seqlen_k=columns, placed=visible.device)
    placed = _place(visible)

    def build(causal: bool, **vectors: Tensor) -> ColumnMask:
        named: dict[str, Any] = {name: vector.to(torch.int32).contiguous() for name, vector in vectors.items()}
        return ColumnMask(**named, causal=causal, seqlen_q=rows, seqlen_k=columns, placed=visible.device)

    lts, lte, uts, ute = placed
    lower_open = bool(((lts >= lte) | (lte == rows)).all())
    upper_open = bool(((uts >= ute) | (uts == 0)).all())
    if _is_causal(placed, rows, columns):
        if bool((visible | ~_below_diagonal(rows, columns, visible.device)).all()):
            return build(True)
        return build(True, lts=lts) if lower_open else build(True, lts=lts, lte=lte)
    if lower_open and upper_open:
        return build(False, lts=lts, ute=ute)
    return build(False, lts=lts, lte=lte, uts=uts, ute=ute)


def _place(visible: Tensor) -> _Placed:
    rows, columns = visible.shape[2:]
    hidden = torch.nn.functional.pad(~visible, (0, 0, 1, 1))
    begins = hidden[:, :, 1:-1] & ~hidden[:, :, :-2]
    ends = hidden[:, :, 1:-1] & ~hidden[:, :, 2:]
    runs = begins.sum(2)
    if bool((runs > 2).any()):
        b, h, j = ((runs > 2).nonzero()[0]).tolist()
        raise MaskError(
            f"column {j} of batch item {b}, mask head {h} hides {int(runs[b, h, j])} separate runs of rows; "
            "a column mask holds at most 2"
        )
    first_start, last_start = _first(begins), rows - 1 - _first(begins.flip(2))
    first_end, last_end = _first(ends) + 1, rows - _first(ends.flip(2))

    one = runs == 1
    whole = one & (first_start == 0) & (first_end == rows)
    diagonal = torch.arange(columns, device=visible.device) - (columns - rows)
    to_lower = (runs == 2) | whole | (one & (first_start > 0) & ((first_end == rows) | (first_start >= diagonal)))
    to_upper = (runs == 2) | whole | (one & ~to_lower)
    return _Placed(
        lts=torch.where(to_lower, last_start, rows),
        lte=torch.where(to_lower, last_end, rows),
        uts=torch.where(to_upper, first_start, 0),
        ute=torch.where(to_upper, first_end, 0),
    )


def _first(marks: Tensor) -> Tensor:
    """Row of the first mark of every column (0 where there is none), int64 ``[B, Hm, Sk]``."""
    return marks.to(torch.uint8).argmax(2)


def _below_diagonal(rows: int, columns: int, device: torch.device) -> Tensor:
    return torch.ones((rows, columns), dtype=torch.bool, device=device).tril(columns - rows)


def _is_causal(placed: _Placed, rows: int, columns: int) -> bool:
    """Whether UT is exactly what lies above the diagonal; a wholly hidden column may count as LT alone."""
    above = (torch.arange(columns, device=placed.ute.device) - (columns - rows)).clamp(0, rows)
    whole = (placed.lts == 0) & (placed.lte == rows)
    return bool((whole | ((placed.uts == 0) & (placed.ute == above))).all())
