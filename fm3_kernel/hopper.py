"""What both Hopper kernels share: which tensors they take, their masks and the preparation of those, counters, memory.

Everything is queued on the current stream of the tensors' device; nothing here waits for the device. The kernels themselves
are described in ``docs/kernel.md``.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable
from functools import cache
from typing import NamedTuple, cast

import torch
from torch import Tensor

from fm3_kernel.checks import FM3Error
from fm3_kernel.library import check, load
from masks.column_mask import VECTOR_NAMES, ColumnMask, tile_count

HEAD_DIMS = (64, 128, 256)
DTYPES = (torch.float16, torch.bfloat16)
MOST_ORDERED = 8192
"""Row tiles up to which an order is made (``kMostOrdered`` of ``csrc/sm90/prepared.cuh``)."""

LONGEST = 2**31 - 256
"""Rows and columns, with room for a tile behind them in 32 bits."""

MOST_ITEMS = 2**31 - 1
"""Row tiles of all heads and batch items that one launch counts."""

STRIDES = ctypes.c_int64 * 3
PAIR = ctypes.c_int64 * 2


class MaskArgs(ctypes.Structure):
    """``Fm3Mask`` of ``csrc/sm90/forward_args.h``, field by field."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in VECTOR_NAMES),
        ("vector_strides", STRIDES),
        ("bounds", ctypes.c_void_p),
        ("order", ctypes.c_void_p),
        ("prepared_strides", PAIR),
        ("block_mask", ctypes.c_void_p),
        ("block_strides", PAIR),
        *((name, ctypes.c_int) for name in ("heads", "rows", "columns", "causal")),
    ]


class Preparation(NamedTuple):
    """Of a mask's vectors, ``[B, Hm]`` masks: int32 ``bounds`` ``[B, Hm, blocks of 128 columns, 3, 8]`` and ``order``
    ``[B, Hm, row tiles]``."""

    bounds: Tensor
    order: Tensor
    args: tuple[MaskArgs, object] | None = None
    """The mask as the kernels read it, made once; and what must live as long."""


class MaskTensors(NamedTuple):
    """The tensors of a column mask and its flag, as they come through the operator: already checked against each other."""

    lts: Tensor | None
    lte: Tensor | None
    uts: Tensor | None
    ute: Tensor | None
    block_mask: Tensor | None
    causal: bool

    @staticmethod
    def of(mask: ColumnMask) -> MaskTensors:
        """Of a mask."""
        return MaskTensors(mask.lts, mask.lte, mask.uts, mask.ute, mask.block_mask, mask.causal)


@cache
def is_hopper(device: torch.device) -> bool:
    """Whether a CUDA device is of compute capability 9.0."""
    return torch.cuda.get_device_capability(device) == (9, 0)


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
    for name, x in (("q", q), ("k", k)):
        if x.shape[1] > LONGEST:
            raise FM3Error(f"{name} has length {x.shape[1]}; the Hopper kernel takes at most {LONGEST}")
    items = tile_count(q.shape[1]) * q.shape[2] * q.shape[0]
    if items > MOST_ITEMS:
        raise FM3Error(f"{items} row tiles in all heads and batch items; at most {MOST_ITEMS} a call: split the batch")


def prepare(mask: MaskTensors, rows: int) -> Preparation:
    """Bounds and order of a mask with vectors, of at least one column."""
    lts = mask.lts
    assert lts is not None
    batch, heads, columns = lts.shape
    device = lts.device
    bounds = torch.empty((batch, heads, tile_count(columns), 3, 8), dtype=torch.int32, device=device)
    order = torch.empty((batch, heads, tile_count(rows)), dtype=torch.int32, device=device)
    args, kept = mask_args(mask, rows, columns, None)
    with on_device(device):
        stream = raw_stream(device.index)
        tickets, graph_memory = counters(device, stream, batch * heads)
        code = function("prepare", "fm3_prepare", "piipppp")(
            ctypes.byref(args), batch, heads, bounds.data_ptr(), order.data_ptr(), tickets, stream
        )
    del kept, graph_memory
    check(code, "preparing the mask")
    preparation = Preparation(bounds, order)
    return preparation._replace(args=mask_args(mask, rows, columns, preparation))


SMALLEST_SCALE = 2.0**-120
"""Below, fp32 has no room for the kernel's arithmetic."""


def with_positive_scale(q: Tensor, scale: float) -> tuple[Tensor, float]:
    """The same scores by a factor that the kernel's softmax can take; a factor next to zero means zero. Rare and slow."""
    if abs(scale) < SMALLEST_SCALE:
        return torch.zeros_like(q, memory_format=torch.contiguous_format), 1.0
    return (-q, -scale) if scale < 0 else (q, scale)


def mask_args(mask: MaskTensors, rows: int, columns: int, preparation: Preparation | None) -> tuple[MaskArgs, object]:
    """The mask as the kernels read it, and whatever must live until they are launched."""
    lts, block = mask.lts, mask.block_mask
    heads = max(1 if lts is None else lts.shape[1], 1 if block is None else block.shape[1])
    args = MaskArgs(heads=heads, rows=rows, columns=columns, causal=int(mask.causal))
    kept: list[Tensor] = []
    if lts is not None:
        strides = lts.stride()
        # One set of strides serves all vectors: usually they do share it.
        same = all(x is None or x.stride() == strides for x in mask[1:4])
        for name, x in zip(VECTOR_NAMES, mask[:4], strict=True):
            if x is not None:
                kept.append(x if same else x.contiguous())
                if x.numel() and not kept[-1].data_ptr():  # a null pointer would read as: no such vector
                    raise FM3Error(f"{name} is a {type(x).__name__} without memory of its own; give a plain tensor")
                setattr(args, name, kept[-1].data_ptr())
        args.vector_strides = STRIDES(*shared_strides(kept[0], 2), kept[0].stride(2))
    if preparation is not None:
        bounds, order = preparation[:2]
        args.bounds = bounds.data_ptr()
        args.order = order.data_ptr() if order.shape[2] <= MOST_ORDERED else None
        args.prepared_strides = PAIR(0 if bounds.shape[0] == 1 else bounds.shape[1], 0 if bounds.shape[1] == 1 else 1)
    if block is not None:
        block = block if block[0, 0].is_contiguous() else block.contiguous()
        kept.append(block)
        args.block_mask = block.data_ptr()
        args.block_strides = PAIR(*shared_strides(block, 2))
    return args, kept


def shared_strides(x: Tensor, axes: int) -> tuple[int, ...]:
    """Strides of the first axes; 0 for an axis of size 1: everybody shares it, and the copy engine is particular about what
    else could stand there."""
    return tuple(0 if size == 1 else stride for size, stride in zip(x.shape[:axes], x.stride()[:axes], strict=True))


_counters: dict[tuple[torch.device, int], tuple[int, int]] = {}
_FEWEST_COUNTERS = 16384


def counters(device: torch.device, stream: int, count: int) -> tuple[int, object]:
    """Address of at least ``count`` zeroed ints that kernels leave zeroed, and what must live until they are launched.

    One set a stream, for good. A graph that is captured gets its own: its replays may run beside anything.

    Raises:
        OutOfMemoryError: there is no memory for them.
    """
    if torch.cuda.is_current_stream_capturing():
        own = torch.zeros(count, dtype=torch.int32, device=device)
        return own.data_ptr(), own
    address, room = _counters.get((device, stream), (0, 0))
    if room < count:
        room = max(2 * count, _FEWEST_COUNTERS)
        library = load("prepare")
        library.fm3_counters.restype = ctypes.c_void_p
        address = library.fm3_counters(ctypes.c_int(room), ctypes.c_void_p(stream)) or 0
        if not address:
            raise torch.OutOfMemoryError(f"no memory for {4 * room} bytes of counters on {device}")
        _counters[device, stream] = (address, room)
    return address, None


def capture_id(device: torch.device) -> int:
    """Number of the graph capture that the device's current stream is in; 0 outside of one."""
    if not torch.cuda.is_current_stream_capturing():
        return 0
    library = load("prepare")
    library.fm3_capture_id.restype = ctypes.c_uint64
    return int(library.fm3_capture_id(ctypes.c_void_p(raw_stream(device.index))))


def on_device(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Makes the device current, at no cost where it is already."""
    return _NOTHING if torch.cuda.current_device() == device.index else torch.cuda.device(device)


_NOTHING = contextlib.nullcontext()


def raw_stream(index: int) -> int:
    """Handle of the device's current stream; torch's own short cut, which its compiled code takes too."""
    return int(torch._C._cuda_getCurrentRawStream(index))


@cache
def function(library: str, name: str, signature: str) -> Callable[..., int]:
    """A C function of a library that returns an error code; ``signature``: its arguments, p for a pointer or a stream, which go
    in as plain integers, i for an int."""
    found = load(library)[name]
    found.argtypes = [ctypes.c_void_p if kind == "p" else ctypes.c_int for kind in signature]
    return cast("Callable[..., int]", found)
