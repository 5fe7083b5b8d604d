"""Refusals of the public door: everything is checked here before anything is computed.

Each message says what was given and what is allowed. No arithmetic and no reading of tensor contents, so nothing waits
for a device.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import forward_ad

from masks.column_mask import ColumnMask

LARGEST_SCALE = 1e38
"""What float32 can hold, with room for the logarithm's base."""

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class FM3Error(ValueError):
    """Arguments that do not fit together: the message says what was given and what is allowed."""


def full_name(value: object) -> str:
    """Name of a value's type, with its module where that is not Python's own (NumPy has a bool too)."""
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


def check_types(q: Tensor, k: Tensor, v: Tensor) -> None:
    """What kind of thing each argument is.

    Raises:
        TypeError: not a tensor; FM3Error: a nested tensor.
    """
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} is a {type(tensor).__name__}; expected a torch.Tensor")
        if tensor.is_nested:
            raise FM3Error(f"{name} is a nested tensor; pack the sequences into one and give a document mask")


def check_tensors(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Ranks, dtypes, devices and shapes of q ``[B, Sq, Hq, D]`` and k, v ``[B, Sk, Hkv, D]``.

    Raises:
        TypeError: a dtype that is not one of fp16, bf16, fp32, fp64.
        FM3Error: anything else.
    """
    named = {"q": q, "k": k, "v": v}
    for name, tensor in named.items():
        if tensor.dim() != 4:
            raise FM3Error(f"{name} has shape {tuple(tensor.shape)}; expected 4 axes [batch, length, heads, head dim]")
        if tensor.layout != torch.strided:
            raise FM3Error(f"{name} has layout {tensor.layout}; expected torch.strided")
    if q.dtype not in DTYPES:
        raise TypeError(f"q has dtype {q.dtype}; allowed: {', '.join(str(dtype) for dtype in DTYPES)}")
    for name in ("k", "v"):
        if named[name].dtype != q.dtype:
            raise TypeError(f"{name} has dtype {named[name].dtype}, q has {q.dtype}; q, k and v must share one dtype")
        if named[name].device != q.device:
            raise FM3Error(f"{name} is on {named[name].device}, q is on {q.device}; q, k and v must share one device")
        if named[name].shape[0] != q.shape[0]:
            raise FM3Error(f"{name} has batch {named[name].shape[0]}, q has {q.shape[0]}; they must be equal")
    if k.shape[1] != v.shape[1]:
        raise FM3Error(f"k has {k.shape[1]} columns, v has {v.shape[1]}; they must be equal")
    if k.shape[2] != v.shape[2]:
        raise FM3Error(f"k has {k.shape[2]} heads, v has {v.shape[2]}; they must be equal")
    if q.shape[3] != k.shape[3]:
        raise FM3Error(f"q has head dim {q.shape[3]}, k has {k.shape[3]}; they must be equal")
    if q.shape[3] != v.shape[3]:
        raise FM3Error(f"D_qk is {q.shape[3]} and D_v is {v.shape[3]}; only equal head dims are supported")
    heads, kv_heads = q.shape[2], k.shape[2]
    if heads != kv_heads and (kv_heads == 0 or heads == 0 or heads % kv_heads != 0):
        raise FM3Error(f"q has {heads} heads, k and v have {kv_heads}; query heads must be a multiple of KV heads")


def check_transforms(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Forward-mode differentiation would silently give zero, and torch.func's reverse mode fails in words of its own.

    Raises:
        RuntimeError: names the transform and, for a tangent, the input.
    """
    if torch.compiler.is_compiling():
        return
    level = torch._C._functorch.peek_interpreter_stack()
    if level is not None and level.key() == torch._C._functorch.TransformType.Grad:
        raise RuntimeError("flashmask_attention cannot be differentiated by torch.func; use torch.autograd.grad or backward()")
    if forward_ad._current_level < 0:
        return
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if forward_ad.unpack_dual(tensor).tangent is not None:
            raise RuntimeError(f"flashmask_attention has no forward-mode derivative (jvp), and {name} carries a tangent")


def check_mask(mask: ColumnMask | None, q: Tensor, k: Tensor) -> None:
    """Lengths, batch, heads and device of the mask against the tensors.

    Raises:
        FM3Error: it does not fit.
    """
    if mask is None:
        return
    for name, given, wanted in (("seqlen_q", mask.seqlen_q, q.shape[1]), ("seqlen_k", mask.seqlen_k, k.shape[1])):
        if given != wanted:
            raise FM3Error(f"the mask has {name}={given}, the tensors have {wanted}; they must be equal")
    check_mask_heads(mask, q, k)
    if (mask.lts is not None or mask.block_mask is not None) and mask.device != q.device:
        raise FM3Error(f"the mask is on {mask.device}, the tensors are on {q.device}; move it with mask.to(device)")


def check_mask_heads(mask: ColumnMask, q: Tensor, k: Tensor) -> None:
    """Batch and heads of the mask against the tensors, whatever part of the rows and columns they are.

    Raises:
        FM3Error: they do not fit.
    """
    batch, heads, kv_heads = q.shape[0], q.shape[2], k.shape[2]
    if mask.batch != 1 and mask.batch != batch:
        raise FM3Error(f"the mask has batch {mask.batch}; allowed: 1 or the tensors' batch {batch}")
    if mask.heads != 1 and mask.heads != kv_heads and mask.heads != heads:
        raise FM3Error(f"the mask has {mask.heads} heads; allowed: 1, the {kv_heads} KV heads or the {heads} query heads")


def check_scale(scale: float | None) -> None:
    """A finite number or None.

    Raises:
        TypeError: not a number; FM3Error: not finite.
    """
    if scale is None:
        return
    if isinstance(scale, bool) or not isinstance(scale, (int, float)):
        raise TypeError(f"scale is a {type(scale).__name__}; expected a float or None")
    if not -LARGEST_SCALE <= scale <= LARGEST_SCALE:  # NaN is not either
        raise FM3Error(f"scale is {scale}; it must be finite, and at most {LARGEST_SCALE:.1e} in size")


def scale_or_default(scale: float | None, head_dim: int) -> float:
    """The factor of the scores: ``1/sqrt(head_dim)`` by default."""
    if scale is not None:
        return float(scale)
    # A head dim of 0 has only zero scores: any finite factor gives them.
    return 1.0 if head_dim == 0 else head_dim**-0.5
