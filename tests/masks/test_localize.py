"""A rank's own mask against the cut of the dense oracle."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_masks import random_masks
from torch import Tensor

from masks.column_mask import BLOCK, ColumnMask, MaskError
from masks.dense import dense
from masks.documents import paper_documents
from masks.families import FAMILIES, build_mask
from masks.localize import Range, localize
from masks.tiles import visible_pairs


def cut(seen: Tensor, ranges: list[Range], axis: int, slot: int | None = None) -> Tensor:
    """The ranges of one axis of a dense mask, one behind the other, padded to slots by hidden elements."""
    parts = [seen.narrow(axis, 0, 0)]
    for start, end in ranges:
        parts.append(seen.narrow(axis, start, end - start))
        if slot is not None:
            shape = list(seen.shape)
            shape[axis] = slot - (end - start)
            parts.append(torch.zeros(shape, dtype=torch.bool))
    return torch.cat(parts, dim=axis)


@st.composite
def ascending_ranges(draw: st.DrawFn, length: int) -> list[Range]:
    """Uneven ranges in order, some neighbours, some with gaps, perhaps none."""
    edges = sorted(draw(st.sets(st.integers(0, length), max_size=8)))
    return [pair for pair in pairwise(edges) if draw(st.booleans())]


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_any_mask_is_cut_exactly(data: st.DataObject) -> None:
    """Every vector form, hostile values, uneven chunks, ranks without rows, columns in any order, slots."""
    mask = data.draw(random_masks())
    rows = data.draw(ascending_ranges(mask.seqlen_q))
    columns = data.draw(ascending_ranges(mask.seqlen_k).flatmap(st.permutations))
    longest = max((end - start for start, end in columns), default=1)
    slot = data.draw(st.sampled_from([None, longest, longest + 3]))
    local = localize(mask, rows, columns, slot=slot)
    assert not local.causal
    assert torch.equal(dense(local), cut(cut(dense(mask), rows, 2), columns, 3, slot))


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_padding_rows_see_nothing_or_are_refused(data: st.DataObject) -> None:
    mask = data.draw(random_masks())
    rows = data.draw(ascending_ranges(mask.seqlen_q))
    padding = data.draw(st.integers(1, 5))
    expected = cut(dense(mask), rows, 2)
    expected = torch.cat([expected, torch.zeros((*expected.shape[:2], padding, expected.shape[3]), dtype=torch.bool)], dim=2)
    # Hidden runs of a column once the padding is one, or part of one, too.
    hidden = torch.nn.functional.pad(~expected, (0, 0, 1, 0))
    runs = (hidden[:, :, 1:] & ~hidden[:, :, :-1]).sum(2)
    if runs.numel() and int(runs.max()) > 2:
        with pytest.raises(MaskError, match="third run"):
            localize(mask, rows, pad_rows=padding)
    else:
        assert torch.equal(dense(localize(mask, rows, pad_rows=padding)), expected)


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_block_masks_are_cut_by_tiles(data: st.DataObject) -> None:
    """Short last tiles included, in the middle of the local columns too when slots keep the tiles aligned."""
    rows, columns = data.draw(st.integers(1, 5 * BLOCK)), data.draw(st.integers(1, 5 * BLOCK))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 1000)))
    shape = (1, 2, -(-rows // BLOCK), -(-columns // BLOCK))
    lts = torch.randint(0, rows + 1, (1, 1, columns), generator=generator, dtype=torch.int32)
    vectors = data.draw(st.sampled_from([{}, {"lts": lts}]))
    mask = ColumnMask(**vectors, causal="lts" in vectors, seqlen_q=rows, seqlen_k=columns)
    mask = mask.with_block_mask(torch.rand(shape, generator=generator) < 0.5)
    seen = mask.visible(torch.arange(rows), torch.arange(columns)).expand(-1, 2, -1, -1)

    def tiles(length: int) -> list[Range]:
        starts = sorted(data.draw(st.sets(st.sampled_from(range(0, length, BLOCK)), min_size=1)))
        return [(start, min(length, start + BLOCK)) for start in starts]

    chunks, units = tiles(rows), data.draw(st.permutations(tiles(columns)))
    padding = data.draw(st.sampled_from([0, 3, BLOCK]))
    local = localize(mask, chunks, units, slot=BLOCK, pad_rows=padding)
    expected = torch.nn.functional.pad(cut(cut(seen, chunks, 2), units, 3, BLOCK), (0, 0, 0, padding))
    assert torch.equal(local.visible(torch.arange(local.seqlen_q), torch.arange(local.seqlen_k)).expand_as(expected), expected)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("seqlen", [1024, 1000])
def test_every_family_is_cut_exactly(family: str, seqlen: int) -> None:
    """Chunks of 128 dealt over three ranks: every rank's cut is exact, and together the ranks see every pair once."""
    documents = paper_documents(seqlen, "b") if FAMILIES[family].needs_documents else None
    mask = build_mask(family, seqlen, documents=documents, heads=2)
    chunks = [(start, min(seqlen, start + BLOCK)) for start in range(0, seqlen, BLOCK)]
    everything = torch.arange(seqlen)
    seen = mask.visible(everything, everything)
    total = torch.zeros_like(visible_pairs(mask))
    for rank in range(3):
        rows, units = chunks[rank::3], chunks[::-1]
        local = localize(mask, rows, units, slot=BLOCK)
        expected = cut(cut(seen, rows, 2), units, 3, BLOCK)
        assert torch.equal(local.visible(torch.arange(local.seqlen_q), torch.arange(local.seqlen_k)), expected)
        total += visible_pairs(local)
    assert torch.equal(total, visible_pairs(mask))


def test_forms_are_kept_small() -> None:
    """Full stays without vectors, causal becomes two, causal with both lower vectors becomes four."""
    full = ColumnMask(seqlen_q=8, seqlen_k=8)
    assert localize(full, [(2, 4)], [(0, 3)]).vectors == ()
    assert localize(full, [(2, 4)], [(0, 3)], slot=4).vectors == ("lts", "ute")
    assert localize(ColumnMask(causal=True, seqlen_q=8, seqlen_k=8), [(2, 4)]).vectors == ("lts", "ute")
    some = torch.zeros((1, 1, 8), dtype=torch.int32)
    four = localize(ColumnMask(lts=some, lte=some, causal=True, seqlen_q=8, seqlen_k=8), [(2, 4)])
    assert four.vectors == ("lts", "lte", "uts", "ute") and four.lts is not None and four.lts.dtype == torch.int32


def test_one_contiguous_chunk_is_clip_and_shift() -> None:
    lts = torch.tensor([[[0, 5, 9, 12, 2**31 - 1, -7]]], dtype=torch.int32)
    mask = ColumnMask(lts=lts, ute=torch.zeros_like(lts), seqlen_q=16, seqlen_k=6)
    local = localize(mask, [(4, 10)])
    assert local.lts is not None and local.lts.flatten().tolist() == [0, 1, 5, 6, 6, 0]


def test_a_rank_may_have_no_rows_or_no_columns() -> None:
    mask = ColumnMask(causal=True, seqlen_q=8, seqlen_k=8)
    assert (localize(mask, []).seqlen_q, localize(mask, []).seqlen_k) == (0, 8)
    assert localize(mask, [(0, 8)], []).seqlen_k == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rows": [(0, 4), (3, 8)]}, "rows are 0 to 4, 3 to 8; chunks must ascend and not overlap"),
        ({"rows": [(4, 8), (0, 4)]}, "must ascend"),
        ({"rows": [(4, 4)]}, "rows 4 to 4 given; a range must hold something and lie within 0 to 512"),
        ({"rows": [(0, 513)]}, "within 0 to 512"),
        ({"rows": [(-1, 5)]}, "within 0 to 512"),
        ({"rows": [(0, 8)], "columns": [(4, 8), (0, 5)]}, "column 4 would count twice"),
        ({"rows": [(0, 8)], "columns": [(0, 9)], "slot": 8}, "slot is 8; the longest run of columns has 9"),
        ({"rows": [(0, 8)], "slot": 0}, "slot is 0; it must be an integer >= 1"),
        ({"rows": [(0, 8)], "pad_rows": -1}, "pad_rows is -1; it must be an integer >= 0"),
        ({"rows": [(64, 128)]}, "rows 64 to 128 lie at local rows 0; with a block mask both starts must be multiples of 128"),
        ({"rows": [(0, 64), (128, 256)]}, "rows 128 to 256 lie at local rows 64"),
        ({"rows": [(0, 128)], "columns": [(0, 100), (128, 256)]}, "columns 128 to 256 lie at local columns 100"),
    ],
)
def test_refusals_say_what_was_given_and_what_is_allowed(arguments: dict, message: str) -> None:
    mask = ColumnMask(seqlen_q=512, seqlen_k=512).with_block_mask(torch.ones((1, 1, 4, 4), dtype=torch.bool))
    with pytest.raises(MaskError, match=message):
        localize(mask, **arguments)
