"""The Hopper forward kernel from Python: what it takes, the preparation of its masks, the call.

Everything is queued on the current stream of the tensors' device; nothing here waits for the device. The kernel itself is
described in ``docs/kernel.md``.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from fm3_kernel.checks import FM3Error
from fm3_kernel.library import check, load
from masks.column_mask import VECTOR_NAMES, ColumnMask, tile_count

HEAD_DIMS = (64, 128, 256)
DTYPES = (torch.float16, torch.bfloat16)
MOST_ORDERED = 8192
"""Row tiles up to which an order is made (``kMostOrdered`` of ``csrc/sm90/prepared.cuh``)."""

L2_SHARE = 32 << 20
"""Bytes of keys and values that are worked on together: what surely stays in the L2 cache of a Hopper GPU."""

MOST_ITEMS = 2**31 - 1
"""Row tiles of all heads and batch items that one launch counts."""

_STRIDES = ctypes.c_int64 * 3
_PAIR = ctypes.c_int64 * 2
_NONE = (None, None, None, None)


class MaskArgs(ctypes.Structure):
    """``Fm3Mask`` of ``csrc/sm90/forward_args.h``, field by field."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in VECTOR_NAMES),
        ("vector_strides", _STRIDES),
        ("bounds", ctypes.c_void_p),
        ("order", ctypes.c_void_p),
        ("prepared_strides", _PAIR),
        ("block_mask", ctypes.c_void_p),
        ("block_strides", _PAIR),
        *((name, ctypes.c_int) for name in ("heads", "rows", "columns", "causal")),
    ]


class ForwardArgs(ctypes.Structure):
    """``Fm3ForwardArgs`` of ``csrc/sm90/forward_args.h``, field by field."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("q", "k", "v", "out", "lse")),
        *((name, _STRIDES) for name in ("q_strides", "k_strides", "v_strides", "out_strides")),
        ("mask", MaskArgs),
        ("work", ctypes.c_void_p),
        *((name, ctypes.c_int) for name in ("batch", "heads", "kv_heads", "bf16")),
        ("scale", ctypes.c_float),
        ("heads_together", ctypes.c_int),
        ("multiprocessors", ctypes.c_int),
    ]


class Preparation(NamedTuple):
    """Of a mask's vectors, ``[B, Hm]`` masks: int32 ``bounds`` ``[B, Hm, blocks of 128 columns, 3, 8]`` and ``order``
    ``[B, Hm, row tiles]``."""

    bounds: Tensor
    order: Tensor


@cache
def is_hopper(device: torch.device) -> bool:
    """Whether a CUDA device is of compute capability 9.0."""
    return torch.cuda.get_device_capability(device) == (9, 0)


@cache
def _multiprocessors(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def check_tensors(q: Tensor, k: Tensor, v: Tensor) -> None:
    """What this kernel asks of its tensors beyond the public door.

    Raises:
        FM3Error: names what was given, what is allowed, and what to do instead.
    """
    if q.device.type != "cuda" or not is_hopper(q.device):
        found = torch.cuda.get_device_name(q.device) if q.device.type == "cuda" else q.device.type
        raise FM3Error(f"the tensors are on {found}; the Hopper kernel needs a GPU of compute capability 9.0 (H100, H200)")
    if q.dtype not in DTYPES:
        allowed = ", ".join(str(dtype) for dtype in DTYPES)
        raise FM3Error(f"q has dtype {q.dtype}; the Hopper kernel takes {allowed}. Cast, or use implementation='reference'")
    if q.shape[3] not in HEAD_DIMS:
        raise FM3Error(
            f"head dim is {q.shape[3]}; the Hopper kernel takes {', '.join(map(str, HEAD_DIMS))}. "
            "Pad q, k and v with zeros (and give scale), or use implementation='reference'"
        )
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.numel() == 0:
            continue
        if x.stride(3) != 1:
            raise FM3Error(
                f"{name} has stride {x.stride(3)} along the head dim; the Hopper kernel needs 1: use {name}.contiguous()"
            )
        odd = [stride for size, stride in zip(x.shape[:3], x.stride()[:3], strict=True) if size > 1 and stride % 8]
        if odd or x.data_ptr() % 16:
            raise FM3Error(
                f"{name} has strides {x.stride()} and its start is aligned to {x.data_ptr() & -x.data_ptr()} bytes; the Hopper "
                f"kernel needs strides in multiples of 8 elements and a start aligned to 16 bytes: use {name}.clone()"
            )
    items = tile_count(q.shape[1]) * q.shape[2] * q.shape[0]
    if items > MOST_ITEMS:
        raise FM3Error(f"{items} row tiles in all heads and batch items; at most {MOST_ITEMS} a call: split the batch")


def prepare(mask: ColumnMask) -> Preparation:
    """Bounds and order of a mask with vectors, of at least one column."""
    assert mask.lts is not None
    batch, heads = mask.lts.shape[:2]
    device = mask.lts.device
    bounds = torch.empty((batch, heads, tile_count(mask.seqlen_k), 3, 8), dtype=torch.int32, device=device)
    order = torch.empty((batch, heads, tile_count(mask.seqlen_q)), dtype=torch.int32, device=device)
    with _on(device):
        stream = _stream(device)
        tickets = _zeros(device, stream, batch * heads)
        mask_args = _mask_args(mask, None)
        code = load("prepare").fm3_prepare(
            ctypes.byref(mask_args),
            *(batch, heads, _pointer(bounds), _pointer(order), _pointer(tickets), ctypes.c_void_p(stream)),
        )
    check(code, "preparing the mask")
    return Preparation(bounds, order)


def forward(
    q: Tensor, k: Tensor, v: Tensor, mask: ColumnMask, scale: float, preparation: Preparation | None = None
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
    if scale <= 0:
        # The kernel's softmax wants a positive factor; nobody hurries here.
        q, scale = (-q, -scale) if scale < 0 else (torch.zeros_like(q, memory_format=torch.contiguous_format), 1.0)
    (batch, rows, heads, head_dim), (columns, kv_heads) = q.shape, k.shape[1:3]
    device = q.device
    out = torch.empty((batch, rows, heads, head_dim), dtype=q.dtype, device=device)
    lse = torch.empty((batch, heads, rows), dtype=torch.float32, device=device)
    if 0 in (batch, rows, heads, columns):
        return out.zero_(), lse.fill_(-torch.inf)
    if preparation is None and mask.lts is not None:
        preparation = prepare(mask)
    with _on(device):
        stream = _stream(device)
        fitting = L2_SHARE // (4 * columns * head_dim)  # KV heads; two tensors of 2 bytes
        mask_args = _mask_args(mask, preparation)
        args = ForwardArgs(
            *(x.data_ptr() for x in (q, k, v, out, lse)),
            *(_strides(x) for x in (q, k, v, out)),
            mask_args,
            _zeros(device, stream, 2).data_ptr(),
            *(batch, heads, kv_heads, int(q.dtype == torch.bfloat16), scale),
            min(heads, max(1, fitting) * (heads // kv_heads)),
            _multiprocessors(device),
        )
        code = load(f"forward_d{head_dim}").fm3_forward(ctypes.byref(args), ctypes.c_void_p(stream))
    check(code, "the forward kernel")
    return out, lse


def _mask_args(mask: ColumnMask, preparation: Preparation | None) -> MaskArgs:
    lts, block = mask.lts, mask.block_mask
    vectors = [getattr(mask, name) for name in VECTOR_NAMES] if lts is not None else _NONE
    strides = _STRIDES()
    if lts is not None:
        present = [x for x in vectors if x is not None]
        if any(x.stride() != lts.stride() for x in present):  # one set of strides serves all: usually they do share it
            vectors = [None if x is None else x.contiguous() for x in vectors]
            lts = vectors[0]
        strides = _STRIDES(*_shared(lts, 2), lts.stride(2))
    if block is not None and block[0, 0].numel() and not block[0, 0].is_contiguous():
        block = block.contiguous()
    bounds, order = preparation if preparation is not None else (None, None)
    ordered = order is not None and order.shape[2] <= MOST_ORDERED
    args = MaskArgs(
        *(None if x is None else x.data_ptr() for x in vectors),
        strides,
        None if bounds is None else bounds.data_ptr(),
        order.data_ptr() if order is not None and ordered else None,
        _PAIR() if bounds is None else _PAIR(*_shared(bounds, 2, unit=bounds.stride(1))),
        None if block is None else block.data_ptr(),
        _PAIR() if block is None else _PAIR(*_shared(block, 2)),
        *(mask.heads, mask.seqlen_q, mask.seqlen_k, int(mask.causal)),
    )
    args.tensors = (vectors, block)  # copies must live until the launch
    return args


def _shared(x: Tensor, axes: int, unit: int = 1) -> tuple[int, ...]:
    """Strides of the first axes in units of ``unit``; 0 for an axis of size 1, which everybody shares."""
    return tuple(0 if x.shape[axis] == 1 else x.stride(axis) // unit for axis in range(axes))


def _strides(x: Tensor) -> ctypes.Array[ctypes.c_int64]:
    """Strides of batch, row and head; an axis of size 1 may have any, and the copy engine is particular."""
    return _STRIDES(*_shared(x, 3))


_workspaces: dict[tuple[torch.device, int], Tensor] = {}


def _zeros(device: torch.device, stream: int, count: int) -> Tensor:
    """At least ``count`` zeroed ints that kernels leave zeroed. One set a stream; a graph that is captured gets its own, since
    its replays may run beside anything."""
    if torch.cuda.is_current_stream_capturing():
        return torch.zeros(count, dtype=torch.int32, device=device)
    found = _workspaces.get((device, stream))
    if found is None or found.numel() < count:
        found = torch.zeros(max(count, 1024), dtype=torch.int32, device=device)
        _workspaces[device, stream] = found
    return found


def _on(device: torch.device) -> torch.cuda.device:
    return torch.cuda.device(device)


def _pointer(tensor: Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


def _stream(device: torch.device) -> int:
    return int(torch.cuda.current_stream(device).cuda_stream)
