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


class Kernel:
    """This project's attention, by parts."""

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

    def merge(self, before: Result | None, part: Result) -> Result:
        """The result so far, and one part more; the first part as it is."""
        if before is None:
            return part
        out, lse = before
        return merge(out.to(sum_dtype(out.dtype)), lse, *part)

    def add(self, before: Tensor | None, share: Tensor) -> Tensor:
        """The sum of dq so far, and one share more; the first share as it is."""
        if before is None:
            return share
        total = before if before.dtype == sum_dtype(before.dtype) else before.to(sum_dtype(before.dtype))
        return total.add_(share)


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

    def merge(self, before: Result | None, part: Result) -> Result:
        """The part."""
        return part

    def add(self, before: Tensor | None, share: Tensor) -> Tensor:
        """The share."""
        return share

    def _like(self, x: Tensor) -> Tensor:
        return self._zero(tuple(x.shape), x.dtype, x.device)

    def _zero(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        key = (shape, dtype, device)
        if key not in self._zeros:
            self._zeros[key] = torch.zeros(shape, dtype=dtype, device=device)
        return self._zeros[key].detach()  # an alias: autograd writes a history on what it is given
