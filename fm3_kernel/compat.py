"""FlashMask's own signature, so that its users change one import.

Same argument names, order and defaults as ``flashmask_attention`` of PaddlePaddle (``paddle.nn.functional``) and of the
FlashMask package. What has no counterpart here (dropout and its random state) is refused by name, never ignored.
Differences, all of them wider: fp32 and fp64 run too, the vectors may have batch 1, a block mask needs no vectors and
works at any head dim, and ``startend_row_indices=None`` means no vectors.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fm3_kernel.attention import flashmask_attention as attention
from fm3_kernel.checks import FM3Error, check_tensors
from masks.column_mask import ColumnMask


def flashmask_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    startend_row_indices: Tensor | None = None,
    *,
    dropout: float = 0.0,
    causal: bool = False,
    window_size: int | tuple[int, int] | None = None,
    return_softmax_lse: bool = False,
    return_seed_offset: bool = False,
    fixed_seed_offset: Tensor | None = None,
    rng_name: str = "",
    training: bool = True,
    name: str | None = None,
    softmax_scale: float | None = None,
    block_mask: Tensor | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention under FlashMask's ``startend_row_indices``.

    Args:
        query: ``[B, Sq, Hq, D]``; key, value: ``[B, Sk, Hkv, D]``.
        startend_row_indices: int32 ``[B or 1, 1 or Hkv or Hq, Sk, n]``; n = 1 (LTS) or 2 (LTS, LTE) when causal, 2 (LTS, UTE)
            or 4 (LTS, LTE, UTS, UTE) when not. Starts are the first hidden row, ends the first row not hidden any more.
            None: no vectors.
        dropout: only 0.
        causal: hide what lies above the diagonal too (aligned bottom-right when Sq != Sk).
        window_size: a sliding window instead of the indices, as FlashMask turns it into them. An integer w means (w, w).
            (left, right): row i sees columns ``i - left .. i + right``, both included, so a window of 0 is the row's own
            column. When causal the diagonal ends the window and ``right`` is not used. Needs Sq == Sk, no indices, and
            no negative size (a negative one does not mean "unlimited" there).
        return_softmax_lse: also return the log-sum-exp, ``[B, Hq, Sq]``, natural logarithm.
        return_seed_offset, fixed_seed_offset, rng_name: belong to dropout; only their defaults.
        training: without dropout both values compute the same.
        name: a label, of no effect.
        softmax_scale: factor of the scores; default ``1/sqrt(D)``.
        block_mask: int32 or bool ``[B or 1, mask heads, ceil(Sq/128), ceil(Sk/128)]``, non-zero = keep the 128x128 tile.

    Returns:
        ``out`` like query, or ``(out, lse)``.

    Raises:
        FM3Error, MaskError (ValueErrors): an argument that is not supported or does not fit. TypeError: a wrong type.
    """
    _refuse_dropout(dropout, return_seed_offset, fixed_seed_offset, rng_name)
    check_tensors(query, key, value)
    if startend_row_indices is not None and not isinstance(startend_row_indices, Tensor):
        raise TypeError(f"startend_row_indices is a {type(startend_row_indices).__name__}; expected a torch.Tensor or None")
    rows, columns = query.shape[1], key.shape[1]
    if window_size is not None:
        if startend_row_indices is not None:
            raise FM3Error("window_size and startend_row_indices are both given; FlashMask allows one of them")
        startend_row_indices = _window_indices(window_size, rows, columns, causal, query.device)
    mask = ColumnMask.from_startend_row_indices(startend_row_indices, causal=causal, seqlen_q=rows, seqlen_k=columns)
    if block_mask is not None:
        mask = mask.with_block_mask(_keep(block_mask))
    return attention(query, key, value, mask, scale=softmax_scale, return_lse=return_softmax_lse)


def _refuse_dropout(dropout: float, return_seed_offset: bool, fixed_seed_offset: Any, rng_name: str) -> None:
    if dropout != 0.0:
        raise FM3Error(f"dropout is {dropout}; only 0.0 is supported")
    if return_seed_offset:
        raise FM3Error("return_seed_offset is set; there is no dropout, so there is no seed to return")
    if fixed_seed_offset is not None:
        raise FM3Error("fixed_seed_offset is given; there is no dropout, so only None is supported")
    if rng_name:
        raise FM3Error(f"rng_name is {rng_name!r}; there is no dropout, so only '' is supported")


def _window_indices(window_size: int | tuple[int, int], rows: int, columns: int, causal: bool, device: torch.device) -> Tensor:
    """The window as LTS (causal) or LTS, UTE: int32 ``[1, 1, Sk, 1 or 2]``."""
    sizes = tuple(window_size) if isinstance(window_size, (tuple, list)) else (window_size, window_size)
    if len(sizes) != 2 or any(isinstance(size, bool) or not isinstance(size, int) for size in sizes):
        raise FM3Error(f"window_size is {window_size!r}; expected an integer or (left, right)")
    if min(sizes) < 0:
        raise FM3Error(f"window_size is {window_size!r}; sizes are >= 0 (use window_size=None for no window)")
    if rows != columns:
        raise FM3Error(f"window_size needs as many rows as columns; given seqlen_q={rows}, seqlen_k={columns}")
    # A window beyond the sequence is the same as one of its length; clipping first keeps int32 from overflowing.
    left, right = (min(size, rows) for size in sizes)
    column = torch.arange(columns, dtype=torch.int32, device=device)
    vectors = [(column + left + 1).clamp(max=rows)]
    if not causal:
        vectors.append((column - right).clamp(min=0))
    return torch.stack(vectors, dim=-1).view(1, 1, columns, len(vectors))


def _keep(block_mask: Tensor) -> Tensor:
    if not isinstance(block_mask, Tensor):
        raise TypeError(f"block_mask is a {type(block_mask).__name__}; expected a torch.Tensor or None")
    if block_mask.dtype not in (torch.int32, torch.bool):
        raise TypeError(f"block_mask has dtype {block_mask.dtype}; allowed: torch.int32, torch.bool")
    return block_mask != 0
