"""Which chunk needs which unit, against the dense mask; tiles and weights against the tile classes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_masks import random_masks

from context_parallel.grid import Grid
from context_parallel.needs import needed_units
from context_parallel.work import Costs, work_of
from masks.column_mask import BLOCK, ColumnMask
from masks.documents import paper_documents
from masks.families import FAMILIES, build_mask
from masks.tiles import row_tile_costs


def dense_needs(mask: ColumnMask, grid: Grid) -> np.ndarray:
    everything = torch.arange(grid.seqlen)
    seen = mask.visible(everything, everything).flatten(0, 1).any(0)
    needs = [
        [bool(seen[slice(*grid.rows(chunk)), slice(*grid.columns(unit))].any()) for unit in range(grid.units)]
        for chunk in range(grid.chunks)
    ]
    return np.array(needs)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_needs_are_exact_on_random_masks(data: st.DataObject) -> None:
    """Both runs of every column count, alone and where only together they hide a chunk."""
    mask = data.draw(random_masks(max_rows=700, square=True, block_masks=True))
    # Long random vectors hide next to nothing: repeat each value over a stretch.
    stretch = data.draw(st.sampled_from([1, 64, 300]))
    index = (torch.arange(mask.seqlen_k) // stretch * stretch).clamp(max=max(0, mask.seqlen_k - 1))
    vectors = {name: tensor[..., index] for name, tensor in mask.tensors().items() if name != "block_mask"}
    mask = ColumnMask(**vectors, block_mask=mask.block_mask, causal=mask.causal, seqlen_q=mask.seqlen_q, seqlen_k=mask.seqlen_k)
    grid = Grid(mask.seqlen_q, *data.draw(st.sampled_from([(128, 128), (256, 128), (384, 384)])))
    assert np.array_equal(needed_units(mask, grid), dense_needs(mask, grid))


def test_two_runs_that_hide_a_chunk_only_together() -> None:
    rows = 256
    halves = torch.full((1, 1, rows), 64, dtype=torch.int32)
    mask = ColumnMask(lts=halves, ute=halves, seqlen_q=rows, seqlen_k=rows)
    assert not needed_units(mask, Grid(rows, 128, 128)).any()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("seqlen", [1024, 1500])
def test_needs_and_tiles_of_the_families(family: str, seqlen: int) -> None:
    documents = paper_documents(seqlen, "c") if FAMILIES[family].needs_documents else None
    mask = build_mask(family, seqlen, documents=documents, batch=2, heads=2)
    grid = Grid(seqlen, 256, 128)
    work = work_of(mask, grid, Costs(full=3, partial=5, row_tile=2))
    assert np.array_equal(work.needs, dense_needs(mask, grid))
    assert not work.full[~work.needs].any() and not work.partial[~work.needs].any()
    # Tiles of units that nobody needs are those that two runs hide together: the only ones that may be left out.
    classes = row_tile_costs(mask).sum((0, 1, 2)).tolist()
    assert work.full.sum() == classes[0] and work.partial.sum() <= classes[1]
    if family not in ("global_sliding_window", "causal_blockwise", "qk_sparse"):
        assert work.partial.sum() == classes[1]
    row_tiles = [-(-(end - start) // BLOCK) for start, end in map(grid.rows, range(grid.chunks))]
    heads = mask.batch * mask.heads
    assert work.weights.tolist() == [
        (3 * full + 5 * partial) // heads + 2 * tiles
        for full, partial, tiles in zip(work.full.sum(1).tolist(), work.partial.sum(1).tolist(), row_tiles, strict=True)
    ]


@pytest.mark.parametrize(
    ("batches", "vector_shape", "bit_shape"),
    [(2, (2, 1), (1, 2)), (1, (1, 2), (1, 1)), (1, (1, 1), (2, 3)), (2, (2, 3), (2, 3)), (2, (1, 3), (2, 1))],
)
def test_vectors_and_bits_of_different_heads(batches: int, vector_shape: tuple[int, int], bit_shape: tuple[int, int]) -> None:
    seqlen = 500
    generator = torch.Generator().manual_seed(3)
    lts = torch.randint(0, seqlen, (*vector_shape, 4), generator=generator, dtype=torch.int32).repeat_interleave(125, dim=-1)
    keep = torch.rand((*bit_shape, 4, 4), generator=generator) < 0.3
    mask = ColumnMask(lts=lts, causal=True, seqlen_q=seqlen, seqlen_k=seqlen).with_block_mask(keep)
    grid = Grid(seqlen, 128, 128)
    assert mask.batch == max(batches, bit_shape[0])
    assert np.array_equal(needed_units(mask, grid), dense_needs(mask, grid))
