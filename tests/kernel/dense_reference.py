"""Dense attention in fp64 with autograd, and the comparison that every kernel test uses.

Independent of the code under test: the mask comes from ``masks.dense``, heads are repeated one by one, rows without a
key are handled by ``where``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from fm3_kernel import flashmask_attention
from masks.column_mask import ColumnMask
from masks.dense import dense


class Result(NamedTuple):
    out: Tensor
    lse: Tensor
    dq: Tensor
    dk: Tensor
    dv: Tensor


def visible_of(mask: ColumnMask | None, q: Tensor, k: Tensor) -> Tensor:
    """bool ``[B or 1, Hq, Sq, Sk]``."""
    heads = q.shape[2]
    if mask is None:
        return torch.ones((1, heads, q.shape[1], k.shape[1]), dtype=torch.bool)
    seen = dense(mask)
    return seen.repeat_interleave(heads // seen.shape[1], dim=1)


def dense_attention(q: Tensor, k: Tensor, v: Tensor, visible: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """out ``[B, Sq, Hq, D]`` and natural-log lse ``[B, Hq, Sq]`` in the dtype of the inputs, differentiable."""
    group = q.shape[2] // max(1, k.shape[2])
    query = q.transpose(1, 2)
    key, value = (x.transpose(1, 2).repeat_interleave(group, dim=1) for x in (k, v))
    scores = query @ key.transpose(2, 3) * scale
    alive = visible.any(-1).expand(scores.shape[:3])
    # A dead row is given all columns here, and its results are replaced afterwards.
    scores = scores.masked_fill(~(visible | ~alive.unsqueeze(-1)), -torch.inf)
    lse = torch.where(alive, torch.logsumexp(scores, -1), -torch.inf)
    out = torch.where(alive.unsqueeze(-1), torch.softmax(scores, -1) @ value, 0.0)
    return out.transpose(1, 2), lse


def run(
    function: Callable[..., tuple[Tensor, Tensor]], q: Tensor, k: Tensor, v: Tensor, dout: Tensor, dlse: Tensor | None
) -> Result:
    """out, lse and the gradients of ``<out, dout> + <lse, dlse>`` over the rows that see a key."""
    q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
    out, lse = function(q, k, v)
    outputs, grads = [out], [dout]
    if dlse is not None:
        outputs, grads = [out, lse], [dout, dlse]
    dq, dk, dv = torch.autograd.grad(outputs, (q, k, v), grads)
    return Result(out.detach(), lse.detach(), dq, dk, dv)


def tensors(
    batch: int = 1,
    rows: int = 64,
    columns: int = 64,
    heads: int = 2,
    kv_heads: int | None = None,
    width: int = 16,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """q, k, v, dout, dlse: Gaussian, every head different."""
    generator = torch.Generator().manual_seed(seed)
    kv_heads = heads if kv_heads is None else kv_heads

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    shapes = ((batch, rows, heads, width), *(((batch, columns, kv_heads, width),) * 2), (batch, rows, heads, width))
    q, k, v, dout = (normal(*shape).to(dtype) for shape in shapes)
    lse_dtype = torch.float64 if dtype == torch.float64 else torch.float32
    return q, k, v, dout, normal(batch, heads, rows).to(lse_dtype)


def expected(
    q: Tensor, k: Tensor, v: Tensor, dout: Tensor, dlse: Tensor | None, mask: ColumnMask | None, scale: float
) -> Result:
    """The dense result in fp64 for inputs of any dtype."""
    visible = visible_of(mask, q, k)
    double = [None if x is None else x.double() for x in (q, k, v, dout, dlse)]
    return run(lambda q, k, v: dense_attention(q, k, v, visible, scale), *double)


def actual(
    q: Tensor, k: Tensor, v: Tensor, dout: Tensor, dlse: Tensor | None, mask: ColumnMask | None, scale: float | None = None
) -> Result:
    """The same through the public door."""
    return run(lambda q, k, v: flashmask_attention(q, k, v, mask, scale=scale, return_lse=True), q, k, v, dout, dlse)


TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def assert_close(got: Result, want: Result, tolerance: float | None = None, rows: slice = slice(None)) -> None:
    """Every tensor alone: right dtype, the same infinities, no NaN, and an error below tolerance x (1 + largest value)."""
    for name, a, b in zip(Result._fields, got, want, strict=True):
        assert a.shape == b.shape, f"{name}: {tuple(a.shape)} instead of {tuple(b.shape)}"
        assert a.is_contiguous(), name
        if name in ("out", "dq"):
            a, b = a[:, rows], b[:, rows]
        elif name == "lse":
            a, b = a[..., rows], b[..., rows]
        assert not b.isnan().any(), f"{name}: the dense reference itself is NaN"
        assert torch.equal(a.isinf(), b.isinf()), f"{name}: infinities differ"
        bound = TOLERANCE[got.out.dtype] if tolerance is None else tolerance
        finite = b.isfinite()
        error = (a.double() - b)[finite].abs().max().item() if finite.any() else 0.0
        size = b[finite].abs().max().item() if finite.any() else 0.0
        assert error <= bound * (1 + size), f"{name}: error {error:.3e} at size {size:.3e}"


def check(
    mask: ColumnMask | None, *inputs: Tensor, scale: float | None = None, tolerance: float | None = None
) -> tuple[Result, Result]:
    """Run both on (q, k, v, dout, dlse) and compare; dead rows must be exact."""
    q, k, v, dout, dlse = inputs
    got = actual(q, k, v, dout, dlse, mask, scale)
    factor = (q.shape[3] ** -0.5 if q.shape[3] else 1.0) if scale is None else scale
    want = expected(q, k, v, dout, dlse, mask, factor)
    assert_close(got, want, tolerance)
    dead = want.lse == -torch.inf
    assert (got.lse[dead] == -torch.inf).all()
    for rows in (got.out, got.dq):
        assert (rows.transpose(1, 2)[dead] == 0).all()
    return got, want
