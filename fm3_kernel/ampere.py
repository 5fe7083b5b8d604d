"""The FlashMask kernels of ``csrc/sm80`` from Python: what they take, their arguments, the calls.

They run on every GPU from compute capability 8.0 on, and are what attention runs on where there is no kernel of its own for the
GPU; on a Hopper GPU they are the competitor of this name. They share the preparation of masks and the form of their arguments
with the Hopper kernels (``fm3_kernel.hopper``); ``docs/flashmask.md`` describes them.

Everything is queued on the current stream of the tensors' device; nothing here waits for the device.
"""

from __future__ import annotations

import ctypes
from functools import cache

import torch
from torch import Tensor

from fm3_kernel.checks import FM3Error
from fm3_kernel.hopper import (
    DTYPES,
    HEAD_DIMS,
    LONGEST,
    MOST_ITEMS,
    SMALLEST_SCALE,
    STRIDES,
    MaskTensors,
    Preparation,
    function,
    mask_args,
    on_device,
    prepare,
    raw_stream,
    shared_strides,
    with_positive_scale,
)
from fm3_kernel.hopper_backward import ROW_PADDING, BackwardArgs, RowsArgs
from fm3_kernel.hopper_forward import L2_SHARE, ForwardArgs
from fm3_kernel.library import check
from masks.column_mask import tile_count

BACKWARD_HEAD_DIMS = (64, 128)
OLDEST = (8, 0)
"""Compute capability from which on the kernels run."""

LEAST_ROWS = {64: 64, 128: 32, 256: 64}
"""Rows of the smallest tile of a pass, a head dim: a launch counts such tiles."""


@cache
def runs_on(device: torch.device) -> bool:
    """Whether a CUDA device is of compute capability 8.0 or later."""
    return torch.cuda.get_device_capability(device) >= OLDEST


def check_tensors(q: Tensor, k: Tensor, v: Tensor) -> None:
    """What the kernels ask of their tensors beyond the public door.

    Raises:
        FM3Error: names what was given, what is allowed, and what to do instead.
    """
    if q.device.type != "cuda" or not runs_on(q.device):
        found = torch.cuda.get_device_name(q.device) if q.device.type == "cuda" else q.device.type
        raise FM3Error(f"the tensors are on {found}; the FlashMask kernel needs a GPU of compute capability 8.0 or later")
    if q.dtype not in DTYPES:
        allowed = ", ".join(str(dtype) for dtype in DTYPES)
        raise FM3Error(f"q has dtype {q.dtype}; the FlashMask kernel takes {allowed}. Cast, or use implementation='reference'")
    if q.shape[3] not in HEAD_DIMS:
        raise FM3Error(
            f"head dim is {q.shape[3]}; the FlashMask kernel takes {', '.join(map(str, HEAD_DIMS))}. "
            "Pad q, k and v with zeros (and give scale), or use implementation='reference'"
        )
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.numel() == 0:
            continue
        odd = [stride for size, stride in zip(x.shape[:3], x.stride()[:3], strict=True) if size > 1 and stride % 8]
        if x.stride(3) != 1 or odd or x.data_ptr() % 16:
            raise FM3Error(
                f"{name} has strides {x.stride()} and its start is aligned to {x.data_ptr() & -x.data_ptr()} bytes; the "
                "FlashMask kernel needs stride 1 along the head dim, the others in multiples of 8 elements, and a start "
                f"aligned to 16 bytes: use {name}.clone(memory_format=torch.contiguous_format)"
            )
    for name, x in (("q", q), ("k", k)):
        if x.shape[1] > LONGEST:
            raise FM3Error(f"{name} has length {x.shape[1]}; the FlashMask kernel takes at most {LONGEST}")
    items = tile_count(max(q.shape[1], k.shape[1]), LEAST_ROWS[q.shape[3]]) * q.shape[2] * q.shape[0]
    if items > MOST_ITEMS:
        raise FM3Error(f"{items} tiles in all heads and batch items; at most {MOST_ITEMS} a call: split the batch")


def check_gradients(head_dim: int) -> None:
    """Refuses gradients that there is no kernel for.

    Raises:
        FM3Error: names the head dims that have one.
    """
    if head_dim not in BACKWARD_HEAD_DIMS:
        raise FM3Error(
            f"head dim is {head_dim}; the FlashMask kernel has gradients for {', '.join(map(str, BACKWARD_HEAD_DIMS))}. "
            "Use implementation='reference', or torch.no_grad() if no gradient is needed"
        )


def forward(
    q: Tensor, k: Tensor, v: Tensor, mask: MaskTensors, scale: float, preparation: Preparation | None = None
) -> tuple[Tensor, Tensor]:
    """Attention output and log-sum-exp.

    Args:
        q: ``[B, Sq, Hq, D]``; k, v: ``[B, Sk, Hkv, D]``; as :func:`check_tensors` has them.
        mask: of Sq rows and Sk columns, on the tensors' device. preparation: of this mask; made here if None.
        scale: finite.

    Returns:
        ``out`` like q, contiguous; ``lse`` fp32 ``[B, Hq, Sq]``, natural logarithm. A row that sees no column: 0 and -inf.

    Raises:
        FM3Error: tensors that the kernel does not take; CudaError: a launch failed.
    """
    check_tensors(q, k, v)
    (batch, rows, heads, head_dim), (columns, kv_heads) = q.shape, k.shape[1:3]
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty((batch, heads, rows), dtype=torch.float32, device=q.device)
    if 0 in (batch, rows, heads, columns):
        return out.zero_(), lse.fill_(-torch.inf)
    q, scale = with_positive_scale(q, scale)
    if preparation is None and mask.lts is not None:
        preparation = prepare(mask, rows)
    mask_of_call, kept = mask_args(mask, rows, columns, preparation)
    fitting = L2_SHARE // (4 * columns * head_dim)  # KV heads; two tensors of 2 bytes
    args = ForwardArgs(
        *(x.data_ptr() for x in (q, k, v, out, lse)),
        *(STRIDES(*shared_strides(x, 3)) for x in (q, k, v, out)),
        mask_of_call,
        None,  # no counter: a block a row tile
        *(batch, heads, kv_heads, int(q.dtype == torch.bfloat16), scale),
        min(heads, max(1, fitting) * (heads // kv_heads)),
    )
    with on_device(q.device):
        kernel = function(f"ampere_forward_d{head_dim}", "fm3_forward", "pp")
        code = kernel(ctypes.byref(args), raw_stream(q.device.index))
    del kept
    check(code, "the FlashMask forward kernel")
    return out, lse


def backward(
    dout: Tensor,
    dlse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    mask: MaskTensors,
    scale: float,
    preparation: Preparation | None = None,
    deterministic: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v.

    Scratch, freed with the call: fp32 sums of dq in the size of q, and two fp32 numbers a head and row.

    Args:
        dout: like ``out``, any strides, finite also in rows that see nothing; dlse: like ``lse``, any strides, or None.
        q, k, v, mask, scale, preparation: as for :func:`forward`; out, lse: its result.
        deterministic: the same bits in every run. dq is summed in 31-bit integers then, whose range every row has to itself.

    Returns:
        dq, dk, dv: shape and dtype of q, k, v, contiguous. Exactly 0 for rows and columns that meet nothing.

    Raises:
        FM3Error: tensors that the kernel does not take; CudaError: a launch failed.
    """
    check_tensors(q, k, v)
    (batch, rows, heads, head_dim), (columns, kv_heads) = q.shape, k.shape[1:3]
    check_gradients(head_dim)
    device, bf16 = q.device, int(q.dtype == torch.bfloat16)
    dq, dk, dv = (torch.empty(x.shape, dtype=x.dtype, device=device) for x in (q, k, v))
    if 0 in (batch, rows, heads, columns):
        return dq.zero_(), dk.zero_(), dv.zero_()
    given = q
    q, factor = with_positive_scale(q, scale)  # as the forward pass did
    if dout.stride(3) != 1 or any(stride % 8 for stride in dout.stride()[:3]) or dout.data_ptr() % 16:
        dout = dout.clone(memory_format=torch.contiguous_format)  # contiguous() would keep a start that is not aligned
    if preparation is None and mask.lts is not None:
        preparation = prepare(mask, rows)
    padded = tile_count(rows, ROW_PADDING) * ROW_PADDING
    statistics = torch.empty((3 if deterministic else 2, batch, heads, padded), dtype=torch.float32, device=device)
    lse2, delta, *fixed = (x.data_ptr() for x in statistics)
    sums = batch * heads * padded * head_dim
    zeroed = torch.empty(sums + 2 * batch * kv_heads, dtype=torch.float32, device=device)  # and maxima, two a KV head
    dlse_strides = (0, 0, 0) if dlse is None else (dlse.stride(0), dlse.stride(2), dlse.stride(1))
    rows_args = RowsArgs(
        *(x.data_ptr() for x in (out, dout, k, v, lse)),
        None if dlse is None else dlse.data_ptr(),
        *(STRIDES(*shared_strides(x, 3)) for x in (out, dout, k, v)),
        STRIDES(*dlse_strides),
        *(lse2, delta, fixed[0] if fixed else None, zeroed.data_ptr() + 4 * sums, zeroed.data_ptr()),
        4 * zeroed.numel(),
        *(batch, heads, kv_heads, rows, columns, head_dim, bf16),
    )
    mask_of_call, kept = mask_args(mask, rows, columns, preparation)
    args = BackwardArgs(
        *(x.data_ptr() for x in (q, k, v, dout, dq, dk, dv)),
        *(STRIDES(*shared_strides(x, 3)) for x in (q, k, v, dout, dq, dk, dv)),
        mask_of_call,
        *(lse2, delta, fixed[0] if fixed else None, zeroed.data_ptr()),
        *(None, None),  # neither ledger nor counter: every KV head has its own sums, every column tile its block
        *(batch, heads, kv_heads, bf16, factor, factor if q is given else -factor),
        batch * kv_heads,
    )
    with on_device(device):
        stream = raw_stream(device.index)
        by_rows = function("backward_rows", "fm3_backward_rows", "pp")
        check(by_rows(ctypes.byref(rows_args), stream), "preparing the backward pass")
        kernel = function(f"ampere_backward_d{head_dim}", "fm3_backward", "pp")
        check(kernel(ctypes.byref(args), stream), "the FlashMask backward kernel")
    del kept
    return (dq.zero_(), dk.zero_(), dv) if abs(scale) < SMALLEST_SCALE else (dq, dk, dv)
