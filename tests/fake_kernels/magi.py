"""MagiAttention 1.1: ``flex_flash_attn_func`` with ranges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fake_kernels.maths import check_inputs, check_int32, dense_attention, record


@dataclass
class AttnForwardMeta:
    lse: Tensor | None
    max_logits: Tensor | None


def _slice(rows: int, columns: int, kind: int) -> Tensor:
    """0 full, 1 causal (bottom-right), 2 inverse causal (top-left), 3 both, as its documentation draws them."""
    row, column = torch.arange(rows).unsqueeze(1), torch.arange(columns).unsqueeze(0)
    causal, inverse = column - (columns - 1) <= row - (rows - 1), column >= row
    return {0: torch.ones(rows, columns, dtype=torch.bool), 1: causal, 2: inverse, 3: causal & inverse}[kind]


def flex_flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_ranges: Tensor | None = None,
    k_ranges: Tensor | None = None,
    attn_type_map: Tensor | None = None,
    *,
    index_sparse_indices: Tensor | None = None,
    sink: Tensor | None = None,
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    deterministic: bool = False,
    sm_margin: int = 0,
    disable_fwd_atomic_reduction: bool = False,
    disable_bwd_dkv_atomic_reduction: bool = False,
    ref_block_size: tuple[int, int] | None = None,
    max_seqlen_q: int | None = None,
    range_merge: bool = False,
    swap_ab: bool = False,
    pack_gqa: bool = False,
    cat_gqa: bool = False,
    return_max_logits: bool = False,
) -> tuple[Tensor, AttnForwardMeta]:
    """Of its arguments, those that concern ranges."""
    record(function="ffa", deterministic=deterministic, no_atomics=disable_fwd_atomic_reduction, q_ranges=q_ranges)
    check_inputs(q, k, v, dims=3)
    assert q.shape[-1] in (64, 128), f"head dim {q.shape[-1]}"
    assert q_ranges is not None and k_ranges is not None and attn_type_map is not None
    count = len(q_ranges)
    check_int32("q_ranges", q_ranges, q, count, 2)
    check_int32("k_ranges", k_ranges, q, count, 2)
    check_int32("attn_type_map", attn_type_map, q, count)
    times: Any = torch.zeros(len(q), len(k), dtype=torch.int32)
    writers = torch.zeros(len(q), dtype=torch.int32)
    for (q0, q1), (k0, k1), kind in zip(q_ranges.tolist(), k_ranges.tolist(), attn_type_map.tolist(), strict=True):
        assert 0 <= q0 < q1 <= len(q) and 0 <= k0 < k1 <= len(k), f"rows {q0}:{q1}, columns {k0}:{k1}"
        times[q0:q1, k0:k1] += _slice(q1 - q0, k1 - k0, kind)
        writers[q0:q1] += 1
    assert int(times.max()) <= 1, "slices overlap: some keys count twice"
    assert not (disable_fwd_atomic_reduction and int(writers.max()) > 1), "rows are written by several slices, not atomically"
    out, lse = dense_attention(q.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0), times > 0)
    return out[0], AttnForwardMeta(lse[0].T.contiguous(), None)
