"""The Hopper backward kernel from Python: scratch, the three launches, the call.

Scratch, freed with the call: two fp32 numbers a head and row, and fp32 sums for dq. The sums are made in whatever order
blocks come, so that the last bits of dq vary from run to run.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from fm3_kernel.checks import FM3Error
from fm3_kernel.hopper import (
    SMALLEST_SCALE,
    STRIDES,
    MaskArgs,
    MaskTensors,
    Preparation,
    check_tensors,
    counters,
    function,
    mask_args,
    on_device,
    prepare,
    raw_stream,
    shared_strides,
    with_positive_scale,
)
from fm3_kernel.library import check
from masks.column_mask import tile_count

HEAD_DIMS = (64, 128)
ROWS = 64
"""Queries of a step (``kM`` of ``csrc/sm90/backward_shape.cuh``); scratch of rows is padded to it."""


class BackwardArgs(ctypes.Structure):
    """``Fm3BackwardArgs`` of ``csrc/sm90/backward_args.h``, field by field."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("q", "k", "v", "dout", "dk", "dv")),
        *((f"{name}_strides", STRIDES) for name in ("q", "k", "v", "dout", "dk", "dv")),
        ("mask", MaskArgs),
        *((name, ctypes.c_void_p) for name in ("lse2", "delta", "dq_sums", "work")),
        *((name, ctypes.c_int) for name in ("batch", "heads", "kv_heads", "bf16")),
        ("scale", ctypes.c_float),
        ("multiprocessors", ctypes.c_int),
    ]


class RowsArgs(ctypes.Structure):
    """``Fm3RowsArgs`` of ``csrc/sm90/backward_args.h``, field by field."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("out", "dout", "lse", "dlse", "dq")),
        *((f"{name}_strides", STRIDES) for name in ("out", "dout", "dq", "dlse")),
        *((name, ctypes.c_void_p) for name in ("lse2", "delta", "dq_sums")),
        *((name, ctypes.c_int) for name in ("batch", "heads", "rows", "head_dim", "bf16")),
        ("scale", ctypes.c_float),
    ]


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
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v.

    Args:
        dout: like ``out``, any strides, finite also in rows that see nothing; dlse: like ``lse``, any strides, or None.
        q, k, v, mask, scale, preparation: as for :func:`fm3_kernel.hopper_forward.forward`, D = 64 or 128.
        out, lse: its result.

    Returns:
        dq, dk, dv: shape and dtype of q, k, v, contiguous. Exactly 0 for rows and columns that meet nothing.

    Raises:
        FM3Error: tensors that the kernel does not take; CudaError: a launch failed.
    """
    check_tensors(q, k, v)
    if q.shape[3] not in HEAD_DIMS:
        raise FM3Error(f"head dim is {q.shape[3]}; the Hopper backward kernel takes {', '.join(map(str, HEAD_DIMS))}")
    (batch, rows, heads, head_dim), (columns, kv_heads) = q.shape, k.shape[1:3]
    device = q.device
    dq, dk, dv = (torch.empty(x.shape, dtype=x.dtype, device=device) for x in (q, k, v))
    if 0 in (batch, rows, heads, columns):
        return dq.zero_(), dk.zero_(), dv.zero_()
    given = q
    q, factor = with_positive_scale(q, scale)  # as the forward pass did
    if dout.stride(3) != 1 or any(stride % 8 for stride in dout.stride()[:3]) or dout.data_ptr() % 16:
        dout = dout.clone(memory_format=torch.contiguous_format)  # contiguous() would keep a start that is not aligned
    if preparation is None and mask.lts is not None:
        preparation = prepare(mask, rows)
    padded = tile_count(rows, ROWS) * ROWS
    scratch = torch.empty((2 + head_dim, batch, heads, padded), dtype=torch.float32, device=device)
    lse2, delta, sums = scratch[0], scratch[1], scratch[2:]
    dlse_strides = (0, 0, 0) if dlse is None else (dlse.stride(0), dlse.stride(2), dlse.stride(1))
    rows_args = RowsArgs(
        *(x.data_ptr() for x in (out, dout, lse)),
        None if dlse is None else dlse.data_ptr(),
        dq.data_ptr(),
        *(STRIDES(*shared_strides(x, 3)) for x in (out, dout, dq)),
        STRIDES(*dlse_strides),
        *(x.data_ptr() for x in (lse2, delta, sums)),
        *(batch, heads, rows, head_dim, int(q.dtype == torch.bfloat16), factor if q is given else -factor),
    )
    mask_of_call, kept = mask_args(mask, rows, columns, preparation)
    args = BackwardArgs(
        *(x.data_ptr() for x in (q, k, v, dout, dk, dv)),
        *(STRIDES(*shared_strides(x, 3)) for x in (q, k, v, dout, dk, dv)),
        mask_of_call,
        *(x.data_ptr() for x in (lse2, delta, sums)),
        None,
        *(batch, heads, kv_heads, int(q.dtype == torch.bfloat16), factor),
        torch.cuda.get_device_properties(device).multi_processor_count,
    )
    with on_device(device):
        stream = raw_stream(device.index)
        args.work, graph_memory = counters(device, stream, 2)
        by_rows = function("backward_rows", "fm3_backward_rows", "pip")
        check(by_rows(ctypes.byref(rows_args), 1, stream), "preparing the backward pass")
        kernel = function(f"backward_d{head_dim}", "fm3_backward", "pp")
        check(kernel(ctypes.byref(args), stream), "the backward kernel")
        check(by_rows(ctypes.byref(rows_args), 0, stream), "finishing the backward pass")
    del kept, graph_memory
    return (dq.zero_(), dk.zero_(), dv) if abs(scale) < SMALLEST_SCALE else (dq, dk, dv)
