"""Where rows, columns and heads lie inside the reference: head-major copies and the views one mask item needs.

Public tensors are ``[B, S, H, D]`` with any strides. Inside, query rows are ``[B, Hkv, Sq, G, D]`` (G query heads a KV
head, so that a group is one taller matrix and K, V are never repeated) and key columns ``[B, Hkv, Sk, D]``, contiguous,
fp32 or fp64. No arithmetic of attention happens here.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from masks.column_mask import ColumnMask


class Layout:
    """Sizes of one call and the copies to and from the head-major layout."""

    def __init__(self, q: Tensor, k: Tensor) -> None:
        self.batch, self.seqlen_q, self.heads = q.shape[:3]
        self.seqlen_k, self.kv_heads = k.shape[1:3]
        self.group = self.heads // self.kv_heads if self.kv_heads else 1
        self.dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
        self.device = q.device

    @property
    def empty(self) -> bool:
        """No row or no column: there is nothing to compute."""
        return 0 in (self.batch, self.seqlen_q, self.heads, self.seqlen_k)

    # -- copies --------------------------------------------------------------------------------------------------

    def rows_like(self, width: int) -> Tensor:
        """Uninitialised ``[B, Hkv, Sq, G, width]``."""
        shape = (self.batch, self.kv_heads, self.seqlen_q, self.group, width)
        return torch.empty(shape, dtype=self.dtype, device=self.device)

    def columns_like(self, width: int) -> Tensor:
        """Uninitialised ``[B, Hkv, Sk, width]``."""
        return torch.empty((self.batch, self.kv_heads, self.seqlen_k, width), dtype=self.dtype, device=self.device)

    def rows(self, x: Tensor) -> Tensor:
        """A copy of ``[B, Sq, Hq, D]`` in the row layout."""
        grouped = x.unflatten(2, (self.kv_heads, self.group))
        return self.rows_like(x.shape[3]).copy_(grouped.permute(0, 2, 1, 3, 4))

    def columns(self, x: Tensor) -> Tensor:
        """A copy of ``[B, Sk, Hkv, D]`` in the column layout."""
        return self.columns_like(x.shape[3]).copy_(x.transpose(1, 2))

    def lse(self, x: Tensor) -> Tensor:
        """A copy of ``[B, Hq, Sq]`` in the row layout, width 1."""
        grouped = x.unflatten(1, (self.kv_heads, self.group))
        return self.rows_like(1).copy_(grouped.transpose(2, 3).unsqueeze(-1))

    def rows_back(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """The row layout as ``[B, Sq, Hq, D]``, contiguous."""
        shape = (self.batch, self.seqlen_q, self.heads, x.shape[4])
        back = torch.empty(shape, dtype=dtype, device=self.device)
        if back.numel():
            back.unflatten(2, (self.kv_heads, self.group)).copy_(x.permute(0, 2, 1, 3, 4))
        return back

    def columns_back(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """The column layout as ``[B, Sk, Hkv, D]``, contiguous."""
        shape = (self.batch, self.seqlen_k, self.kv_heads, x.shape[3])
        return torch.empty(shape, dtype=dtype, device=self.device).copy_(x.transpose(1, 2))

    def lse_back(self, x: Tensor) -> Tensor:
        """The row layout, width 1, as ``[B, Hq, Sq]``, contiguous."""
        back = torch.empty((self.batch, self.heads, self.seqlen_q), dtype=self.dtype, device=self.device)
        if back.numel():
            back.unflatten(1, (self.kv_heads, self.group)).copy_(x.squeeze(-1).transpose(2, 3))
        return back

    # -- one mask item -------------------------------------------------------------------------------------------

    def mask_items(self, mask: ColumnMask) -> Iterator[tuple[int, int]]:
        """(mask batch, mask head) pairs."""
        for batch in range(mask.batch):
            for head in range(mask.heads):
                yield batch, head

    def _ranges(self, mask: ColumnMask, batch: int, head: int) -> tuple[slice, slice, slice]:
        """Batch items, KV heads and query heads of the group that use this mask item."""
        everything = slice(None)
        items = everything if mask.batch == 1 else slice(batch, batch + 1)
        if mask.heads == 1:
            return items, everything, everything
        per_kv_head = max(1, mask.heads // self.kv_heads)
        kv_head, member = divmod(head, per_kv_head)
        members = everything if mask.heads == self.kv_heads else slice(member, member + 1)
        return items, slice(kv_head, kv_head + 1), members

    def items(self, mask: ColumnMask, batch: int) -> int:
        """(batch item, KV head) pairs that one mask item covers: the first axis of the views below."""
        return (self.batch if mask.batch == 1 else 1) * (self.kv_heads if mask.heads == 1 else 1)

    def group_of(self, mask: ColumnMask) -> int:
        """Query heads a KV head that one mask item covers."""
        return self.group if mask.heads in (1, self.kv_heads) else 1

    def row_view(self, x: Tensor, mask: ColumnMask, batch: int, head: int) -> Tensor:
        """``[items, Sq * group, width]`` view of the row layout: row ``i`` of member ``g`` is at ``i * group + g``."""
        items, kv_heads, members = self._ranges(mask, batch, head)
        part = x[items, kv_heads, :, members]
        return part.view(part.shape[0] * part.shape[1], part.shape[2] * part.shape[3], part.shape[4])

    def column_view(self, x: Tensor, mask: ColumnMask, batch: int, head: int) -> Tensor:
        """``[items, Sk, width]`` view of the column layout."""
        items, kv_heads, _ = self._ranges(mask, batch, head)
        part = x[items, kv_heads]
        return part.view(part.shape[0] * part.shape[1], *part.shape[2:])
