"""The FlashMask backward kernel against the reference, on the device: what its Hopper sibling is asked."""

from __future__ import annotations

from functools import partial

import fixed_sums
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from random_masks import random_masks
from test_hopper_backward import compare as compare_by

from fm3_kernel import ampere
from masks.column_mask import ColumnMask
from masks.documents import documents_from_lengths
from masks.families import FAMILIES, build_mask

PASSES = (ampere.forward, ampere.backward)
compare = partial(compare_by, passes=PASSES)
PACKED = [300, 1, 500, 224, 511]


@pytest.mark.gpu
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("head_dim", ampere.BACKWARD_HEAD_DIMS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", list(FAMILIES))
def test_families(family: str, dtype: torch.dtype, head_dim: int, deterministic: bool) -> None:
    """Deterministic ones with a gradient of the LSE, the others without."""
    documents = documents_from_lengths(PACKED) if FAMILIES[family].needs_documents else None
    mask = build_mask(family, 1536, documents=documents, batch=2, heads=4).to("cuda")
    compare(mask, 2, 4, 2, head_dim, dtype, dlse=deterministic, deterministic=deterministic)


@pytest.mark.gpu
@pytest.mark.parametrize("head_dim", ampere.BACKWARD_HEAD_DIMS)
@pytest.mark.parametrize("rows", [1, 63, 64, 65, 128, 129, 300])
@pytest.mark.parametrize("columns", [1, 64, 127, 128, 129, 300])
@pytest.mark.parametrize("causal", [False, True])
def test_lengths(rows: int, columns: int, causal: bool, head_dim: int) -> None:
    compare(ColumnMask(causal=causal, seqlen_q=rows, seqlen_k=columns).to("cuda"), 2, 3, 3, head_dim, dlse=True)


@pytest.mark.gpu
@pytest.mark.parametrize("scale", [0.0, -0.1, 1e-3])
def test_scales(scale: float) -> None:
    compare(ColumnMask(causal=True, seqlen_q=300, seqlen_k=300).to("cuda"), 1, 2, 1, 64, scale=scale)


@pytest.mark.gpu
@pytest.mark.parametrize("head_dim", ampere.BACKWARD_HEAD_DIMS)
def test_a_thousand_runs_under_load_give_the_same_bits(head_dim: int) -> None:
    fixed_sums.same_bits_under_load(PASSES, head_dim)


@pytest.mark.gpu
def test_integer_sums_keep_what_is_not_a_number() -> None:
    fixed_sums.keep_what_is_not_a_number(PASSES)


@pytest.mark.gpu
@pytest.mark.parametrize("size", [1e-18, 1e-3, 1e3, 1e15])
def test_integer_sums_of_any_size(size: float) -> None:
    fixed_sums.of_any_size(PASSES, size)


@pytest.mark.gpu
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(mask=random_masks(max_rows=400, max_columns=400, heads=(1, 2, 4), block_masks=True))
def test_random_masks(mask: ColumnMask) -> None:
    compare(mask.to("cuda"), 2, 4, 2, 128, dlse=True)
