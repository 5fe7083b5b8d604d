"""FlashAttention 2.8 (``flash_attn``), 3.0.0b1 (``flash_attn_interface``) and the packed function of 4.0.0b36."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fake_kernels.maths import band, check_inputs, check_int32, dense_attention, record


def _batched(q: Tensor, k: Tensor, v: Tensor, causal: bool, window: tuple[int, int]) -> tuple[Tensor, Tensor]:
    check_inputs(q, k, v, dims=4)
    return dense_attention(q, k, v, band(q.shape[1], k.shape[1], causal, window))


def _varlen(
    q: Tensor, k: Tensor, v: Tensor, starts_q: Tensor, starts_k: Tensor, longest: tuple[int, int], causal: bool, window: Any
) -> tuple[Tensor, Tensor]:
    """Sequences one after the other; LSE ``[H, tokens]``."""
    check_inputs(q, k, v, dims=3)
    bounds = []
    for name, starts, rows, most in (("q", starts_q, q, longest[0]), ("k", starts_k, k, longest[1])):
        check_int32(f"cu_seqlens_{name}", starts, q, None)
        assert isinstance(most, int), f"max_seqlen_{name} is a {type(most).__name__}"
        values = starts.tolist()
        assert values[0] == 0 and values[-1] == len(rows) and values == sorted(values), f"cu_seqlens_{name}: {values}"
        assert int(starts.diff().max()) <= most, f"max_seqlen_{name} is {most}, a sequence is longer"
        bounds.append(values)
    assert len(bounds[0]) == len(bounds[1])
    seen = torch.zeros(len(q), len(k), dtype=torch.bool)
    for q0, q1, k0, k1 in zip(bounds[0], bounds[0][1:], bounds[1], bounds[1][1:], strict=False):
        seen[q0:q1, k0:k1] = band(q1 - q0, k1 - k0, causal, window)
    out, lse = dense_attention(q.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0), seen)
    return out[0], lse[0]


def func_2(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    record(function="func", deterministic=deterministic, causal=causal, window_size=window_size)
    assert dropout_p == 0 and softmax_scale is None and softcap == 0 and alibi_slopes is None
    out, lse = _batched(q, k, v, causal, window_size)
    return (out, lse, None) if return_attn_probs else out


def varlen_func_2(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
) -> Any:
    record(function="varlen", deterministic=deterministic, causal=causal, window_size=window_size)
    assert dropout_p == 0 and softmax_scale is None and softcap == 0 and alibi_slopes is None and block_table is None
    longest = (max_seqlen_q, max_seqlen_k)
    out, lse = _varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, longest, causal, window_size)
    return (out, lse, None) if return_attn_probs else out


def func_3(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    qv: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Any:
    record(function="func", deterministic=deterministic, causal=causal, window_size=window_size)
    assert softmax_scale is None and qv is None and attention_chunk == 0 and softcap == 0 and num_splits == 1
    out, lse = _batched(q, k, v, causal, window_size)
    return (out, lse) if return_attn_probs else out


def varlen_func_3(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    seqused_q: Tensor | None = None,
    seqused_k: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    qv: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Any:
    record(function="varlen", deterministic=deterministic, causal=causal, window_size=window_size)
    assert softmax_scale is None and qv is None and attention_chunk == 0 and softcap == 0 and num_splits == 1
    assert seqused_q is None and seqused_k is None
    longest = (max_seqlen_q, max_seqlen_k)
    out, lse = _varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, longest, causal, window_size)
    return (out, lse) if return_attn_probs else out


def varlen_func_4(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    qv: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    min_seqlen_k: int | None = None,
    seqused_q: Tensor | None = None,
    seqused_k: Tensor | None = None,
    page_table: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int | None, int | None] = (None, None),
    softcap: float = 0.0,
    deterministic: bool = False,
    mask_mod: Any = None,
    block_sparse_tensors: Any = None,
    aux_tensors: list[Tensor] | None = None,
    return_lse: bool = False,
) -> Any:
    """Of its arguments, those that concern a mask or that it shares with the others."""
    record(function="varlen", deterministic=deterministic, causal=causal, window_size=window_size)
    assert qv is None and softmax_scale is None and softcap == 0 and seqused_q is None and seqused_k is None
    assert min_seqlen_k is None and page_table is None
    assert mask_mod is None and block_sparse_tensors is None and aux_tensors is None
    assert cu_seqlens_q is not None and cu_seqlens_k is not None and max_seqlen_q is not None and max_seqlen_k is not None
    window = open_ends(window_size)
    out, lse = _varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, (max_seqlen_q, max_seqlen_k), causal, window)
    return out, lse if return_lse or q.requires_grad else None


def open_ends(window: tuple[int | None, int | None]) -> tuple[int, int]:
    """FlashAttention 4 says None where the others say -1."""
    left, right = window
    assert left is None or left >= 0, f"window_size {window}: no limit is None"
    assert right is None or right >= 0, f"window_size {window}: no limit is None"
    return -1 if left is None else left, -1 if right is None else right
