"""The FlashMask backward kernel against the reference, on the device: what its Hopper sibling is asked."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from random_masks import random_masks
from test_hopper_backward import compare as compare_by

from fm3_kernel import ampere, hopper
from masks.column_mask import ColumnMask
from masks.documents import documents_from_lengths
from masks.families import FAMILIES, build_mask

compare = partial(compare_by, passes=(ampere.forward, ampere.backward))
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
    mask = build_mask("causal_document", 1536, documents=documents_from_lengths(PACKED)).to("cuda")
    tensors = hopper.MaskTensors.of(mask)
    preparation = hopper.prepare(tensors, 1536)
    generator = torch.Generator("cuda").manual_seed(1)
    q, k, v, dout = (
        torch.randn((2, 1536, heads, head_dim), generator=generator, device="cuda", dtype=torch.bfloat16)
        for heads in (8, 2, 2, 8)
    )
    out, lse = ampere.forward(q, k, v, tensors, 0.1, preparation)

    def run() -> tuple[torch.Tensor, ...]:
        return ampere.backward(dout, None, q, k, v, out, lse, tensors, 0.1, preparation, deterministic=True)

    first = run()
    other, big = torch.cuda.Stream(), torch.randn((1024, 1024), device="cuda")
    differing = torch.zeros((), dtype=torch.int64, device="cuda")
    for _ in range(1000):
        with torch.cuda.stream(other):
            big.copy_(big @ big / 1000)
        for a, b in zip(first, run(), strict=True):
            differing += (a != b).sum()
    assert int(differing) == 0


@pytest.mark.gpu
def test_integer_sums_keep_what_is_not_a_number() -> None:
    """A NaN in one row of dout stays in that row of dq and nothing else of dq turns into a number that it is not."""
    mask = ColumnMask(causal=True, seqlen_q=300, seqlen_k=300).to("cuda")
    q, k, v, dout = (torch.randn((1, 300, 2, 64), device="cuda", dtype=torch.bfloat16) for _ in range(4))
    dout[0, 7, 1, 3] = torch.nan
    tensors = hopper.MaskTensors.of(mask)
    out, lse = ampere.forward(q, k, v, tensors, 0.125)
    dq, _, dv = ampere.backward(dout, None, q, k, v, out, lse, tensors, 0.125, deterministic=True)
    assert bool(dq[0, 7, 1].isnan().all())
    assert int(dq.isnan().sum()) == 64
    assert bool(dv[0, :8, 1].isnan().any())


@pytest.mark.gpu
@pytest.mark.parametrize("size", [1e-18, 1e-3, 1e3, 1e15])
def test_integer_sums_of_any_size(size: float) -> None:
    """The range of a row follows the size of its gradient."""
    mask = build_mask("document", 600, documents=documents_from_lengths([100, 500])).to("cuda")
    tensors = hopper.MaskTensors.of(mask)
    q, k, v, dout = (torch.randn((1, 600, 2, 128), device="cuda", dtype=torch.bfloat16) for _ in range(4))
    dout = dout * size * torch.logspace(-6, 0, 600, device="cuda", dtype=torch.float32)[None, :, None, None].to(torch.bfloat16)
    out, lse = ampere.forward(q, k, v, tensors, 0.1)
    plain = ampere.backward(dout, None, q, k, v, out, lse, tensors, 0.1)[0].float()
    whole = ampere.backward(dout, None, q, k, v, out, lse, tensors, 0.1, deterministic=True)[0].float()
    largest = plain.abs().amax(-1, keepdim=True)
    assert bool(((plain - whole).abs() <= 1e-2 * largest).all())


@pytest.mark.gpu
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(mask=random_masks(max_rows=400, max_columns=400, heads=(1, 2, 4), block_masks=True))
def test_random_masks(mask: ColumnMask) -> None:
    compare(mask.to("cuda"), 2, 4, 2, 128, dlse=True)
