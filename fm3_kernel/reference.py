"""Attention under a column mask in plain PyTorch: forward and backward, tile by tile, what is hidden is skipped.

It runs on any device, needs nothing compiled, and is the implementation that every kernel is measured against. It is
not the fast path of a GPU. For a row tile of 128 query rows it gathers the live column tiles only, multiplies them in a
few large calls, and tests single elements only in partial tiles. Scratch is one block of scores, never the whole matrix.

Arithmetic is fp32 (fp64 for fp64 inputs) whatever the input dtype; softmax works in base 2 inside and returns a natural
logarithm. On CUDA a product in fp32 follows ``torch.backends.cuda.matmul``. Every sum has a fixed order and nothing is
accumulated by atomics, so the results are the same bits in every run on the same machine.

A key or value that is not finite and hidden, but lies in a live tile, still poisons the rows of that tile (0 x NaN).
"""

from __future__ import annotations

import contextlib
import math

import torch
from torch import Tensor

from fm3_kernel.layout import Layout
from fm3_kernel.row_tiles import RowTiles
from masks.column_mask import ColumnMask

LOG2_E = math.log2(math.e)


def _plain_arithmetic(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Inside autocast the products would silently run in 16 bits."""
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return contextlib.nullcontext()


@torch.no_grad()
def forward(
    q: Tensor, k: Tensor, v: Tensor, mask: ColumnMask, scale: float, *, classes: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Attention output and log-sum-exp.

    Args:
        q: ``[B, Sq, Hq, D]``; k, v: ``[B, Sk, Hkv, D]``. fp16, bf16, fp32 or fp64, any strides. ``Hq`` is a multiple of
            ``Hkv``. The public door checks all this, here it is taken for granted.
        mask: of Sq rows and Sk columns, on the tensors' device.
        scale: factor of the scores, any finite number.
        classes: class map to use instead of the mask's own, uint8 ``[B, Hm, ceil(Sq/128), ceil(Sk/128)]``; a test can
            lose a tile by editing it.

    Returns:
        ``out`` like q (contiguous), and ``lse`` ``[B, Hq, Sq]``, natural logarithm, fp32 (fp64 for fp64 inputs).
        A row that sees no key: out 0, lse -inf.
    """
    layout = Layout(q, k)
    out, lse = layout.rows_like(q.shape[3]).zero_(), layout.rows_like(1).fill_(-math.inf)
    if layout.empty:
        return layout.rows_back(out, q.dtype), layout.lse_back(lse)
    with _plain_arithmetic(q.device):
        loop = RowTiles(layout, mask, classes)
        queries, keys, values = layout.rows(q), layout.columns(k), layout.columns(v)
        for batch, head in layout.mask_items(mask):
            q_all, out_all, lse_all = (layout.row_view(t, mask, batch, head) for t in (queries, out, lse))
            k_all, v_all = (layout.column_view(t, mask, batch, head) for t in (keys, values))
            for work in loop.work(batch, head):
                q_tile = q_all[work.items, work.rows]
                maximum = total = weighted = None
                for index, step in enumerate(work.steps):
                    k_step, v_step = step.gather(k_all[work.items]), step.gather(v_all[work.items])
                    scores = loop.scratch("scores", *q_tile.shape[:2], step.columns)
                    torch.baddbmm(scores, q_tile, k_step.transpose(1, 2), beta=0, alpha=scale * LOG2_E, out=scores)
                    work.apply(scores, index)
                    highest = scores.amax(-1, keepdim=True)
                    if maximum is not None:
                        highest = torch.maximum(highest, maximum)
                    # A row without a key so far has -inf here; 0 instead keeps -inf - (-inf) out of the exponent.
                    base = highest.masked_fill(highest == -math.inf, 0)
                    scores.sub_(base).exp2_()
                    if maximum is None or total is None or weighted is None:
                        total, weighted = scores.sum(-1, keepdim=True), torch.bmm(scores, v_step)
                    else:
                        fade = torch.exp2(maximum - base)
                        total = total.mul_(fade).add_(scores.sum(-1, keepdim=True))
                        weighted.mul_(fade).baddbmm_(scores, v_step)
                    maximum = highest
                if maximum is not None and total is not None and weighted is not None:
                    out_all[work.items, work.rows] = weighted.div_(total.masked_fill(total == 0, 1))
                    lse_all[work.items, work.rows] = total.log2_().add_(maximum).mul_(1 / LOG2_E)
    return layout.rows_back(out, q.dtype), layout.lse_back(lse)


@torch.no_grad()
def backward(
    dout: Tensor,
    dlse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    mask: ColumnMask,
    scale: float,
    *,
    needs: tuple[bool, bool, bool] = (True, True, True),
    classes: Tensor | None = None,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of q, k, v from those of out and, if given, of lse.

    Args:
        dout: like ``out``, any strides; dlse: like ``lse``, or None.
        q, k, v, mask, scale, classes: as for :func:`forward`; out, lse: what it returned.
        needs: which of dq, dk, dv are wanted; the others are None and their products are left out.

    Returns:
        dq, dk, dv: shape and dtype of q, k, v, contiguous. Exactly 0 for a row that sees no key, whatever arrives in
        ``dout`` and ``dlse`` there, and for a column that no row sees.
    """
    layout = Layout(q, k)
    need_q, need_k, need_v = needs
    width = q.shape[3]
    dq = layout.rows_like(width).zero_() if need_q else None
    dk = layout.columns_like(width).zero_() if need_k else None
    dv = layout.columns_like(width).zero_() if need_v else None
    if any(needs) and not layout.empty:
        with _plain_arithmetic(q.device):
            loop = RowTiles(layout, mask, classes)
            queries, keys, values, dout_rows = layout.rows(q), layout.columns(k), layout.columns(v), layout.rows(dout)
            lse2 = layout.lse(lse).mul_(LOG2_E)
            dead = lse2 == -math.inf
            # The exponent of a dead row becomes -inf instead of NaN, and nothing that arrives there goes further.
            lse2.masked_fill_(dead, math.inf)
            dout_rows.masked_fill_(dead, 0)
            delta = layout.rows(out).mul_(dout_rows).sum(-1, keepdim=True)
            if dlse is not None:
                delta.sub_(layout.lse(dlse).masked_fill_(dead, 0))
            for batch, head in layout.mask_items(mask):
                q_all, do_all, lse_all, delta_all = (
                    layout.row_view(t, mask, batch, head) for t in (queries, dout_rows, lse2, delta)
                )
                k_all, v_all = (layout.column_view(t, mask, batch, head) for t in (keys, values))
                dq_all = None if dq is None else layout.row_view(dq, mask, batch, head)
                dk_all = None if dk is None else layout.column_view(dk, mask, batch, head)
                dv_all = None if dv is None else layout.column_view(dv, mask, batch, head)
                for work in loop.work(batch, head):
                    at = (work.items, work.rows)
                    q_tile, do_tile = q_all[at], do_all[at]
                    for index, step in enumerate(work.steps):
                        shape = (*q_tile.shape[:2], step.columns)
                        k_step, probs = step.gather(k_all[work.items]), loop.scratch("scores", *shape)
                        torch.baddbmm(probs, q_tile, k_step.transpose(1, 2), beta=0, alpha=scale * LOG2_E, out=probs)
                        work.apply(probs, index)
                        probs.sub_(lse_all[at]).exp2_()
                        if dv_all is not None:
                            step.add_product(dv_all[work.items], probs.transpose(1, 2), do_tile)
                        if dq_all is None and dk_all is None:
                            continue
                        v_step, ds = step.gather(v_all[work.items]), loop.scratch("ds", *shape)
                        torch.bmm(do_tile, v_step.transpose(1, 2), out=ds)
                        ds.sub_(delta_all[at]).mul_(probs)
                        if dq_all is not None:
                            dq_all[at].baddbmm_(ds, k_step, alpha=scale)
                        if dk_all is not None:
                            step.add_product(dk_all[work.items], ds.transpose(1, 2), q_tile, alpha=scale)
    return (
        None if dq is None else layout.rows_back(dq, q.dtype),
        None if dk is None else layout.columns_back(dk, k.dtype),
        None if dv is None else layout.columns_back(dv, v.dtype),
    )
