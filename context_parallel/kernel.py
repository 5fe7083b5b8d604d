"""What a strategy computes on a rank: attention to a part of the keys, its gradients, results of parts put together.

:class:`Kernel` does it. :class:`Idle` does nothing, with tensors of the same shapes: what is left of a strategy is then its
exchange, and can be timed alone.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fm3_kernel import PreparedMask, flashmask_attention
from fm3_kernel.parts import merge, part_gradients, sum_dtype

Result = tuple[Tensor, Tensor]
"""``out`` ``[B, Sq, Hq, D]`` and ``lse`` ``[B, Hq, Sq]``."""


EXACT = 2
"""Parts that may be put together in 16 bits: two are rounded no more often than their sum in fp32 would be."""


class Kernel:
    """This project's attention, by parts.

    Only the rows that see a part are attended from, and only they are put together: results are as large as the inputs, and
    going over them costs as much as the exchange that the parts are there to hide.
    """

    def room(self, first: Tensor, parts: int) -> Tensor:
        """The first part's out or dq as what the others are added to: of more than ``EXACT`` parts in the dtype of sums."""
        return first if parts <= EXACT else first.to(sum_dtype(first.dtype))

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: PreparedMask, options: dict[str, Any]) -> Result:
        """Attention to one part; ``out`` in the dtype of q."""
        return flashmask_attention(q, k, v, mask, return_lse=True, **options)

    def backward(
        self,
        douts: tuple[Tensor, Tensor | None],
        q: Tensor,
        k: Tensor,
        v: Tensor,
        whole: Result,
        mask: PreparedMask,
        options: dict[str, Any],
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The share of one part in dq, and its dk and dv; ``douts`` and ``whole`` are of all parts together."""
        return part_gradients(*douts, q, k, v, *whole, mask, **options)

    def merge(self, before: Result | None, part: Result, rows: slice) -> Result:
        """The result so far, and one part more of some rows: written over what is there. The first part is all rows."""
        if before is None:
            return part
        out, lse = before
        out[:, rows], lse[..., rows] = merge(out[:, rows], lse[..., rows], *part)
        return before

    def total(self, shares: list[tuple[slice, Tensor]]) -> Tensor:
        """The sum of shares of dq, each of some rows, in order; the first is of all rows, and is added to."""
        dq = self.room(shares[0][1], len(shares))
        for rows, share in shares[1:]:
            dq[:, rows] += share
        return dq


class Idle(Kernel):
    """Computes nothing. Its results are zeros, the same ones in every call."""

    def __init__(self) -> None:
        self._zeros: dict[tuple[Any, ...], Tensor] = {}

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: PreparedMask, options: dict[str, Any]) -> Result:
        """Zeros."""
        return self._like(q), self._zero((q.shape[0], q.shape[2], q.shape[1]), sum_dtype(q.dtype), q.device)

    def backward(
        self,
        douts: tuple[Tensor, Tensor | None],
        q: Tensor,
        k: Tensor,
        v: Tensor,
        whole: Result,
        mask: PreparedMask,
        options: dict[str, Any],
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Zeros."""
        return self._like(q), self._like(k), self._like(v)

    def merge(self, before: Result | None, part: Result, rows: slice) -> Result:
        """What is there."""
        return before or part

    def total(self, shares: list[tuple[slice, Tensor]]) -> Tensor:
        """The first share."""
        return shares[0][1]

    def room(self, first: Tensor, parts: int) -> Tensor:
        """As it is."""
        return first

    def _like(self, x: Tensor) -> Tensor:
        return self._zero(tuple(x.shape), x.dtype, x.device)

    def _zero(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        key = (shape, dtype, device)
        if key not in self._zeros:
            self._zeros[key] = torch.zeros(shape, dtype=dtype, device=device)
        # An alias with a history and a count of writes of its own: gradients are added to in place, and a result is saved.
        return self._zeros[key].data
