"""Hypothesis strategies for random column masks of every form, hostile values included."""

from __future__ import annotations

import torch
from hypothesis import strategies as st

from masks.column_mask import BLOCK, ColumnMask, tile_count

FORMS: tuple[tuple[bool, tuple[str, ...]], ...] = (
    (False, ()),
    (True, ()),
    (True, ("lts",)),
    (True, ("lts", "lte")),
    (False, ("lts", "ute")),
    (False, ("lts", "lte", "uts", "ute")),
)


@st.composite
def random_masks(
    draw: st.DrawFn,
    max_rows: int = 20,
    max_columns: int = 20,
    square: bool = False,
    batches: tuple[int, ...] = (1, 2),
    heads: tuple[int, ...] = (1, 2),
    block_masks: bool = False,
) -> ColumnMask:
    """A mask of any vector form: piecewise constant or random vectors, out of range, crossed and empty intervals."""
    rows = draw(st.integers(0 if not square else 1, max_rows))
    columns = rows if square else draw(st.integers(0, max_columns))
    causal, names = draw(st.sampled_from(FORMS))
    batch, mask_heads = draw(st.sampled_from(batches)), draw(st.sampled_from(heads))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31 - 1)))
    run = draw(st.sampled_from([1, 1, 3, 8]))
    vectors = {}
    for name in names:
        low, high = -3, rows + 4
        runs = torch.randint(low, high, (batch, mask_heads, columns // run + 1), generator=generator, dtype=torch.int32)
        vector = runs.repeat_interleave(run, dim=-1)[..., :columns].clone()
        if draw(st.booleans()):
            extreme = draw(st.sampled_from([-(2**31), 2**31 - 1, 0, rows]))
            vector[torch.rand(vector.shape, generator=generator) < 0.2] = extreme
        vectors[name] = vector
    mask = ColumnMask(**vectors, causal=causal, seqlen_q=rows, seqlen_k=columns)
    if block_masks and draw(st.booleans()):
        shape = (batch, mask_heads, tile_count(rows, BLOCK), tile_count(columns, BLOCK))
        mask = mask.with_block_mask(torch.rand(shape, generator=generator) < 0.5)
    return mask
