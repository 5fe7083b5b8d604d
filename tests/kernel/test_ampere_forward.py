"""The FlashMask forward kernel against the reference, on the device: what its Hopper sibling is asked, and lists of its own."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from test_hopper_forward import compare as compare_by

from fm3_kernel import ampere
from masks.column_mask import ColumnMask
from masks.documents import documents_from_lengths
from masks.families import FAMILIES, build_mask

compare = partial(compare_by, implementation="ampere")


@pytest.mark.gpu
@pytest.mark.parametrize("head_dim", ampere.HEAD_DIMS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", list(FAMILIES))
def test_families(family: str, dtype: torch.dtype, head_dim: int) -> None:
    documents = documents_from_lengths([300, 1, 500, 224, 511]) if FAMILIES[family].needs_documents else None
    mask = build_mask(family, 1536, documents=documents, batch=2, heads=4).to("cuda")
    compare(mask, 2, 4, 2, head_dim, dtype, head_dim**-0.5)


@pytest.mark.gpu
@pytest.mark.parametrize("head_dim", ampere.HEAD_DIMS)
@pytest.mark.parametrize("rows", [1, 63, 64, 65, 127, 128, 129, 300])
@pytest.mark.parametrize("columns", [1, 31, 64, 127, 128, 129, 300])
@pytest.mark.parametrize("causal", [False, True])
def test_lengths(rows: int, columns: int, causal: bool, head_dim: int) -> None:
    compare(ColumnMask(causal=causal, seqlen_q=rows, seqlen_k=columns).to("cuda"), 2, 3, 3, head_dim, torch.bfloat16, 0.1)


@pytest.mark.gpu
@pytest.mark.parametrize("scale", [0.0, -0.1, 1e-4])
def test_scales(scale: float) -> None:
    compare(ColumnMask(causal=True, seqlen_q=300, seqlen_k=300).to("cuda"), 1, 2, 1, 64, torch.bfloat16, scale)


@pytest.mark.gpu
@pytest.mark.parametrize("head_dim", ampere.HEAD_DIMS)
@pytest.mark.parametrize("rise", [200.0, 2000.0, 20000.0, -2000.0])
@pytest.mark.parametrize("family", ["full", "causal_document", "share_question"])
def test_scores_that_outgrow_their_base(family: str, rise: float, head_dim: int) -> None:
    """Scores that rise along the columns leave every base behind, by a little, by much, and beyond fp32's exponents."""
    documents = documents_from_lengths([300, 1, 500, 224, 511]) if FAMILIES[family].needs_documents else None
    mask = build_mask(family, 1536, documents=documents).to("cuda")
    compare(mask, 2, 4, 2, head_dim, torch.bfloat16, head_dim**-0.5, rise)


@pytest.mark.gpu
@pytest.mark.parametrize("head_dim", ampere.HEAD_DIMS)
def test_more_columns_than_a_list_covers(head_dim: int) -> None:
    """Three lists: live tiles in all of them, in the outer ones alone, in none; no multiple of a tile."""
    columns = 2 * 1024 * 64 + 300
    lts, lte = (torch.zeros((1, 1, columns), dtype=torch.int32) for _ in range(2))
    lte[..., 70000:120000] = 256  # hidden from the first 256 rows
    lts[..., :] = 0
    mask = ColumnMask(
        lts=lts, lte=lte, uts=torch.full_like(lts, 384), ute=torch.full_like(lts, 640), seqlen_q=640, seqlen_k=columns
    )
    compare(mask.to("cuda"), 1, 2, 1, head_dim, torch.bfloat16, head_dim**-0.5)
