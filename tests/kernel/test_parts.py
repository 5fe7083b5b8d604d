"""Keys in parts: merged results and summed gradients are those of all keys at once."""

from __future__ import annotations

import pytest
import torch
from dense_reference import TOLERANCE, Result, assert_close, expected, tensors
from torch import Tensor

from fm3_kernel import flashmask_attention, prepare_mask
from fm3_kernel.parts import merge, part_gradients, sum_dtype
from masks.documents import paper_documents
from masks.families import FAMILIES, build_mask
from masks.localize import localize

ROWS = 300
PARTS = ((0, 128), (128, 200), (200, 300))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "block_sparse"])
def test_three_parts_are_the_whole(family: str, dtype: torch.dtype) -> None:
    """In parts some rows see no key, and in all of them rows of some families see none at all. (Block masks are cut at
    whole tiles only, as in tests/context_parallel.)"""
    documents = paper_documents(ROWS, "b") if FAMILIES[family].needs_documents else None
    mask = build_mask(family, ROWS, documents=documents)
    q, k, v, dout, dlse = tensors(1, ROWS, ROWS, 4, 2, dtype=dtype)
    scale = 0.3
    out = torch.zeros(q.shape, dtype=sum_dtype(dtype))
    lse = torch.full((1, 4, ROWS), -torch.inf, dtype=out.dtype)
    parts = []
    for start, end in PARTS:
        local = prepare_mask(localize(mask, [(0, ROWS)], [(start, end)]))
        parts.append((k[:, start:end], v[:, start:end], local))
        out, lse = merge(out, lse, *flashmask_attention(q, *parts[-1], scale=scale, return_lse=True))
    out = out.to(dtype)
    grads = [part_gradients(dout, dlse, q, k, v, out, lse, local, scale=scale) for k, v, local in parts]
    dq = torch.stack([dq for dq, _, _ in grads]).to(sum_dtype(dtype)).sum(0).to(dtype)
    dk, dv = (torch.cat([one[i] for one in grads], dim=1) for i in (1, 2))
    assert_close(Result(out, lse, dq, dk, dv), expected(q, k, v, dout, dlse, mask, scale), 2 * TOLERANCE[dtype])


def part(lse: list[float], out: list[float]) -> tuple[Tensor, Tensor]:
    return torch.tensor(out).view(1, -1, 1, 1), torch.tensor(lse).view(1, 1, -1)


def test_weights_of_a_merge() -> None:
    """Natural logarithms: sums of 2 and 8 weigh 0.2 and 0.8. A part without keys weighs nothing, two of them stay empty."""
    empty = -torch.inf
    first = part([torch.tensor(2.0).log().item(), 1.0, empty, empty, 200.0], [1.0, 3.0, 0.0, 0.0, 5.0])
    second = part([torch.tensor(8.0).log().item(), empty, 2.0, empty, -200.0], [11.0, 0.0, 7.0, 0.0, 9.0])
    before = [x.clone() for x in (*first, *second)]
    out, lse = merge(*first, *second)
    torch.testing.assert_close(out.flatten(), torch.tensor([9.0, 3.0, 7.0, 0.0, 5.0]))
    torch.testing.assert_close(lse.flatten(), torch.tensor([torch.tensor(10.0).log().item(), 1.0, 2.0, empty, 200.0]))
    assert all(torch.equal(a, b) for a, b in zip(before, (*first, *second), strict=True))
    swapped = merge(*second, *first)
    assert all(torch.equal(a, b) for a, b in zip((out, lse), swapped, strict=True))


def test_merges_are_associative() -> None:
    generator = torch.Generator().manual_seed(0)
    a, b, c = (
        (torch.randn((2, 50, 3, 4), generator=generator).double(), 5 * torch.randn((2, 3, 50), generator=generator).double())
        for _ in range(3)
    )
    for left, right in zip(merge(*merge(*a, *b), *c), merge(*a, *merge(*b, *c)), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-12, atol=1e-12)
