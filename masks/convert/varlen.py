"""A column mask as ``cu_seqlens``: the packed form of variable-length attention kernels.

Only for what such kernels express by themselves: documents, causal or not, or one sequence with a causal window.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from masks.column_mask import ColumnMask, MaskError


class CuSeqlens(NamedTuple):
    """Packed form of a mask.

    Args:
        cu_seqlens: int32 ``[documents + 1]``, first row of every document and the total, for rows and columns alike.
        causal: causal inside each document.
        window: keys that a query sees at most, itself included, or None. ``(window - 1, 0)`` in FlashAttention's terms.
    """

    cu_seqlens: Tensor
    causal: bool
    window: int | None


def to_cu_seqlens(mask: ColumnMask) -> CuSeqlens:
    """The packed form, when the mask is exactly full, causal, documents, causal documents, or a causal sliding window.

    It is read off the visible rows of each column, so any spelling of such a mask by vectors is recognised. The result
    lies on the mask's device.

    Raises:
        MaskError: the mask is none of these, and why.
    """
    size = mask.seqlen_k
    if mask.block_mask is not None:
        raise MaskError("cu_seqlens cannot carry a block mask")
    if mask.seqlen_q != size or size == 0:
        raise MaskError(f"cu_seqlens needs as many rows as columns, at least one; the mask is {mask.seqlen_q} x {size}")
    starts, ends = _visible_rows(mask)
    if bool((starts != starts[:1, :1]).any() | (ends != ends[:1, :1]).any()):
        raise MaskError("cu_seqlens is one for all; the mask differs between batch items or heads")
    start, end, column = starts[0, 0], ends[0, 0], torch.arange(size, device=mask.device)

    causal = bool((start == column).all())
    window = int(end[0])
    if causal and size > 1 and window < size and bool((end == (column + window).clamp(max=size)).all()):
        return CuSeqlens(_boundaries(torch.tensor([0, size]), mask), True, window)
    # Documents: columns with the same end belong together, and that end is where the next ones begin.
    first = torch.cat([torch.zeros(1, dtype=torch.int64, device=mask.device), end[:-1]])
    changes = end != first
    changes[0] = True
    boundaries = torch.cat([column[changes], torch.tensor([size], device=mask.device)])
    document = changes.long().cumsum(0) - 1
    ends_fit = bool((end == boundaries[document + 1]).all())
    if ends_fit and causal:
        return CuSeqlens(_boundaries(boundaries, mask), True, None)
    if ends_fit and bool((start == boundaries[document]).all()):
        return CuSeqlens(_boundaries(boundaries, mask), False, None)
    wrong = "start" if ends_fit else "end"
    raise MaskError(
        f"not a plain document mask: the visible rows of some columns do not {wrong} at "
        f"{'the start of a document or at the diagonal' if ends_fit else 'the end of a document, nor of one causal window'}"
    )


def _boundaries(values: Tensor, mask: ColumnMask) -> Tensor:
    return values.to(device=mask.device, dtype=torch.int32)


def _visible_rows(mask: ColumnMask) -> tuple[Tensor, Tensor]:
    """First visible row and the row after the last of every column, int64 ``[B, Hm, Sk]``.

    Raises:
        MaskError: a column without a visible row, or with two runs of them.
    """
    rows = mask.seqlen_q
    start = torch.zeros(mask.seqlen_k, dtype=torch.int64, device=mask.device)
    if mask.causal:
        start = torch.arange(mask.seqlen_k, device=mask.device)
    hidden = [bound.long() for bound in mask.intervals()]
    start, end = start.expand_as(hidden[0]), torch.full_like(hidden[0], rows)
    intervals = ((hidden[0], hidden[1]), (hidden[2], hidden[3]))
    for low, high in (*intervals, *intervals):  # twice: trimming by one may bring the other to an edge
        start = torch.where((low <= start) & (start < high), high, start)
        end = torch.where((low < end) & (end <= high), low, end)
    if bool((start >= end).any()):
        raise MaskError("not a plain document mask: some columns are hidden from every row")
    for low, high in intervals:
        if bool(((low < end) & (high > start) & (low < high)).any()):
            raise MaskError("not a plain document mask: some columns are hidden in the middle of their visible rows")
    return start, end
