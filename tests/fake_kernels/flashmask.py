"""FlashMask-3 for PyTorch (distribution flashmask 3.0.0b1): ``flashmask_attention`` with column vectors."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor

from fake_kernels.maths import check_inputs, check_int32, dense_attention, record

VERSION_FLAG, DETERMINISTIC_FLAG = "FLAGS_flash_attn_version", "FLAGS_cudnn_deterministic"


def _seen(indices: Tensor, causal: bool, rows: int) -> Tensor:
    """bool ``[B, Hm, Sq, Sk]``, as its documentation turns vectors into a dense mask."""
    row = torch.arange(rows).view(1, 1, rows, 1)
    bounds = [bound.unsqueeze(2) for bound in indices.unbind(-1)]
    column = torch.arange(indices.shape[2])
    if causal:
        assert len(bounds) in (1, 2), f"{len(bounds)} vectors with causal=True"
        end = bounds[1] if len(bounds) == 2 else rows
        return ~((row >= bounds[0]) & (row < end)) & (column <= row)
    assert len(bounds) in (2, 4), f"{len(bounds)} vectors with causal=False"
    if len(bounds) == 2:
        return (row < bounds[0]) & (row >= bounds[1])
    return ~((row >= bounds[0]) & (row < bounds[1])) & ~((row >= bounds[2]) & (row < bounds[3]))


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
) -> Any:
    version = int(os.environ[VERSION_FLAG])  # one revision has no default
    # In one revision any value, "0" too, means yes.
    deterministic = bool(os.getenv(DETERMINISTIC_FLAG))
    record(function="flashmask", deterministic=deterministic, causal=causal)
    assert version == 3, f"FLAGS_flash_attn_version is {version}"
    check_inputs(query, key, value, dims=4)
    assert dropout == 0 and window_size is None and not return_seed_offset and fixed_seed_offset is None
    assert rng_name == "" and training and name is None and softmax_scale is None
    assert startend_row_indices is not None, "startend_row_indices cannot be None"
    heads, columns = startend_row_indices.shape[1:3]
    check_int32("startend_row_indices", startend_row_indices, query, len(key), None, key.shape[1], None)
    assert heads in (1, key.shape[2]), f"{heads} mask heads, documented are 1 or the KV heads"
    assert int(startend_row_indices.min()) >= 0 and int(startend_row_indices.max()) <= query.shape[1], "rows out of range"
    seen = _seen(startend_row_indices, causal, query.shape[1])
    if block_mask is not None:
        assert not deterministic and key.shape[3] == 128
        tiles = (-(-query.shape[1] // 128), -(-columns // 128))
        check_int32("block_mask", block_mask, query, len(key), heads, *tiles)
        wide = block_mask.bool().repeat_interleave(128, 2).repeat_interleave(128, 3)
        seen = seen & wide[:, :, : query.shape[1], :columns]
    assert not (deterministic and query.shape[3] > 128)
    group = query.shape[2] // heads
    out, lse = dense_attention(query, key, value, torch.repeat_interleave(seen, group, dim=1))
    return [out, lse] if return_softmax_lse else out
