"""The public door: exact attention under a column mask.

It checks every argument, then calls the ``fm3::attention_forward`` operator, which picks the implementation by device.
The signature of FlashMask itself is in ``fm3_kernel.compat``.
"""

from __future__ import annotations

from typing import Literal, overload

import torch
from torch import Tensor

from fm3_kernel import operators as operators  # registers the operators
from fm3_kernel.checks import check_mask, check_no_tangent, check_tensors, checked_scale
from masks.column_mask import ColumnMask


@overload
def flashmask_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: ColumnMask | None = None,
    *,
    scale: float | None = None,
    deterministic: bool = False,
    return_lse: Literal[False] = False,
) -> Tensor: ...


@overload
def flashmask_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: ColumnMask | None = None,
    *,
    scale: float | None = None,
    deterministic: bool = False,
    return_lse: Literal[True],
) -> tuple[Tensor, Tensor]: ...


@overload
def flashmask_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: ColumnMask | None = None,
    *,
    scale: float | None = None,
    deterministic: bool = False,
    return_lse: bool,
) -> Tensor | tuple[Tensor, Tensor]: ...


def flashmask_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: ColumnMask | None = None,
    *,
    scale: float | None = None,
    deterministic: bool = False,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """``softmax(scale * q @ k^T, over the visible columns) @ v``, differentiable in q, k and v.

    Args:
        q: ``[B, Sq, Hq, D]``, fp16, bf16, fp32 or fp64, any strides. Any axis may be 0.
        k, v: ``[B, Sk, Hkv, D]``, dtype and device of q. Query head ``h`` uses KV head ``h // (Hq / Hkv)``.
        mask: what each row sees; None: everything. Its lengths are those of the tensors, its batch 1 or B, its heads 1,
            Hkv or Hq, its device theirs. A causal mask is aligned bottom-right: row i sees columns up to ``i + Sk - Sq``.
        scale: factor of the scores, finite, default ``1/sqrt(D)``.
        deterministic: the same bits in every run, gradients included. The reference always is; the flag is for kernels
            that are faster without.
        return_lse: return the log-sum-exp too.

    Returns:
        ``out``, contiguous, shape and dtype of q; with ``return_lse`` also ``lse`` ``[B, Hq, Sq]``, the natural logarithm
        of the sum of ``exp(scale * q @ k^T)`` over the visible columns, fp32 (fp64 for fp64 inputs), differentiable.
        A row that sees no column has out 0, lse -inf and gradients exactly 0.

    Raises:
        FM3Error (a ValueError): shapes, devices, mask or scale that do not fit, D_qk != D_v among them.
        TypeError: an argument of the wrong type or dtype.
        RuntimeError: on a second derivative, and on a forward-mode one.
    """
    check_tensors(q, k, v)
    check_no_tangent(q, k, v)
    check_mask(mask, q, k)
    factor = checked_scale(scale, q.shape[3])
    for name, flag in (("deterministic", deterministic), ("return_lse", return_lse)):
        if not isinstance(flag, bool):
            raise TypeError(f"{name} is a {type(flag).__name__}; expected a bool")
    if mask is None:
        vectors: tuple[Tensor | None, ...] = (None, None, None, None, None)
        causal = False
    else:
        vectors = (mask.lts, mask.lte, mask.uts, mask.ute, mask.block_mask)
        causal = bool(mask.causal)
    out, lse = torch.ops.fm3.attention_forward(q, k, v, *vectors, causal, factor, deterministic)
    return (out, lse) if return_lse else out
