"""The oracle: blocks of the right answer, computed densely in higher precision, and what plain dense maths would err.

Visibility comes element by element from ``ColumnMask.visible``; nothing here knows tiles or skips. float64 for float32
inputs, float32 for 16-bit ones. The same-dtype error of a block is the yardstick of the rule in ``harness.gate.check``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from harness.inputs import Inputs
from masks.column_mask import BLOCK, ColumnMask, tile_count

# Scores that one step may hold.
_CHUNK = 1 << 26


@dataclass(frozen=True)
class Block:
    """One block of a tensor: which, the right values (high precision) and the same-dtype dense ones."""

    tensor: str
    item: int
    head: int
    start: int
    end: int
    exact: Tensor
    plain: Tensor


class Oracle:
    """The right answer of one problem, block by block.

    Args:
        mask: on the device of the inputs.
        inputs: ``[B, S, H, D]`` tensors.
        scale: softmax scale.
    """

    def __init__(self, mask: ColumnMask, inputs: Inputs, scale: float) -> None:
        self.mask, self.inputs, self.scale = mask, inputs, scale
        self.dtype = inputs.q.dtype
        self.high = torch.float64 if self.dtype == torch.float32 else torch.float32
        self.heads, self.kv_heads = inputs.q.shape[2], inputs.k.shape[2]
        self.rows, self.columns = inputs.q.shape[1], inputs.k.shape[1]
        self._all_columns = torch.arange(self.columns, device=mask.device)
        self._all_rows = torch.arange(self.rows, device=mask.device)
        self.head_rows = lru_cache(maxsize=None)(self._head_rows)

    def _seen(self, rows: Tensor, columns: Tensor, item: int, head: int) -> Tensor:
        """bool [len(rows), len(columns)] for one query head."""
        part = self._mask_of(item, head)
        return part.visible(rows, columns)[0, 0]

    @lru_cache(maxsize=64)  # noqa: B019 - an oracle lives as long as its problem
    def _mask_of(self, item: int, head: int) -> ColumnMask:
        """The mask of one batch item and query head alone."""
        mask = self.mask
        mask_head = head // (self.heads // mask.heads)
        cut: dict[str, Any] = {
            name: tensor[min(item, tensor.shape[0] - 1), min(mask_head, tensor.shape[1] - 1)][None, None]
            for name, tensor in mask.tensors().items()
        }
        return replace(mask, **cut)

    def _tensors(self, item: int, head: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """q, k, v, dout of one query head, [S, D] each."""
        kv = head // (self.heads // self.kv_heads)
        x = self.inputs
        parts = (x.q[item, :, head], x.k[item, :, kv], x.v[item, :, kv], x.dout[item, :, head])
        return tuple(t.to(dtype) for t in parts)  # type: ignore[return-value]

    def _head_rows(self, item: int, head: int) -> tuple[Tensor, Tensor, Tensor]:
        """(out [S, D], LSE [S], delta [S]) of one head in high precision; a row without keys is 0, -inf, 0."""
        q, k, v, dout = self._tensors(item, head, self.high)
        out = torch.zeros_like(q)
        lse = torch.full((self.rows,), -torch.inf, dtype=self.high, device=q.device)
        step = max(1, _CHUNK // max(1, self.columns))
        for start in range(0, self.rows, step):
            rows = self._all_rows[start : start + step]
            scores = (q[rows] @ k.T).mul_(self.scale)
            scores.masked_fill_(~self._seen(rows, self._all_columns, item, head), -torch.inf)
            part = torch.logsumexp(scores, dim=1)
            lse[rows] = part
            out[rows] = scores.sub_(part.masked_fill(part == -torch.inf, 0)[:, None]).exp_() @ v
        return out, lse, (dout * out).sum(1)

    def row_block(self, item: int, head: int, tile: int, gradients: bool) -> list[Block]:
        """out, and with ``gradients`` dq, of one block of rows."""
        start, end = tile * BLOCK, min((tile + 1) * BLOCK, self.rows)
        rows = self._all_rows[start:end]
        seen = self._seen(rows, self._all_columns, item, head)
        out, lse, delta = self.head_rows(item, head)
        results: dict[str, list[Tensor]] = {"out": [], "dq": []}
        for kind, dtype in (("exact", self.high), ("plain", self.dtype)):
            q, k, v, dout = self._tensors(item, head, dtype)
            probabilities = self._probabilities(q[start:end] @ k.T, seen, lse[start:end], kind)
            results["out"].append(out[start:end] if kind == "exact" else probabilities @ v)
            if gradients:
                ds = probabilities * (dout[start:end] @ v.T - delta[start:end, None].to(dtype))
                results["dq"].append((ds @ k) * self.scale)
        return [Block(name, item, head, start, end, *pair) for name, pair in results.items() if pair]

    def column_block(self, item: int, kv_head: int, tile: int) -> list[Block]:
        """dk and dv of one block of columns, summed over the query heads of the group."""
        start, end = tile * BLOCK, min((tile + 1) * BLOCK, self.columns)
        columns = self._all_columns[start:end]
        group = self.heads // self.kv_heads
        sums: dict[str, list[Tensor]] = {}
        for head in range(kv_head * group, (kv_head + 1) * group):
            seen = self._seen(self._all_rows, columns, item, head)
            _, lse, delta = self.head_rows(item, head)
            for kind, dtype in (("exact", self.high), ("plain", self.dtype)):
                q, k, v, dout = self._tensors(item, head, dtype)
                probabilities = self._probabilities(q @ k[start:end].T, seen, lse, kind)
                ds = probabilities * (dout @ v[start:end].T - delta[:, None].to(dtype))
                parts = [(ds.T @ q) * self.scale, probabilities.T @ dout]
                # Group sums stay in high precision: how a kernel sums them is its own affair, its error is not excused.
                parts = [part.to(self.high) for part in parts]
                old = sums.get(kind)
                sums[kind] = parts if old is None else [a + b for a, b in zip(old, parts, strict=True)]
        return [
            Block(name, item, kv_head, start, end, exact, plain)
            for name, exact, plain in zip(("dk", "dv"), sums["exact"], sums["plain"], strict=True)
        ]

    def _probabilities(self, products: Tensor, seen: Tensor, lse: Tensor, kind: str) -> Tensor:
        """exp(scale * products - LSE) where seen, else 0; the plain kind rounds scores and result to its dtype."""
        scores = products * self.scale
        shift = lse.masked_fill(lse == -torch.inf, 0)[:, None]
        if kind == "exact":
            return (scores - shift).exp().masked_fill(~seen, 0)
        return (scores.to(self.high) - shift).exp().masked_fill(~seen, 0).to(self.dtype)

    def sampled_tiles(self, length: int, seed: int, sample_above: int, sample: int) -> list[int]:
        """Blocks to check: all up to ``sample_above`` rows, else first, last, run edges and a seeded sample."""
        tiles = tile_count(length)
        if length <= sample_above:
            return list(range(tiles))
        generator = torch.Generator().manual_seed(seed)
        chosen = {0, tiles - 1, *self._edge_tiles(tiles)}
        order = torch.randperm(tiles, generator=generator).tolist()
        return sorted(chosen | set(order[: max(0, sample - len(chosen))]))

    def _edge_tiles(self, tiles: int, most: int = 8) -> list[int]:
        """Tiles in which the first vector changes its value: where runs of the mask begin and end."""
        if self.mask.lts is None:
            return []
        vector = self.mask.lts[0, 0]
        edges = (vector[1:] != vector[:-1]).nonzero().flatten() // BLOCK
        unique = torch.unique(edges)
        picked = unique[torch.linspace(0, max(0, unique.numel() - 1), min(most, unique.numel())).long()]
        return [int(tile) for tile in picked if int(tile) < tiles]
