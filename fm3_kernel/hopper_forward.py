"""The Hopper forward kernel from Python: its arguments, what of them is kept from call to call, the call."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import NamedTuple, cast

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

L2_SHARE = 32 << 20
"""Bytes of keys and values that are worked on together: what surely stays in the L2 cache of a Hopper GPU."""

ALONE, PAIRS, EITHER = range(3)
"""Whether blocks load for themselves or in pairs, or as the mask has it (``Sharing`` of ``csrc/sm90/forward.cuh``)."""

PAIRS_FROM = (16, 4)
"""Tiles along either side of the mask, and row tiles of all heads a multiprocessor: with fewer, the diagonal is too much of
what there is, or pairs have too little to choose from."""

PAIRED_HEAD_DIMS = (128, 256)
"""Head dims at which loading for two pays: at 64 it gave nothing, or less (``docs/kernel-log.md``, line 22)."""


class ForwardArgs(ctypes.Structure):
    """``Fm3ForwardArgs`` of ``csrc/sm90/forward_args.h``, field by field."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("q", "k", "v", "out", "lse")),
        *((name, STRIDES) for name in ("q_strides", "k_strides", "v_strides", "out_strides")),
        ("mask", MaskArgs),
        ("work", ctypes.c_void_p),
        *((name, ctypes.c_int) for name in ("batch", "heads", "kv_heads", "bf16")),
        ("scale", ctypes.c_float),
        ("heads_together", ctypes.c_int),
        ("multiprocessors", ctypes.c_int),
    ]


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: MaskTensors,
    scale: float,
    preparation: Preparation | None = None,
    call: object = None,
) -> tuple[Tensor, Tensor]:
    """Attention output and log-sum-exp.

    Args:
        q: ``[B, Sq, Hq, D]``; k, v: ``[B, Sk, Hkv, D]``; as :func:`check_tensors` has them.
        mask: of Sq rows and Sk columns, on the tensors' device. preparation: of this mask; made here if None.
        scale: finite. call: equal only for calls of equal sizes, strides, dtypes and devices; None: found from the tensors.

    Returns:
        ``out`` like q, contiguous; ``lse`` fp32 ``[B, Hq, Sq]``, natural logarithm. A row that sees no column: 0 and -inf.

    Raises:
        FM3Error: tensors that the kernel does not take; CudaError: a launch failed.
    """
    if scale < SMALLEST_SCALE:
        (q, scale), call = with_positive_scale(q, scale), None
    if call is None:
        call = (q.shape, k.shape, v.shape, q.stride(), k.stride(), v.stride(), q.dtype, q.device)
    if (plan := _plans.get(call)) is None:
        plan = _plan(q, k, v, call)
    elif (q.data_ptr() | k.data_ptr() | v.data_ptr()) % 16:  # not a matter of sizes
        check_tensors(q, k, v)
    device = q.device
    out, lse = _empty(plan.out, q.dtype, device), _empty(plan.lse, torch.float32, device)
    if plan.launch is None:
        return out.zero_(), lse.fill_(-torch.inf)
    if preparation is None and mask.lts is not None:
        preparation = prepare(mask, q.shape[1])
    template, kernel = plan.launch
    args = ForwardArgs.from_buffer_copy(template)
    if preparation is None or preparation.args is None:
        args.mask, kept = mask_args(mask, q.shape[1], k.shape[1], preparation)
    else:
        args.mask, kept = preparation.args
    args.q, args.k, args.v = q.data_ptr(), k.data_ptr(), v.data_ptr()
    args.out, args.lse, args.scale = out.data_ptr(), lse.data_ptr(), scale
    with on_device(device):
        stream = raw_stream(device.index)
        args.work, graph_memory = counters(device, stream, 2)
        code = kernel(ctypes.byref(args), _sharing(plan, mask), stream)
    del kept, graph_memory
    check(code, "the forward kernel")
    return out, lse


Layout = tuple[tuple[int, ...], tuple[int, ...]]
"""Shape and strides of a tensor."""


class _Plan(NamedTuple):
    """What of a call follows from its sizes, strides, dtypes and device."""

    launch: tuple[ForwardArgs, Callable[..., int]] | None  # arguments and kernel; None: there is nothing to compute
    pairs: bool  # whether blocks in pairs may pay
    out: Layout
    lse: Layout


_plans: dict[object, _Plan] = {}
_MOST_PLANS = 1024


def _plan(q: Tensor, k: Tensor, v: Tensor, call: object) -> _Plan:
    """Checks the tensors and makes the plan of a call, which is kept for the next one."""
    check_tensors(q, k, v)
    (batch, rows, heads, head_dim), (columns, kv_heads) = q.shape, k.shape[1:3]
    out_strides = (rows * heads * head_dim, heads * head_dim, head_dim)
    launch, pairs = None, False
    if 0 not in (batch, rows, heads, columns):
        fitting = L2_SHARE // (4 * columns * head_dim)  # KV heads; two tensors of 2 bytes
        args = ForwardArgs(
            *(None,) * 5,
            *(STRIDES(*shared_strides(x, 3)) for x in (q, k, v)),
            STRIDES(*out_strides),
            MaskArgs(),
            None,
            *(batch, heads, kv_heads, int(q.dtype == torch.bfloat16), 0.0),
            min(heads, max(1, fitting) * (heads // kv_heads)),
            torch.cuda.get_device_properties(q.device).multi_processor_count,
        )
        launch = args, function(f"forward_d{head_dim}", "fm3_forward", "pip")
        row_tiles = tile_count(rows)
        enough = min(row_tiles, tile_count(columns)) >= PAIRS_FROM[0]
        enough &= row_tiles * heads * batch >= PAIRS_FROM[1] * args.multiprocessors
        pairs = enough and head_dim in PAIRED_HEAD_DIMS
    plan = _Plan(
        launch,
        pairs,
        ((batch, rows, heads, head_dim), (*out_strides, 1)),
        ((batch, heads, rows), (heads * rows, rows, 1)),
    )
    if len(_plans) >= _MOST_PLANS:
        _plans.clear()
    _plans[call] = plan
    return plan


def _sharing(plan: _Plan, mask: MaskTensors) -> int:
    """Who loads for whom. Without vectors neighbouring row tiles need the same column tiles, but for the diagonal; what vectors
    hold only the device knows; what a block mask skips is counted by nobody."""
    if not plan.pairs or mask.block_mask is not None:
        return ALONE
    return PAIRS if mask.lts is None else EITHER


def _empty(layout: Layout, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Memory for a tensor of this shape and these strides, by the short cut that torch's compiled code takes where there is
    one: it costs a third of ``torch.empty`` on the host."""
    if _empty_strided is not None and torch.cuda.current_device() == device.index:
        return cast(Tensor, _empty_strided(*layout, dtype))
    return torch.empty_strided(*layout, dtype=dtype, device=device)


_empty_strided = getattr(torch._C._dynamo.guards, "_empty_strided_cuda", None)
