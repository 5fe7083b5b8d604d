"""The element mask of a partial tile, in the form in which applying it is cheapest in plain PyTorch.

What is visible is defined by ``ColumnMask.visible``; this is the same statement as floating-point bounds. The block mask
is not looked at here: its tiles are the tiles of the class map, so a dropped one never gets this far.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from masks.column_mask import ColumnMask


class ElementMask:
    """The element mask as a bound: +inf where a column is visible, -inf where not; ``minimum`` with it applies it.

    Written with half-integers in floating point because that takes a few vectorised passes, where a boolean mask costs
    more than the product it belongs to. The block mask needs no test here: its tiles are the tiles of the class map.
    """

    def __init__(self, mask: ColumnMask, dtype: torch.dtype, device: torch.device) -> None:
        # A float32 holds half-integers exactly up to 2^23.
        exact = torch.float32 if max(mask.seqlen_q, mask.seqlen_k) < 1 << 22 else torch.float64
        self.dtype = dtype
        self.rows = torch.arange(mask.seqlen_q, device=device, dtype=exact).view(-1, 1)
        self.vectors = None if mask.lts is None else [t.to(device, exact) for t in mask.intervals()]
        self.open_end, self.two_intervals = mask.lte is None, mask.ute is not None
        self.columns = None
        if mask.causal:
            self.columns = torch.arange(mask.seqlen_k, device=device, dtype=exact) - mask.diagonal - 0.5

    def bound(self, batch: int, head: int, rows: slice, columns: slice) -> Tensor:
        """``[rows, 1, columns]``: the middle axis stands for the query heads of a group."""
        row = self.rows[rows]
        room: Tensor | None = None
        if self.vectors is not None:
            lts, lte, uts, ute = (t[min(batch, t.shape[0] - 1), min(head, t.shape[1] - 1), columns] for t in self.vectors)
            room = (lts - 0.5) - row
            if not self.open_end:
                room = torch.maximum(room, row - (lte - 0.5), out=room)
            if self.two_intervals:
                upper = row - (ute - 0.5)
                if not self.open_end:
                    upper = torch.maximum(upper, (uts - 0.5) - row, out=upper)
                room = torch.minimum(room, upper, out=room)
        if self.columns is not None:
            below = row - self.columns[columns]
            room = below if room is None else torch.minimum(room, below, out=room)
        if room is None:  # a class map that was edited by hand: nothing to test
            room = torch.ones_like(row).expand(-1, columns.stop - columns.start).clone()
        return room.mul_(math.inf).to(self.dtype).unsqueeze(1)
