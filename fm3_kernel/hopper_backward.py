"""The Hopper backward kernel from Python: scratch, the two launches, the call.

Scratch, freed with the call: two fp32 numbers a head and row, and fp32 sums of dq for as many KV heads as are worked on at a
time (:func:`sums_in_turn`).
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

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

SUMS_BYTES = 192 * 2**20
"""Room for sums of dq, unless four KV heads need more."""

MOST_SLOTS = 64
"""``kMostSlots`` of ``csrc/sm90/backward_shape.cuh``: KV heads whose sums may have room at a time."""

ROW_PADDING = 128
"""``kRowPadding`` of ``csrc/sm90/backward_args.h``: scratch of rows is padded to a multiple of it."""


class BackwardArgs(ctypes.Structure):
    """``Fm3BackwardArgs`` of ``csrc/sm90/backward_args.h``, field by field."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("q", "k", "v", "dout", "dq", "dk", "dv")),
        *((f"{name}_strides", STRIDES) for name in ("q", "k", "v", "dout", "dq", "dk", "dv")),
        ("mask", MaskArgs),
        *((name, ctypes.c_void_p) for name in ("lse2", "delta", "fixed", "dq_sums", "ledger", "work")),
        *((name, ctypes.c_int) for name in ("batch", "heads", "kv_heads", "bf16")),
        *((name, ctypes.c_float) for name in ("scale", "dq_scale")),
        *((name, ctypes.c_int) for name in ("slots", "multiprocessors")),
    ]


class RowsArgs(ctypes.Structure):
    """``Fm3RowsArgs`` of ``csrc/sm90/backward_args.h``, field by field."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("out", "dout", "k", "v", "lse", "dlse")),
        *((f"{name}_strides", STRIDES) for name in ("out", "dout", "k", "v", "dlse")),
        *((name, ctypes.c_void_p) for name in ("lse2", "delta", "fixed", "maxima", "zeros")),
        ("zeroed", ctypes.c_int64),
        *((name, ctypes.c_int) for name in ("batch", "heads", "kv_heads", "rows", "columns", "head_dim", "bf16")),
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
    deterministic: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v.

    Args:
        dout: like ``out``, any strides, finite also in rows that see nothing; dlse: like ``lse``, any strides, or None.
        q, k, v, mask, scale, preparation: as for :func:`fm3_kernel.hopper_forward.forward`; out, lse: its result.
        deterministic: the same bits in every run. dq is summed in 31-bit integers then, whose range every row has to itself.

    Returns:
        dq, dk, dv: shape and dtype of q, k, v, contiguous. Exactly 0 for rows and columns that meet nothing.

    Raises:
        FM3Error: tensors that the kernel does not take; CudaError: a launch failed.
    """
    check_tensors(q, k, v)
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
    padded = tile_count(rows, ROW_PADDING) * ROW_PADDING
    sums = (heads // kv_heads) * padded * head_dim  # of a KV head
    slots = sums_in_turn(sums, batch * kv_heads)
    statistics = torch.empty((3 if deterministic else 2, batch, heads, padded), dtype=torch.float32, device=device)
    lse2, delta, *fixed = (x.data_ptr() for x in statistics)
    # Sums; the ledger of them; maxima, two a KV head.
    zeroed = torch.empty(slots * sums + 6 + 8 * batch * kv_heads, dtype=torch.float32, device=device)
    ledger = zeroed.data_ptr() + 4 * slots * sums
    maxima = ledger + 4 * (6 + 6 * batch * kv_heads)
    dlse_strides = (0, 0, 0) if dlse is None else (dlse.stride(0), dlse.stride(2), dlse.stride(1))
    rows_args = RowsArgs(
        *(x.data_ptr() for x in (out, dout, k, v, lse)),
        None if dlse is None else dlse.data_ptr(),
        *(STRIDES(*shared_strides(x, 3)) for x in (out, dout, k, v)),
        STRIDES(*dlse_strides),
        *(lse2, delta, fixed[0] if fixed else None, maxima, zeroed.data_ptr()),
        4 * zeroed.numel(),
        *(batch, heads, kv_heads, rows, columns, head_dim, int(q.dtype == torch.bfloat16)),
    )
    mask_of_call, kept = mask_args(mask, rows, columns, preparation)
    args = BackwardArgs(
        *(x.data_ptr() for x in (q, k, v, dout, dq, dk, dv)),
        *(STRIDES(*shared_strides(x, 3)) for x in (q, k, v, dout, dq, dk, dv)),
        mask_of_call,
        *(lse2, delta, fixed[0] if fixed else None, zeroed.data_ptr(), ledger),
        None,
        *(batch, heads, kv_heads, int(q.dtype == torch.bfloat16), factor, factor if q is given else -factor),
        *(slots, torch.cuda.get_device_properties(device).multi_processor_count),
    )
    with on_device(device):
        stream = raw_stream(device.index)
        args.work, graph_memory = counters(device, stream, 2)
        by_rows = function("backward_rows", "fm3_backward_rows", "pp")
        check(by_rows(ctypes.byref(rows_args), stream), "preparing the backward pass")
        kernel = function(f"backward_d{head_dim}", "fm3_backward", "pp")
        check(kernel(ctypes.byref(args), stream), "the backward kernel")
    del kept, graph_memory
    return (dq.zero_(), dk.zero_(), dv) if abs(scale) < SMALLEST_SCALE else (dq, dk, dv)


def sums_in_turn(sums: int, kv_heads: int) -> int:
    """How many KV heads, of so many sums each, have room for theirs at a time.

    Enough that one column tile that many rows see does not keep all others waiting, and not more than 192 MiB where four KV
    heads need less.
    """
    return min(kv_heads, MOST_SLOTS, max(4, SUMS_BYTES // (4 * sums)))
