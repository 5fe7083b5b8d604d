"""The public door: exact attention under a column mask.

It checks every argument, then calls the operator (``fm3_kernel.operators``), which picks the implementation by device.
The signature of FlashMask itself is in ``fm3_kernel.compat``.
"""

from __future__ import annotations

from typing import Any, Literal, get_args, overload

import torch
from torch import Tensor

from fm3_kernel.checks import (
    FM3Error,
    check_mask,
    check_scale,
    check_tensors,
    check_transforms,
    check_types,
    full_name,
    scale_or_default,
)
from fm3_kernel.operators import attention_forward, is_watched
from fm3_kernel.prepare import PreparedMask
from masks.column_mask import ColumnMask

Implementation = Literal["auto", "hopper", "ampere", "reference"]
IMPLEMENTATIONS = get_args(Implementation)


@overload
def flashmask_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: ColumnMask | PreparedMask | None = None,
    *,
    scale: float | None = None,
    deterministic: bool = False,
    implementation: Implementation = "auto",
    return_lse: Literal[False] = False,
) -> Tensor: ...


@overload
def flashmask_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: ColumnMask | PreparedMask | None = None,
    *,
    scale: float | None = None,
    deterministic: bool = False,
    implementation: Implementation = "auto",
    return_lse: Literal[True],
) -> tuple[Tensor, Tensor]: ...


@overload
def flashmask_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: ColumnMask | PreparedMask | None = None,
    *,
    scale: float | None = None,
    deterministic: bool = False,
    implementation: Implementation = "auto",
    return_lse: bool,
) -> Tensor | tuple[Tensor, Tensor]: ...


def flashmask_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: ColumnMask | PreparedMask | None = None,
    *,
    scale: float | None = None,
    deterministic: bool = False,
    implementation: Implementation = "auto",
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """``softmax(scale * q @ k^T, over the visible columns) @ v``, differentiable in q, k and v.

    Args:
        q: ``[B, Sq, Hq, D]``, fp16, bf16, fp32 or fp64, any strides. Any axis may be 0.
        k, v: ``[B, Sk, Hkv, D]``, dtype and device of q. Query head ``h`` uses KV head ``h // (Hq / Hkv)``.
        mask: what each row sees, as it is or prepared (:func:`prepare_mask`); None: everything. Its lengths are those of
            the tensors, its batch 1 or B, its heads 1, Hkv or Hq, its device theirs. A causal mask is aligned bottom-right:
            row i sees columns up to ``i + Sk - Sq``.
        scale: factor of the scores, finite, default ``1/sqrt(D)``.
        deterministic: the same bits in every run, gradients included. The reference and every forward kernel always are;
            the flag is for backward kernels that are faster without.
        implementation: ``auto``: the kernel of the GPU at hand, which refuses what it cannot take; on other devices the
            reference. ``reference``: plain PyTorch, for any device, dtype and head dim, far slower on a GPU. ``hopper``:
            the kernel for GPUs of compute capability 9.0, or an error. ``ampere``: the one of the first FlashMask paper, for
            8.0 and later, or an error.
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
    prepared = None
    if isinstance(mask, PreparedMask):
        prepared, mask = mask, mask.mask
    tensors = _NO_MASK if mask is None else _mask_tensors(mask)
    watched = is_watched(q, k, v, tensors)
    call = None if watched else _signature(q, k, v, mask, scale, deterministic, return_lse, implementation)
    if call is None or call not in _checked:
        _check(q, k, v, mask, scale, deterministic, return_lse, implementation)
        if call is not None:
            if len(_checked) >= _MOST_CHECKED:
                _checked.clear()
            _checked.add(call)
    check_transforms(q, k, v)
    factor = scale_or_default(scale, q.shape[3])
    preparation = None if prepared is None or implementation == "reference" else prepared.current()
    prepared_tensors = (None, None) if preparation is None else (preparation.bounds, preparation.order)
    causal = mask is not None and mask.causal
    rest = (*tensors, *prepared_tensors, causal, factor, deterministic, implementation)
    out, lse = attention_forward(q, k, v, rest, preparation, watched, call)
    return (out, lse) if return_lse else out


def _mask_tensors(mask: object) -> tuple[Tensor | None, ...]:
    if not isinstance(mask, ColumnMask):
        raise TypeError(f"mask is a {full_name(mask)}; expected a masks.column_mask.ColumnMask or None")
    return mask.lts, mask.lte, mask.uts, mask.ute, mask.block_mask


def _check(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: ColumnMask | None,
    scale: float | None,
    deterministic: bool,
    return_lse: bool,
    implementation: str,
) -> None:
    check_types(q, k, v)
    check_tensors(q, k, v)
    check_mask(mask, q, k)
    check_scale(scale)
    for name, flag in (("deterministic", deterministic), ("return_lse", return_lse)):
        if not isinstance(flag, bool):
            raise TypeError(f"{name} is a {full_name(flag)}; expected a bool")
    if implementation not in IMPLEMENTATIONS:
        raise FM3Error(f"implementation is {implementation!r}; allowed: {', '.join(IMPLEMENTATIONS)}")


_NO_MASK: tuple[Tensor | None, ...] = (None,) * 5
_checked: set[tuple[Any, ...]] = set()
_MOST_CHECKED = 4096


def _signature(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: ColumnMask | None,
    scale: Any,
    deterministic: Any,
    return_lse: Any,
    implementation: Any,
) -> tuple[Any, ...] | None:
    """Everything that the checks look at, the kernels' own among them, so that a model's layers are checked once and not in
    every call; None for a call that is out of the ordinary and gets its checks whenever it comes."""
    if not (scale is None or type(scale) is float) or not (type(deterministic) is type(return_lse) is bool):
        return None
    if type(implementation) is not str or type(q) is not Tensor or type(k) is not Tensor or type(v) is not Tensor:
        return None
    if q.is_nested or k.is_nested or v.is_nested or q.layout != torch.strided or k.layout != q.layout or v.layout != q.layout:
        return None
    sizes = (q.shape, k.shape, v.shape, q.stride(), k.stride(), v.stride())
    kinds = (q.dtype, k.dtype, v.dtype, q.device, k.device, v.device, scale, implementation)
    if mask is None:
        return (sizes, kinds)
    vectors, block = mask.lts, mask.block_mask
    of_vectors = None if vectors is None else (vectors.shape, vectors.device)
    of_block = None if block is None else (block.shape, block.device)
    return (sizes, kinds, mask.seqlen_q, mask.seqlen_k, of_vectors, of_block)
