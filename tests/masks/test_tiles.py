"""Tile classes, counts, pairs and densities against the dense oracle."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_masks import random_masks

from masks.column_mask import BLOCK, ColumnMask, MaskError, tile_count
from masks.dense import dense
from masks.tiles import (
    FULL,
    PARTIAL,
    SKIPPED,
    class_of_tiles,
    exact_density,
    row_tile_costs,
    tile_counts,
    tile_density,
    visible_pairs,
)


def tiles_of(seen: torch.Tensor, tile_q: int, tile_k: int) -> torch.Tensor:
    """Visible elements of every tile and the elements it has: int64 [2, B, Hm, R, C], by plain slicing."""
    b, h, rows, columns = seen.shape
    out = torch.zeros((2, b, h, tile_count(rows, tile_q), tile_count(columns, tile_k)), dtype=torch.int64)
    for r in range(out.shape[3]):
        for c in range(out.shape[4]):
            part = seen[:, :, r * tile_q : (r + 1) * tile_q, c * tile_k : (c + 1) * tile_k]
            out[0, :, :, r, c] = part.sum((-1, -2))
            out[1, :, :, r, c] = part.shape[-1] * part.shape[-2]
    return out


@settings(max_examples=150, deadline=None)
@given(mask=random_masks(), tile_q=st.sampled_from([1, 3, 4, 8]), tile_k=st.sampled_from([1, 3, 4, 8]))
def test_classes_and_counts_match_the_oracle(mask: ColumnMask, tile_q: int, tile_k: int) -> None:
    seen = dense(mask)
    inside, elements = tiles_of(seen, tile_q, tile_k)
    classes = class_of_tiles(mask, tile_q, tile_k)
    assert classes.shape == inside.shape
    assert bool((inside[classes == SKIPPED] == 0).all())
    assert bool((inside[classes == FULL] == elements[classes == FULL]).all())
    counts = tile_counts(mask, tile_q, tile_k)
    assert (counts.skipped, counts.partial, counts.full) == tuple(int((classes == c).sum()) for c in (0, 1, 2))
    costs = row_tile_costs(mask, tile_q, tile_k)
    assert int(costs[..., 0].sum()) == counts.full and int(costs[..., 1].sum()) == counts.partial
    assert torch.equal(visible_pairs(mask), seen.sum((-1, -2)))


@settings(max_examples=150, deadline=None)
@given(mask=random_masks())
def test_single_cells_are_never_partial_unless_two_causes_share_them(mask: ColumnMask) -> None:
    """With 1x1 tiles the classes are the mask itself."""
    classes = class_of_tiles(mask, 1, 1)
    assert torch.equal(classes == SKIPPED, ~dense(mask))
    assert not bool((classes == PARTIAL).any())


def test_empty_columns_stay_cheap() -> None:
    """Columns whose interval is empty, however stored, do not turn full tiles into partial ones."""
    length = 1024
    for start, end in ((0, 0), (length, length), (700, 700), (900, 20), (2**31 - 1, -5)):
        vector = torch.full((1, 1, length), start, dtype=torch.int32)
        mask = ColumnMask(lts=vector, lte=torch.full_like(vector, end), causal=True, seqlen_q=length, seqlen_k=length)
        tiles = length // BLOCK
        assert tile_counts(mask) == (tiles * (tiles - 1) // 2, tiles, tiles * (tiles - 1) // 2)


def test_block_mask_drops_tiles_and_needs_its_own_tile_size() -> None:
    length = 4 * BLOCK + 7
    keep = torch.rand((1, 2, 5, 5), generator=torch.Generator().manual_seed(0)) < 0.5
    mask = ColumnMask(causal=True, seqlen_q=length, seqlen_k=length).with_block_mask(keep)
    seen = torch.arange(length)[:, None] >= torch.arange(length)
    kept = keep.repeat_interleave(BLOCK, 2).repeat_interleave(BLOCK, 3)[:, :, :length, :length]
    assert torch.equal(visible_pairs(mask), (kept & seen).sum((-1, -2)))
    classes = class_of_tiles(mask)
    assert torch.equal(classes != SKIPPED, keep & torch.ones(5, 5).tril().bool())
    counts = tile_counts(mask)
    assert counts.partial == int((classes == PARTIAL).sum()) and counts.full == int((classes == FULL).sum())
    with pytest.raises(MaskError, match="128x128"):
        class_of_tiles(mask, 64, 128)


def test_densities_of_an_empty_mask_are_zero() -> None:
    mask = ColumnMask(seqlen_q=0, seqlen_k=0)
    assert exact_density(mask) == 0.0 and tile_density(mask) == 0.0


def test_causal_counts_for_unequal_lengths_are_bottom_right() -> None:
    """256 rows by 64 columns: 2,080 visible pairs, the rows above the diagonal see nothing."""
    assert int(visible_pairs(ColumnMask(causal=True, seqlen_q=256, seqlen_k=64))) == 2080
    assert int(visible_pairs(ColumnMask(causal=True, seqlen_q=64, seqlen_k=256))) == 64 * 256 - 63 * 32
