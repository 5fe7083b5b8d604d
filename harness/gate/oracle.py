"""The oracle: blocks of the right answer, computed densely in higher precision, and what plain dense maths would err.

Visibility comes element by element from ``ColumnMask.visible``; nothing here knows tiles or skips. float64 for float32
inputs, float32 for 16-bit ones. The same-dtype error of a block is the yardstick of the rule in ``harness.gate.check``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from harness.inputs import Inputs
from masks.column_mask import BLOCK, ColumnMask, tile_count

CHUNK = 1 << 26
"""Scores that one step may hold."""


@dataclass(frozen=True)
class Blocks:
    """Blocks of 128 rows of one tensor and some heads: the right values (high precision) and the same-dtype dense ones.

    ``index`` int64 ``[T, 128]``: rows of each block; -1 past the end, where both values are 0. Values ``[heads, T, 128, D]``.
    """

    tensor: str
    item: int
    heads: tuple[int, ...]
    index: Tensor
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

    def seen_by(self, item: int, heads: Sequence[int]) -> Tensor:
        """bool ``[len(heads) or 1, S, S]``: which keys every row of some query heads sees; 1 where they have one mask."""
        per_mask = self.heads // self.mask.heads
        item, of_masks = min(item, self.mask.batch - 1), [head // per_mask for head in heads]
        if len(set(of_masks)) == 1:
            return self._all_seen(item, of_masks[0])
        return torch.cat([self._all_seen(item, mask_head) for mask_head in of_masks])

    @lru_cache(maxsize=1)  # noqa: B019 - most masks have one head
    def _all_seen(self, item: int, mask_head: int) -> Tensor:
        return self._seen(self._all_rows, self._all_columns, item, mask_head * (self.heads // self.mask.heads))[None]

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
        step = max(1, CHUNK // max(1, self.columns))
        for start in range(0, self.rows, step):
            rows = self._all_rows[start : start + step]
            scores = (q[rows] @ k.T).mul_(self.scale)
            scores.masked_fill_(~self._seen(rows, self._all_columns, item, head), -torch.inf)
            part = torch.logsumexp(scores, dim=1)
            lse[rows] = part
            out[rows] = scores.sub_(part.masked_fill(part == -torch.inf, 0)[:, None]).exp_() @ v
        return out, lse, (dout * out).sum(1)

    def row_blocks(self, item: int, head: int, tiles: list[int], gradients: bool) -> Iterator[Blocks]:
        """out, and with ``gradients`` dq, of blocks of query rows."""
        out, lse, delta = self.head_rows(item, head)
        for index in self._parts(tiles, self.rows, self.columns):
            rows = index.clamp(min=0).flatten()
            seen = self._seen(rows, self._all_columns, item, head)
            found: dict[str, list[Tensor]] = {"out": [], "dq": []}
            for kind, dtype in (("exact", self.high), ("plain", self.dtype)):
                q, k, v, dout = self._tensors(item, head, dtype)
                probabilities = self._probabilities(q[rows] @ k.T, seen, lse[rows], kind)
                found["out"].append(out[rows] if kind == "exact" else probabilities @ v)
                if gradients:
                    ds = probabilities * (dout[rows] @ v.T - delta[rows, None].to(dtype))
                    found["dq"].append((ds @ k) * self.scale)
            for name, pair in found.items():
                if pair:
                    yield self._chosen_blocks(name, item, head, index, *pair)

    def column_blocks(self, item: int, kv_head: int, tiles: list[int]) -> Iterator[Blocks]:
        """dk and dv of blocks of key columns, summed over the query heads of the group."""
        group = self.heads // self.kv_heads
        for index in self._parts(tiles, self.columns, self.rows):
            columns = index.clamp(min=0).flatten()
            sums: dict[str, list[Tensor]] = {}
            for head in range(kv_head * group, (kv_head + 1) * group):
                seen = self._seen(self._all_rows, columns, item, head)
                _, lse, delta = self.head_rows(item, head)
                for kind, dtype in (("exact", self.high), ("plain", self.dtype)):
                    q, k, v, dout = self._tensors(item, head, dtype)
                    probabilities = self._probabilities(q @ k[columns].T, seen, lse, kind)
                    ds = probabilities * (dout @ v[columns].T - delta[:, None].to(dtype))
                    # Group sums stay in high precision: how a kernel sums them is its own affair, its error not excused.
                    parts = [((ds.T @ q) * self.scale).to(self.high), (probabilities.T @ dout).to(self.high)]
                    old = sums.get(kind)
                    sums[kind] = parts if old is None else [a + b for a, b in zip(old, parts, strict=True)]
            for name, exact, plain in zip(("dk", "dv"), sums["exact"], sums["plain"], strict=True):
                yield self._chosen_blocks(name, item, kv_head, index, exact, plain)

    def _parts(self, tiles: list[int], length: int, width: int) -> Iterator[Tensor]:
        """Row numbers of blocks, as many together as the scratch allows: int64 ``[T, 128]``, -1 past the end."""
        count = max(1, CHUNK // max(1, width * BLOCK))
        for first in range(0, len(tiles), count):
            starts = torch.tensor(tiles[first : first + count], device=self.mask.device) * BLOCK
            index = starts[:, None] + torch.arange(BLOCK, device=self.mask.device)
            yield index.masked_fill(index >= length, -1)

    def _chosen_blocks(self, name: str, item: int, head: int, index: Tensor, exact: Tensor, plain: Tensor) -> Blocks:
        """The blocks of one head whose rows are ``index`` ``[T, 128]``; values ``[T * 128, D]``."""
        past = (index < 0).unsqueeze(-1)
        shape = (1, *index.shape, exact.shape[-1])
        values = [x.to(self.high).view(shape).masked_fill(past, 0) for x in (exact, plain)]
        return Blocks(name, item, (head,), index, *values)

    def all_blocks(self, name: str, item: int, heads: tuple[int, ...], exact: Tensor, plain: Tensor) -> Blocks:
        """The blocks of a tensor of which all rows are known, ``[heads, S, D]``: first to last, the end padded with 0."""
        length, dim = exact.shape[1:]
        tiles = tile_count(length)
        index = torch.arange(tiles * BLOCK, device=exact.device).view(tiles, BLOCK)
        padding = (0, 0, 0, tiles * BLOCK - length)
        values = [pad(x.to(self.high), padding).view(len(heads), tiles, BLOCK, dim) for x in (exact, plain)]
        return Blocks(name, item, heads, index.masked_fill(index >= length, -1), *values)

    def rows_of_all_heads(self, item: int, rows: Tensor) -> tuple[Tensor, Tensor]:
        """(exact out, same-dtype out) ``[len(rows), H, D]`` of a few rows of every head of a batch item."""
        x, group = self.inputs, self.heads // self.kv_heads
        seen = torch.stack([self._seen(rows, self._all_columns, item, head) for head in range(self.heads)])
        found = []
        for dtype in (self.high, self.dtype):
            q, k, v = (t[item].to(dtype).transpose(0, 1) for t in (x.q[:, rows], x.k, x.v))
            parts = []
            for head in range(self.heads):
                scores = ((q[head] @ k[head // group].T) * self.scale).to(self.high).masked_fill(~seen[head], -torch.inf)
                top = scores.amax(1, keepdim=True)
                weights = (scores - top.masked_fill(top == -torch.inf, 0)).exp()
                weights /= weights.sum(1, keepdim=True).clamp(min=1e-30)
                parts.append((weights.to(dtype) @ v[head // group]).to(self.high))
            found.append(torch.stack(parts, dim=1))
        return found[0], found[1]

    def _probabilities(self, products: Tensor, seen: Tensor, lse: Tensor, kind: str) -> Tensor:
        """exp(scale * products - LSE) where seen, else 0; the plain kind rounds scores and result to its dtype."""
        scores = products * self.scale
        shift = lse.masked_fill(lse == -torch.inf, 0)[:, None]
        if kind == "exact":
            return (scores - shift).exp().masked_fill(~seen, 0)
        return (scores.to(self.high) - shift).exp().masked_fill(~seen, 0).to(self.dtype)

    def tiles(self, length: int, seed: int, sample: int) -> list[int]:
        """Blocks to check: a sample of at least so many with the first, the last and run edges among them."""
        count = tile_count(length)
        generator = torch.Generator().manual_seed(seed)
        chosen = {0, count - 1, *self._edge_tiles(count)}
        order = torch.randperm(count, generator=generator).tolist()
        return sorted(chosen | set(order[: max(0, sample - len(chosen))]))

    def places(self, seed: int) -> list[tuple[int, int]]:
        """(batch item, query head) pairs to check: the first, the last and one in between, drawn by seed.

        The drawn head is one that a kernel with another order of grouped heads would confuse, where there is one.
        """
        batch = self.inputs.q.shape[0]
        group = self.heads // self.kv_heads
        telling = [h for h in range(self.heads) if h % self.kv_heads != h // group] or list(range(self.heads))
        draw = torch.rand(2, generator=torch.Generator().manual_seed(seed)).tolist()
        drawn = (int(draw[0] * batch), telling[int(draw[1] * len(telling))])
        return sorted({(0, 0), (batch - 1, self.heads - 1), drawn})

    def _edge_tiles(self, tiles: int, most: int = 8) -> list[int]:
        """Tiles in which the first vector changes its value: where runs of the mask begin and end."""
        if self.mask.lts is None:
            return []
        vector = self.mask.lts[0, 0]
        edges = (vector[1:] != vector[:-1]).nonzero().flatten() // BLOCK
        unique = torch.unique(edges)
        picked = unique[torch.linspace(0, max(0, unique.numel() - 1), min(most, unique.numel())).long()]
        return [int(tile) for tile in picked if int(tile) < tiles]
