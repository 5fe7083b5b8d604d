"""Heads instead of rows: every rank swaps its rows for some heads of the whole sequence, attends, and swaps back: ``ulysses``.

All to all, twice forward and twice backward. Nothing is known of the mask and nothing is saved by it, but the work is the
same for every rank whatever the mask, and one call of the kernel does it. Query and key/value heads must divide by the ranks.

Source: DeepSpeed-Ulysses. This is a re-implementation on this project's kernel.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from context_parallel.exchanges import Receive, Send, Stage
from context_parallel.kernel import Result
from context_parallel.shards import cut, refuse_second_derivative
from context_parallel.ways import Setting, Way
from masks.column_mask import ColumnMask


class Ulysses(Way):
    """Attention to the whole sequence with some of the heads."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        plan = setting.plan
        self.rows = [plan.rows(rank) for rank in range(plan.ranks)]
        self.lengths = [sum(end - start for start, end in spans) for spans in self.rows]

    def refusal(self, q: Tensor, k: Tensor, v: Tensor) -> str | None:
        """Heads that do not divide by the ranks."""
        ranks, heads, kv_heads = self.setting.plan.ranks, q.shape[2], k.shape[2]
        if heads % ranks or kv_heads % ranks:
            common = [str(n) for n in range(1, kv_heads + 1) if heads % n == 0 and kv_heads % n == 0]
            return (
                f"strategy 'ulysses' gives every rank some of the heads: {heads} query heads and {kv_heads} KV heads do not "
                f"divide by {ranks} ranks; allowed with these heads: {', '.join(common)} ranks, or another strategy"
            )
        return None

    def attend(self, q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any]) -> Result:
        """See the top of this file."""
        found: Result = _Swapped.apply(q, k, v, self, options)
        return found

    def local_mask(self, part: int | str | None) -> ColumnMask:
        """Of all rows and columns, the rank's heads."""
        return heads_of(self.setting.mask, self.setting.group.rank, self.setting.plan.ranks)

    def parts(self) -> list[int | str | None]:
        """All rows and columns of the rank's heads."""
        return ["heads"]

    def received(self, q: Tensor, k: Tensor) -> list[int]:
        """q, k and v of the other ranks' rows, out and LSE of the other ranks' heads; LSE in four bytes."""
        ranks, whole = self.setting.plan.ranks, sum(self.lengths)
        element = q.shape[0] * q.shape[3] * q.element_size()
        before = element * (q.shape[2] + 2 * k.shape[2]) // ranks
        after = (element + 4 * q.shape[0]) * q.shape[2] // ranks
        return [(whole - mine) * before + mine * (ranks - 1) * after for mine in self.lengths]

    def tiles(self) -> list[int]:
        """An equal share of all of them."""
        plan = self.setting.plan
        return [int(plan.work.full.sum() + plan.work.partial.sum()) // plan.ranks] * plan.ranks

    def to_heads(self, xs: list[Tensor]) -> list[Tensor]:
        """``[B, local rows, H, *]`` each to ``[B, S, H / ranks, *]``: the rank's heads of the whole sequence."""
        setting, rank = self.setting, self.setting.group.rank
        others = [other for other in range(setting.plan.ranks) if other != rank]
        sends, receives, wholes, landed = [], [], [], []
        for x in xs:
            heads = x.shape[2] // setting.plan.ranks
            whole = x.new_empty((x.shape[0], setting.plan.grid.seqlen, heads, *x.shape[3:]))
            self._put(whole, rank, x[:, :, rank * heads : (rank + 1) * heads].transpose(0, 1))
            for other in others:
                sends.append(Send(other, partial(_rows_first, x[:, :, other * heads : (other + 1) * heads])))
                into = setting.exchange.empty(x, (self.lengths[other], x.shape[0], heads, *x.shape[3:]))
                receives.append(Receive(other, into))
                landed.append((whole, other, into))
            wholes.append(whole)
        self._carry(sends, receives)
        for whole, other, into in landed:
            self._put(whole, other, into)
        return wholes

    def to_rows(self, xs: list[Tensor]) -> list[Tensor]:
        """The way back: ``[B, S, H / ranks, *]`` each to ``[B, local rows, H, *]``."""
        setting, rank = self.setting, self.setting.group.rank
        sends, receives, locals_, landed = [], [], [], []
        for x in xs:
            heads = x.shape[2]
            local = x.new_empty((x.shape[0], self.lengths[rank], heads * setting.plan.ranks, *x.shape[3:]))
            for other in range(setting.plan.ranks):
                place = local[:, :, other * heads : (other + 1) * heads]
                if other == rank:
                    place.copy_(cut(x, self.rows[rank]))
                    continue
                sends.append(Send(other, partial(_rows_first, x, self.rows[other])))
                into = setting.exchange.empty(x, (self.lengths[rank], x.shape[0], heads, *x.shape[3:]))
                receives.append(Receive(other, into))
                landed.append((place, into))
            locals_.append(local)
        self._carry(sends, receives)
        for place, into in landed:
            place.copy_(into.transpose(0, 1))
        return locals_

    def _carry(self, sends: list[Send], receives: list[Receive]) -> None:
        (under_way,) = self.setting.exchange.start([Stage(sends, receives)])
        under_way.wait()

    def _put(self, whole: Tensor, rank: int, rows: Tensor) -> None:
        at = 0
        for start, end in self.rows[rank]:
            whole[:, start:end] = rows[at : at + end - start].transpose(0, 1)
            at += end - start


class _Swapped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, way: Ulysses, options: dict[str, Any]) -> Result:
        setting = way.setting
        setting.exchange.begin("forward")
        whole = way.to_heads([q, k, v])
        mask = setting.masks("heads", q.device)
        out, lse = setting.kernel.forward(whole[0], whole[1], whole[2], mask, options)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*whole, out, lse)
        ctx.way, ctx.options = way, options
        rows, lse_rows = way.to_rows([out, lse.transpose(1, 2)])
        return rows, lse_rows.transpose(1, 2).contiguous()

    @staticmethod
    def backward(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> tuple[Tensor | None, ...]:
        """Every rank takes part, also one whose gradients are all zero: then zeros are sent."""
        refuse_second_derivative()
        q, k, v, out, lse = ctx.saved_tensors
        way: Ulysses = ctx.way
        setting = way.setting
        setting.exchange.begin("backward")
        local = way.lengths[setting.group.rank]
        heads = q.shape[2] * setting.plan.ranks
        if dout is None:
            dout = q.new_zeros((q.shape[0], local, heads, q.shape[3]))
        # Also without one: no rank knows whether another has it.
        dlse = lse.new_zeros((q.shape[0], heads, local)) if dlse is None else dlse
        dout, dlse = way.to_heads([dout, dlse.transpose(1, 2)])
        douts = dout, dlse.transpose(1, 2).contiguous()
        found = setting.kernel.backward(douts, q, k, v, (out, lse), setting.masks("heads", q.device), ctx.options)
        return *way.to_rows(list(found)), None, None


def heads_of(mask: ColumnMask, rank: int, ranks: int) -> ColumnMask:
    """The mask of a rank's heads: a part of those it has one by one, or the one that all share."""
    each = mask.heads // ranks
    if mask.heads == 1:
        return mask
    taken: dict[str, Any] = {
        name: x if x.shape[1] == 1 else x[:, rank * each : (rank + 1) * each].contiguous() for name, x in mask.tensors().items()
    }
    return replace(mask, **taken)


def _rows_first(x: Tensor, rows: Any = None) -> Tensor:
    """``[B, rows, ...]`` as ``[rows, B, ...]``, contiguous; of the given spans of rows only."""
    return (x if rows is None else cut(x, rows)).transpose(0, 1).contiguous()
