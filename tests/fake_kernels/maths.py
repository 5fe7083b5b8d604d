"""Attention by a dense mask, in float32, forward and backward, and the checks that every stand-in makes of its tensors."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

CALLS: list[dict[str, Any]] = []
"""Arguments of every call since the last ``install``."""


def record(**arguments: Any) -> None:
    """Keep a call."""
    CALLS.append(arguments)


def check_inputs(q: Tensor, k: Tensor, v: Tensor, dims: int) -> None:
    """16-bit tensors ``[..., heads, head dim]`` of ``dims`` dimensions on one device, contiguous in the last."""
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        assert tensor.dim() == dims, f"{name} has {tensor.dim()} dimensions, {dims} are documented"
        assert tensor.dtype in (torch.float16, torch.bfloat16), f"{name} is {tensor.dtype}"
        assert tensor.dtype == q.dtype and tensor.device == q.device, f"{name} differs from q in dtype or device"
        assert tensor.stride(-1) == 1, f"{name} is not contiguous in its last dimension"
    assert k.shape == v.shape, f"k is {tuple(k.shape)}, v is {tuple(v.shape)}"
    assert q.shape[-1] == k.shape[-1], "q and k differ in head dim"
    assert q.shape[-2] % k.shape[-2] == 0, f"{q.shape[-2]} query heads, {k.shape[-2]} KV heads"


def check_int32(name: str, tensor: Tensor, like: Tensor, *shape: int | None) -> None:
    """int32, on the device of ``like``, contiguous, of this shape (None: any length)."""
    assert isinstance(tensor, Tensor), f"{name} is a {type(tensor).__name__}"
    assert tensor.dtype == torch.int32, f"{name} is {tensor.dtype}, int32 is documented"
    assert tensor.device == like.device, f"{name} is on {tensor.device}, q is on {like.device}"
    assert tensor.is_contiguous(), f"{name} is not contiguous"
    found = tuple(tensor.shape)
    fits = len(found) == len(shape) and all(want in (None, have) for want, have in zip(shape, found, strict=True))
    assert fits, f"{name} has shape {found}, documented is {shape}"


class Dense(torch.autograd.Function):
    """out ``[B, S, H, D]`` and LSE float32 ``[B, H, S]`` (-inf where nothing is visible) by a dense mask.

    The gradients are those of ``seen_backward``, a second mask: a kernel is told twice what to compute.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, seen: Tensor, seen_backward: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(q, k, v, seen_backward)
        out, lse = _attend(q, k, v, seen)
        ctx.mark_non_differentiable(lse)
        return out.to(q.dtype), lse

    @staticmethod
    def backward(ctx: Any, dout: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        q, k, v, seen = ctx.saved_tensors
        with torch.enable_grad():
            leaves = [tensor.detach().float().requires_grad_() for tensor in (q, k, v)]
            out, _ = _attend(*leaves, seen)
            grads = torch.autograd.grad(out, leaves, dout.float())
        return (*(grad.to(q.dtype) for grad in grads), None, None)


def _attend(q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    group = q.shape[2] // k.shape[2]
    q, k, v = (tensor.float().transpose(1, 2) for tensor in (q, k, v))
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = (q @ k.transpose(2, 3) / math.sqrt(q.shape[-1])).masked_fill(~seen, -math.inf)
    lse = torch.logsumexp(scores, -1)
    weights = torch.exp(scores - lse.masked_fill(lse == -math.inf, 0).unsqueeze(-1))
    return (weights @ v).transpose(1, 2), lse


def dense_attention(q: Tensor, k: Tensor, v: Tensor, seen: Tensor, seen_backward: Tensor | None = None) -> Any:
    """:class:`Dense`, with masks of any shape that broadcasts to ``[B, H, Sq, Sk]``."""
    shape = (q.shape[0], q.shape[2], q.shape[1], k.shape[1])
    backward = seen if seen_backward is None else seen_backward
    return Dense.apply(q, k, v, seen.expand(shape), backward.expand(shape))


def band(rows: int, columns: int, causal: bool, window: tuple[int, int]) -> Tensor:
    """FlashAttention's window, aligned bottom-right: ``i + Sk - Sq - left <= j <= i + Sk - Sq + right``; -1 is no limit."""
    left, right = window
    if causal:
        right = 0
    row = torch.arange(rows).unsqueeze(1) + columns - rows
    column = torch.arange(columns).unsqueeze(0)
    seen = torch.ones(rows, columns, dtype=torch.bool)
    if left >= 0:
        seen &= column >= row - left
    if right >= 0:
        seen &= column <= row + right
    return seen
