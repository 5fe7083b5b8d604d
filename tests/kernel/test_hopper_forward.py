"""The Hopper forward kernel against the reference, on the device."""

from __future__ import annotations

import pytest
import torch
from c_side import counters_are_zero

from fm3_kernel import flashmask_attention, hopper, prepare_mask, reference
from fm3_kernel.attention import Implementation
from masks.column_mask import ColumnMask
from masks.documents import documents_from_lengths
from masks.families import FAMILIES, build_mask

pytestmark = pytest.mark.usefixtures("blocks")


def compare(
    mask: ColumnMask,
    batch: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    dtype: torch.dtype,
    scale: float,
    rise: float = 0.0,
    implementation: Implementation = "auto",
) -> None:
    """The kernel against the reference in fp32. ``rise``: by how much the scores grow along a row, before the scale."""
    generator = torch.Generator("cuda").manual_seed(0)

    def draw(length: int, count: int) -> torch.Tensor:
        return torch.randn((batch, length, count, head_dim), generator=generator, device="cuda", dtype=dtype)

    q, k, v = draw(mask.seqlen_q, heads), draw(mask.seqlen_k, kv_heads), draw(mask.seqlen_k, kv_heads)
    if rise:
        q[..., 0] = 8
        k[..., 0] = (torch.linspace(0, rise / 8, mask.seqlen_k, device="cuda")[None, :, None]).to(dtype)
    out, lse = flashmask_attention(q, k, v, mask, scale=scale, implementation=implementation, return_lse=True)
    exact, exact_lse = reference.forward(q.float(), k.float(), v.float(), mask, scale)
    torch.testing.assert_close(lse, exact_lse, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(out.float(), exact, rtol=0, atol=2e-2 if dtype == torch.bfloat16 else 4e-3)
    assert bool((out[(exact_lse == -torch.inf).transpose(1, 2)] == 0).all())
    prepared = prepare_mask(mask)
    again, lse_again = flashmask_attention(q, k, v, prepared, scale=scale, implementation=implementation, return_lse=True)
    assert torch.equal(out, again)
    assert torch.equal(lse, lse_again)
    assert counters_are_zero()


@pytest.mark.hopper
@pytest.mark.parametrize("head_dim", hopper.HEAD_DIMS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", list(FAMILIES))
def test_families(family: str, dtype: torch.dtype, head_dim: int) -> None:
    documents = documents_from_lengths([300, 1, 500, 224, 511]) if FAMILIES[family].needs_documents else None
    mask = build_mask(family, 1536, documents=documents, batch=2, heads=4).to("cuda")
    compare(mask, 2, 4, 2, head_dim, dtype, head_dim**-0.5)


@pytest.mark.hopper
@pytest.mark.parametrize("rows", [1, 63, 64, 65, 127, 128, 129, 255, 257, 300])
@pytest.mark.parametrize("columns", [1, 64, 127, 128, 129, 300])
@pytest.mark.parametrize("causal", [False, True])
def test_lengths(rows: int, columns: int, causal: bool) -> None:
    compare(ColumnMask(causal=causal, seqlen_q=rows, seqlen_k=columns).to("cuda"), 2, 3, 3, 128, torch.bfloat16, 0.1)


@pytest.mark.hopper
@pytest.mark.parametrize("scale", [0.0, -0.1, 1e-4])
def test_scales(scale: float) -> None:
    compare(ColumnMask(causal=True, seqlen_q=300, seqlen_k=300).to("cuda"), 1, 2, 1, 64, torch.bfloat16, scale)


@pytest.mark.hopper
@pytest.mark.parametrize("head_dim", hopper.HEAD_DIMS)
@pytest.mark.parametrize("length", [64, 128, 256, 320])
def test_many_short_lists_a_block(length: int, head_dim: int) -> None:
    """Row tiles of one, two and three column tiles, several a block: every buffer changes hands at its tightest."""
    documents = documents_from_lengths([length] * (5120 // length))
    for family in ("document", "causal_document"):
        mask = build_mask(family, 5120, documents=documents).to("cuda")
        compare(mask, 1, 32, 8, head_dim, torch.bfloat16, head_dim**-0.5)


@pytest.mark.hopper
@pytest.mark.parametrize("head_dim", hopper.HEAD_DIMS)
@pytest.mark.parametrize("rise", [200.0, 2000.0, 20000.0, -2000.0])
@pytest.mark.parametrize("family", ["full", "causal", "causal_document", "share_question"])
def test_scores_that_outgrow_their_base(family: str, rise: float, head_dim: int) -> None:
    """Scores that rise along the columns leave every base behind, by a little, by much, and beyond fp32's exponents."""
    documents = documents_from_lengths([300, 1, 500, 224, 511]) if FAMILIES[family].needs_documents else None
    mask = build_mask(family, 1536, documents=documents).to("cuda")
    compare(mask, 2, 4, 2, head_dim, torch.bfloat16, head_dim**-0.5, rise)
