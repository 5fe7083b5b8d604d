"""The Hopper forward kernel from Python: what it takes, its prepared mask, the call.

Not behind ``flashmask_attention`` yet: it becomes the implementation for Hopper GPUs once its tests have passed on one.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from fm3_kernel.library import check, load
from masks.column_mask import VECTOR_NAMES, ColumnMask, tile_count

HEAD_DIMS = (64, 128, 256)
L2_SHARE = 32 << 20
"""Bytes of keys and values that are worked on together: what surely stays in the L2 cache of a Hopper GPU."""

_STRIDES = ctypes.c_int64 * 3


class ForwardArgs(ctypes.Structure):
    """``Fm3ForwardArgs`` of ``csrc/sm90/forward_args.h``, field by field."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("q", "k", "v", "out", "lse")),
        *((name, _STRIDES) for name in ("q_strides", "k_strides", "v_strides", "out_strides")),
        *((name, ctypes.c_void_p) for name in VECTOR_NAMES),
        ("vector_batch_stride", ctypes.c_int64),
        ("vector_head_stride", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("bounds", "order", "block_mask")),
        ("block_batch_stride", ctypes.c_int64),
        ("block_head_stride", ctypes.c_int64),
        ("work", ctypes.c_void_p),
        *((name, ctypes.c_int) for name in ("batch", "heads", "kv_heads", "mask_batch", "mask_heads")),
        *((name, ctypes.c_int) for name in ("rows", "columns", "head_dim", "causal", "bf16")),
        ("scale", ctypes.c_float),
        ("heads_together", ctypes.c_int),
        ("multiprocessors", ctypes.c_int),
    ]


def key_tile(head_dim: int) -> int:
    """Columns of a key tile: 128, and 64 at head dim 256, where shared memory holds no more."""
    return 128 if head_dim <= 128 else 64


@dataclass(frozen=True)
class Prepared:
    """A mask made ready for one head dim: contiguous vectors, and int32 ``[masks, column tiles, 8]`` of their bounds."""

    mask: ColumnMask
    vectors: dict[str, Tensor]
    bounds: Tensor | None


def prepare(mask: ColumnMask, head_dim: int) -> Prepared:
    """Minima and maxima of the mask's vectors over every column tile: one launch, nothing waits for the host."""
    vectors = {name: getattr(mask, name).contiguous() for name in mask.vectors}
    if not vectors:
        return Prepared(mask, vectors, None)
    tile = key_tile(head_dim)
    masks = mask.lts.shape[0] * mask.lts.shape[1] if mask.lts is not None else 0
    shape = (masks, tile_count(mask.seqlen_k, tile), 8)
    bounds = torch.empty(shape, dtype=torch.int32, device=mask.device)
    pointers = [_pointer(vectors.get(name)) for name in VECTOR_NAMES]
    sizes = (masks, mask.seqlen_q, mask.seqlen_k, tile)
    with torch.cuda.device(mask.device):
        code = load("prepare").fm3_column_bounds(
            *pointers, ctypes.c_int64(mask.seqlen_k), *sizes, _pointer(bounds), _stream(bounds)
        )
    check(code, "preparing the mask")
    return Prepared(mask, vectors, bounds)


def forward(q: Tensor, k: Tensor, v: Tensor, prepared: Prepared, scale: float, work: Tensor) -> tuple[Tensor, Tensor]:
    """Attention output and log-sum-exp.

    Args:
        q: fp16 or bf16 ``[B, Sq, Hq, D]``, D = 64, 128 or 256; k, v: ``[B, Sk, Hkv, D]``; last axis contiguous.
        prepared: of the mask, for this head dim. scale: finite.
        work: int32 ``[2]``, zero; the kernel leaves it so. One for every stream.

    Returns:
        ``out`` like q, contiguous; ``lse`` fp32 ``[B, Hq, Sq]``, natural logarithm.
    """
    if scale <= 0:
        # The kernel's running maximum wants a positive factor; nobody hurries here.
        q, scale = (-q, -scale) if scale < 0 else (torch.zeros_like(q), 1.0)
    (batch, rows, heads, head_dim), (columns, kv_heads) = q.shape, k.shape[1:3]
    out = torch.empty((batch, rows, heads, head_dim), dtype=q.dtype, device=q.device)
    lse = torch.empty((batch, heads, rows), dtype=torch.float32, device=q.device)
    mask, vector, block = prepared.mask, prepared.mask.lts, prepared.mask.block_mask
    group = heads // kv_heads
    fitting = L2_SHARE // max(1, 4 * columns * head_dim)  # KV heads; two tensors of 2 bytes
    args = ForwardArgs(
        *(_pointer(t) for t in (q, k, v, out, lse)),
        *(_STRIDES(t.stride(0), t.stride(1), t.stride(2)) for t in (q, k, v, out)),
        *(_pointer(prepared.vectors.get(name)) for name in VECTOR_NAMES),
        vector_batch_stride=0 if vector is None or vector.shape[0] == 1 else vector.shape[1] * columns,
        vector_head_stride=0 if vector is None or vector.shape[1] == 1 else columns,
        bounds=_pointer(prepared.bounds),
        order=None,
        block_mask=_pointer(block),
        block_batch_stride=0 if block is None or block.shape[0] == 1 else block.stride(0),
        block_head_stride=0 if block is None or block.shape[1] == 1 else block.stride(1),
        work=_pointer(work),
        batch=batch,
        heads=heads,
        kv_heads=kv_heads,
        mask_batch=1 if vector is None else vector.shape[0],
        mask_heads=mask.heads,
        rows=rows,
        columns=columns,
        head_dim=head_dim,
        causal=int(mask.causal),
        bf16=int(q.dtype == torch.bfloat16),
        scale=scale,
        heads_together=min(heads, max(1, fitting) * group),
        multiprocessors=torch.cuda.get_device_properties(q.device).multi_processor_count,
    )
    with torch.cuda.device(q.device):
        code = load(f"forward_d{head_dim}").fm3_forward(ctypes.byref(args), _stream(q))
    check(code, "the forward kernel")
    return out, lse


def _pointer(tensor: Tensor | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if tensor is None else tensor.data_ptr())


def _stream(tensor: Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(torch.cuda.current_stream(tensor.device).cuda_stream)
