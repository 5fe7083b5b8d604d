"""Family 13, block-sparse: causal, and per head a keep bit for every 128x128 tile."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from masks.column_mask import ColumnMask, MaskError, pack_block_mask, tile_count
from masks.families.family import Family

KEEP_RATE = 0.2

CHUNK = 1 << 18
"""Tiles drawn at a time: bounds the memory of long sequences, whose bits are 128 times smaller than the draws."""


def block_sparse(seqlen: int, *, seed: int, batch: int, heads: int, keep_rate: float = KEEP_RATE) -> ColumnMask:
    """Causal; kept: the diagonal tile, the first column of tiles, and each other earlier tile with chance ``keep_rate``.

    Args:
        keep_rate: from 0 to 1.
    """
    if isinstance(keep_rate, bool) or not isinstance(keep_rate, int | float) or not 0 <= keep_rate <= 1:
        raise MaskError(f"keep_rate is {keep_rate!r}; allowed: 0 to 1")
    generator = torch.Generator().manual_seed(seed)
    tiles, many = tile_count(seqlen), batch * heads
    packed = torch.zeros((many, tiles, tile_count(tiles, 8)), dtype=torch.uint8)
    rows_at_once = max(1, CHUNK // max(1, many * tiles))
    for first in range(0, tiles, rows_at_once):
        rows = torch.arange(first, min(first + rows_at_once, tiles))
        bits = pack_block_mask(_keep(many, rows, keep_rate, generator))
        packed[:, rows, : bits.shape[-1]] = bits
    causal = ColumnMask(causal=True, seqlen_q=seqlen, seqlen_k=seqlen)
    return replace(causal, block_mask=packed.view(batch, heads, *packed.shape[1:]))


def _keep(many: int, rows: Tensor, keep_rate: float, generator: torch.Generator) -> Tensor:
    """bool ``[many, rows, columns up to the last row's diagonal]`` for consecutive rows of tiles."""
    first, count = int(rows[0]), rows.numel()
    keep = torch.rand((many, count, first + count), generator=generator) < keep_rate
    corner = keep[..., first:]  # the only part that the diagonal crosses
    corner &= torch.ones((count, count), dtype=torch.bool).tril()
    corner |= torch.eye(count, dtype=torch.bool)
    keep[..., 0] = True
    return keep


FAMILY = Family("block_sparse", "Block sparse", block_sparse, per_head=True, seeded=True, params={"keep_rate": KEEP_RATE})
