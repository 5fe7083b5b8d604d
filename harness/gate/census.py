"""The census: what a kernel must return when its inputs are codes of the tiles, in closed form.

With q = 0 (or k = 0) every visible key weighs the same, ``1 / count`` of its row. If v then holds, one-hot, the number
of each key's column tile, the output times the count *is* the number of visible keys in every tile: a kernel that drops
or invents a tile cannot hide it. The gradients are counted in the same way. The expectation is computed from the mask's
intervals by prefix sums, O(S * S/128) a head; neither tile classes nor a dense mask take part.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from masks.column_mask import BLOCK, ColumnMask, tile_count

# Elements of scratch that one step may hold.
_CHUNK = 1 << 24


@dataclass(frozen=True)
class Codes:
    """A one-hot code per tile: ``dim[t]`` is the element of the head that stands for tile t.

    With more tiles than elements several tiles share one; a second pass groups them differently.
    """

    dim: Tensor
    head_dim: int

    def of_positions(self, length: int) -> Tensor:
        """The code of every row or column: ``[length, head_dim]``."""
        return torch.nn.functional.one_hot(self.dim.repeat_interleave(BLOCK)[:length], self.head_dim)

    def fold(self, per_tile: Tensor) -> Tensor:
        """Sums over the tiles that share an element: ``[N, tiles]`` to ``[N, head_dim]``."""
        out = torch.zeros((per_tile.shape[0], self.head_dim), dtype=per_tile.dtype, device=per_tile.device)
        return out.index_add_(1, self.dim, per_tile)


def code_passes(length: int, head_dim: int, device: torch.device) -> list[Codes]:
    """One pass when every tile has an element of its own, else two: far tiles share, then near ones."""
    tiles = tile_count(length)
    numbers = torch.arange(tiles, device=device)
    if tiles <= head_dim:
        return [Codes(numbers, head_dim)]
    near = -(-tiles // head_dim)
    return [Codes(numbers % head_dim, head_dim), Codes(numbers // near, head_dim)]


@dataclass(frozen=True)
class _Runs:
    """Visible rows of every column as a signed sum of intervals: ``+[d, Sq) - A - B + (A and B)``."""

    signs: tuple[int, ...]
    starts: tuple[Tensor, ...]
    ends: tuple[Tensor, ...]


class HeadCensus:
    """Expected sums for one batch item and one mask head."""

    def __init__(self, mask: ColumnMask, item: int, head: int) -> None:
        self.rows, self.columns = mask.seqlen_q, mask.seqlen_k
        self.device = mask.device
        self._runs = self._visible_runs(mask, item, head)
        self._keep: Tensor | None = None
        if mask.block_mask is not None:
            keep = mask.block_keep()
            self._keep = keep[min(item, keep.shape[0] - 1), min(head, keep.shape[1] - 1)]

    def _visible_runs(self, mask: ColumnMask, item: int, head: int) -> _Runs:
        def pick(vector: Tensor) -> Tensor:
            return vector[min(item, vector.shape[0] - 1), min(head, vector.shape[1] - 1)].long()

        lts, lte, uts, ute = (pick(vector) for vector in mask.intervals())
        columns = torch.arange(self.columns, device=self.device)
        above = (columns - mask.diagonal).clamp(0, self.rows) if mask.causal else torch.zeros_like(columns)
        last = torch.full_like(columns, self.rows)
        a = (torch.maximum(lts, above), torch.maximum(lte, above))
        b = (torch.maximum(uts, above), torch.maximum(ute, above))
        both = (torch.maximum(a[0], b[0]), torch.minimum(a[1], b[1]))
        runs = [(above, last), a, b, both]
        # An interval that ends before it starts is empty.
        clean = [(start, torch.maximum(start, end)) for start, end in runs]
        return _Runs((1, -1, -1, 1), tuple(s for s, _ in clean), tuple(e for _, e in clean))

    def by_column_tile(self, weights: Tensor) -> Tensor:
        """Sum of the weights of the visible keys in every column tile: ``[Sq, ceil(Sk/128)]``.

        Args:
            weights: float ``[Sk]``, small integers, so that the float32 sums are exact.
        """
        tiles = tile_count(self.columns)
        tile_of = torch.arange(self.columns, device=self.device) // BLOCK
        steps = torch.zeros((self.rows + 1) * tiles, dtype=torch.float32, device=self.device)
        for sign, start, end in zip(self._runs.signs, self._runs.starts, self._runs.ends, strict=True):
            steps.index_add_(0, start * tiles + tile_of, sign * weights.float())
            steps.index_add_(0, end * tiles + tile_of, -sign * weights.float())
        sums = steps.view(self.rows + 1, tiles)[: self.rows].cumsum(0)
        if self._keep is not None:
            sums *= self._keep.repeat_interleave(BLOCK, 0)[: self.rows]
        return sums

    def by_row_tile(self, weights: Tensor) -> Tensor:
        """Sum of the weights of the visible rows in every row tile: float64 ``[Sk, ceil(Sq/128)]``.

        Args:
            weights: float ``[Sq]``.
        """
        tiles = tile_count(self.rows)
        prefix = torch.zeros(self.rows + 1, dtype=torch.float64, device=self.device)
        prefix[1:] = weights.double().cumsum(0)
        edges = torch.arange(tiles + 1, device=self.device).mul(BLOCK).clamp(max=self.rows)
        low, high = edges[:-1], edges[1:]
        sums = torch.zeros((self.columns, tiles), dtype=torch.float64, device=self.device)
        step = max(1, _CHUNK // max(1, tiles))
        for sign, starts, ends in zip(self._runs.signs, self._runs.starts, self._runs.ends, strict=True):
            for part, start, end in zip(sums.split(step), starts.split(step), ends.split(step), strict=True):
                first = start[:, None].clamp(min=low).clamp(max=high)
                past = end[:, None].clamp(min=low).clamp(max=high)
                part += sign * (prefix[past] - prefix[first])
        if self._keep is not None:
            sums *= self._keep.T.repeat_interleave(BLOCK, 0)[: self.columns]
        return sums


@dataclass(frozen=True)
class Expected:
    """What one mask head must return for one pass of codes, in element units of the head (``[S, D]`` each).

    ``counts`` [Sq]: visible keys of every row. ``out`` is multiplied by the count. The ``*_size`` tensors are sums of
    absolute terms: what rounding errors scale with.
    """

    counts: Tensor
    out: Tensor
    dv: Tensor
    dq: Tensor
    dq_size: Tensor
    dk: Tensor
    dk_size: Tensor


def expect(head: HeadCensus, codes_q: Codes, codes_k: Codes, signs: Tensor, scale: float) -> Expected:
    """The expectation for the inputs of :mod:`harness.gate.check`.

    Args:
        codes_q, codes_k: codes of row tiles and of column tiles.
        signs: ``s``, float ``[Sk]`` of +1 and -1: the value row of key j in the gradient passes is ``s_j``.
        scale: softmax scale.

    With P = 1/count and dP_ij = s_j: ``dS_ij = (s_j - m_i) / count_i``, m_i the mean of s over the row's visible keys.
    """
    per_tile = head.by_column_tile(torch.ones_like(signs))
    signed = head.by_column_tile(signs)
    counts = per_tile.sum(1)
    weight = torch.where(counts > 0, 1 / counts.clamp(min=1), 0.0)
    mean = signed.sum(1) * weight
    rows_weight = head.by_row_tile(weight)
    rows_mean = head.by_row_tile(weight.double() * mean)
    rows_size = head.by_row_tile(weight.double() * mean.abs())
    scaled = (scale * weight)[:, None]
    s = signs.double()[:, None]
    return Expected(
        counts=counts,
        out=codes_k.fold(per_tile),
        dv=codes_q.fold(rows_weight),
        dq=codes_k.fold(scaled * (per_tile - mean[:, None] * signed)),
        dq_size=codes_k.fold(scaled * per_tile * (1 + mean.abs()[:, None])),
        dk=codes_q.fold(scale * (s * rows_weight - rows_mean)),
        dk_size=codes_q.fold(scale * (rows_weight + rows_size)),
    )
