"""The representation: what is accepted, what is refused, and that nothing is lost on the way."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from random_masks import random_masks

from masks.column_mask import BLOCK, ColumnMask, MaskError, pack_block_mask
from masks.dense import dense


@settings(max_examples=200, deadline=None)
@given(mask=random_masks())
def test_visible_matches_the_oracle(mask: ColumnMask) -> None:
    seen = mask.visible(torch.arange(mask.seqlen_q), torch.arange(mask.seqlen_k))
    assert torch.equal(seen.expand(mask.batch, mask.heads, -1, -1), dense(mask))


@settings(max_examples=100, deadline=None)
@given(mask=random_masks())
def test_diagonal_as_a_vector_is_the_same_mask(mask: ColumnMask) -> None:
    assert torch.equal(dense(mask.without_causal_flag()).expand_as(dense(mask)), dense(mask))
    assert not mask.without_causal_flag().causal


@settings(max_examples=100, deadline=None)
@given(mask=random_masks())
def test_interchange_form_is_lossless(mask: ColumnMask) -> None:
    indices = mask.to_startend_row_indices()
    again = ColumnMask.from_startend_row_indices(indices, causal=mask.causal, seqlen_q=mask.seqlen_q, seqlen_k=mask.seqlen_k)
    assert again.vectors == mask.vectors and again.digest() == mask.digest()
    if indices is not None:
        assert torch.equal(again.to_startend_row_indices(), indices)


def test_values_out_of_range_mean_the_clipped_ones() -> None:
    raw = torch.tensor([[[-(2**31), 2**31 - 1, 5, 4]]], dtype=torch.int32)
    mask = ColumnMask(lts=raw, causal=True, seqlen_q=4, seqlen_k=4)
    assert torch.equal(mask.to_startend_row_indices()[..., 0], raw)
    assert mask.intervals().lts.tolist() == [[[0, 4, 4, 4]]]


@pytest.mark.parametrize("length", [1, 127, 128, 129, 1100])
def test_block_mask_bits_round_trip(length: int) -> None:
    tiles = (length + BLOCK - 1) // BLOCK
    keep = torch.rand((2, 3, tiles, tiles), generator=torch.Generator().manual_seed(length)) < 0.5
    mask = ColumnMask(seqlen_q=length, seqlen_k=length).with_block_mask(keep)
    assert torch.equal(mask.block_keep(), keep) and mask.batch == 2 and mask.heads == 3
    assert pack_block_mask(keep).shape[-1] == (tiles + 7) // 8
    with pytest.raises(MaskError, match="block mask"):
        mask.to_startend_row_indices()


def vector(length: int = 8, dtype: torch.dtype = torch.int32, heads: int = 1) -> torch.Tensor:
    return torch.zeros((1, heads, length), dtype=dtype)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lts": vector(dtype=torch.int64)}, "lts has dtype torch.int64"),
        ({"lts": vector(7)}, "expected .*seqlen_k=8"),
        ({"lts": vector()[0]}, "has shape"),
        ({"lts": vector(), "lte": vector(heads=2)}, "differ in shape"),
        ({"lte": vector()}, "vectors given: lte, with causal=True"),
        ({"lts": vector(), "ute": vector()}, "causal=True; allowed then: none; lts; lts, lte"),
        ({"lts": vector(), "causal": False}, "allowed then: none; lts, ute"),
        ({"seqlen_q": -1}, "seqlen_q is -1"),
        ({"seqlen_q": 2**31}, "seqlen_q is 2147483648; .* at most 2147483647"),
        ({"causal": "False"}, "causal is 'False'; it must be True or False"),
        ({"lts": [1, 2]}, "lts is a list; it must be a torch.Tensor"),
        ({"block_mask": [[1]]}, "block_mask is a list"),
        ({"seqlen_k": 8.0}, "seqlen_k is 8.0"),
        ({"block_mask": torch.zeros((1, 1, 1, 1))}, "block_mask has dtype"),
        ({"block_mask": torch.zeros((1, 1, 2, 1), dtype=torch.uint8)}, "block_mask has shape"),
    ],
)
def test_nonsense_is_refused_by_name(arguments: dict, message: str) -> None:
    base = {"causal": True, "seqlen_q": 8, "seqlen_k": 8}
    with pytest.raises(MaskError, match=message):
        ColumnMask(**(base | arguments))


@pytest.mark.parametrize(
    ("shape", "dtype", "causal", "message"),
    [
        ((1, 1, 8, 3), torch.int32, True, "3 vectors with causal=True; allowed then: .1, 2."),
        ((1, 1, 8, 1), torch.int32, False, "1 vectors with causal=False; allowed then: .2, 4."),
        ((1, 1, 8, 4), torch.int32, True, "4 vectors"),
        ((1, 8, 1), torch.int32, True, "expected .batch, mask heads, seqlen_k, n."),
        ((1, 1, 8, 1), torch.int64, True, "torch.int64"),
    ],
)
def test_interchange_form_is_checked(shape: tuple, dtype: torch.dtype, causal: bool, message: str) -> None:
    with pytest.raises(MaskError, match=message):
        ColumnMask.from_startend_row_indices(torch.zeros(shape, dtype=dtype), causal=causal)


def test_block_mask_and_vectors_must_agree() -> None:
    mask = ColumnMask(lts=vector(heads=2), causal=True, seqlen_q=8, seqlen_k=8)
    with pytest.raises(MaskError, match="3 mask heads, the vectors have 2"):
        mask.with_block_mask(torch.ones((1, 3, 1, 1), dtype=torch.bool))
