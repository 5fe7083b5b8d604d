"""What is asked of deterministic sums of dq on the device, whichever kernel makes them.

``passes``: the forward and the backward function of a kernel, as ``hopper_forward.forward`` and ``hopper_backward.backward``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fm3_kernel import hopper
from masks.column_mask import ColumnMask
from masks.documents import documents_from_lengths
from masks.families import build_mask

Passes = tuple[Callable[..., Any], Callable[..., Any]]


def same_bits_under_load(passes: Passes, head_dim: int) -> None:
    """A thousand runs beside other work."""
    forward, backward = passes
    mask = build_mask("causal_document", 1536, documents=documents_from_lengths([300, 1, 500, 224, 511])).to("cuda")
    tensors = hopper.MaskTensors.of(mask)
    preparation = hopper.prepare(tensors, 1536)
    generator = torch.Generator("cuda").manual_seed(1)
    q, k, v, dout = (
        torch.randn((2, 1536, heads, head_dim), generator=generator, device="cuda", dtype=torch.bfloat16)
        for heads in (8, 2, 2, 8)
    )
    out, lse = forward(q, k, v, tensors, 0.1, preparation)

    def run() -> tuple[torch.Tensor, ...]:
        return backward(dout, None, q, k, v, out, lse, tensors, 0.1, preparation, deterministic=True)

    first = run()
    other, big = torch.cuda.Stream(), torch.randn((1024, 1024), device="cuda")
    differing = torch.zeros((), dtype=torch.int64, device="cuda")
    for _ in range(1000):
        with torch.cuda.stream(other):
            big.copy_(big @ big / 1000)
        for a, b in zip(first, run(), strict=True):
            differing += (a != b).sum()
    assert int(differing) == 0


def keep_what_is_not_a_number(passes: Passes) -> None:
    """A NaN in one row of dout stays in that row of dq and nothing else of dq turns into a number that it is not."""
    forward, backward = passes
    mask = ColumnMask(causal=True, seqlen_q=300, seqlen_k=300).to("cuda")
    q, k, v, dout = (torch.randn((1, 300, 2, 64), device="cuda", dtype=torch.bfloat16) for _ in range(4))
    dout[0, 7, 1, 3] = torch.nan
    tensors = hopper.MaskTensors.of(mask)
    out, lse = forward(q, k, v, tensors, 0.125)
    dq, _, dv = backward(dout, None, q, k, v, out, lse, tensors, 0.125, deterministic=True)
    assert bool(dq[0, 7, 1].isnan().all())
    assert int(dq.isnan().sum()) == 64
    assert bool(dv[0, :8, 1].isnan().any())


def of_any_size(passes: Passes, size: float) -> None:
    """The range of a row follows the size of its gradient."""
    forward, backward = passes
    mask = build_mask("document", 600, documents=documents_from_lengths([100, 500])).to("cuda")
    tensors = hopper.MaskTensors.of(mask)
    q, k, v, dout = (torch.randn((1, 600, 2, 128), device="cuda", dtype=torch.bfloat16) for _ in range(4))
    dout = dout * size * torch.logspace(-6, 0, 600, device="cuda", dtype=torch.float32)[None, :, None, None].to(torch.bfloat16)
    out, lse = forward(q, k, v, tensors, 0.1)
    plain = backward(dout, None, q, k, v, out, lse, tensors, 0.1)[0].float()
    fixed = backward(dout, None, q, k, v, out, lse, tensors, 0.1, deterministic=True)[0].float()
    largest = plain.abs().amax(-1, keepdim=True)
    assert bool(((plain - fixed).abs() <= 1e-2 * largest).all())
