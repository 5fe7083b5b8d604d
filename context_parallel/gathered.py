"""Keys and values brought to the rank that needs them: ``fm3``, ``magi``, ``dual_chunk``, and both ``all_gather``.

All messages of the node, and those from other nodes, are under way before the first call of the kernel. Overlapped, that
call attends to the rank's own keys; those of a stage follow when they are there, from the rows that see some of them, and
results are merged by their log-sum-exp. Otherwise one call attends to everything. What came over the network is handed on
within the node one stage ahead of the computation.

Backward received keys are there still (or come once more), so their stages are taken first, last to first: the gradients of
a stage are on their way to the owner while the next one is computed, and the rank's own keys come last. A gateway adds up
what its node returns before it goes over the network. Every sum is in fp32 and in one order, its own share first and then by
stage and rank: the same in every run. Messages are in the dtype of the inputs. What is moved when is ``deliveries``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from context_parallel.deliveries import Incoming, Outgoing
from context_parallel.kernel import Result
from context_parallel.route import Part, Route
from context_parallel.shards import refuse_second_derivative, unpack
from context_parallel.ways import Setting, Way
from masks.column_mask import ColumnMask


class Gather(Way):
    """Attention to keys that are gathered first, or stage by stage."""

    exchanges = ("auto", "gloo", "nccl", "symmetric")

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.route = Route(setting.plan, setting.group.rank, setting.overlapped)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any]) -> Result:
        """See the top of this file."""
        found: Result = _Gathered.apply(q, k, v, self, options)
        return found

    def parts(self) -> list[int | str | None]:
        """The rank's own keys and every stage, or all at once."""
        return [part.key for part in self.route.parts.values()]

    def local_mask(self, part: int | str | None) -> ColumnMask:
        """Of a stage, of the rows that see it."""
        plan, rank = self.setting.plan, self.setting.group.rank
        assert not isinstance(part, str)
        return plan.local_mask(self.setting.mask, rank, part, plan.seeing(rank, part) if part else None)

    def keys(self, part: Part, k: Tensor, v: Tensor, buffer: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of a part: the rank's own as they are, others where they arrived."""
        return (k, v) if part.key == 0 else unpack(buffer[part.rows])


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, way: Gather, options: dict[str, Any]) -> Result:
        setting, route = way.setting, way.route
        setting.exchange.begin("forward")
        incoming = Incoming(route, setting.exchange, k, v)
        result: Result | None = None
        for stage in route.stages:
            incoming.finish(stage)
            incoming.hand_on(stage + 1)
            part = route.parts.get(stage)
            if part is not None:
                mask = setting.masks(part.key, q.device)
                rows, keys = part.queries, way.keys(part, k, v, incoming.buffer)
                out, lse = setting.kernel.forward(q[:, rows], *keys, mask, options)
                if result is None:
                    out = setting.kernel.room(out, len(route.parts))
                result = setting.kernel.merge(result, (out, lse), rows)
        assert result is not None
        out, lse = result[0].to(q.dtype), result[1]
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(q, k, v, out, lse, *([incoming.buffer] if setting.keep else []))
        ctx.way, ctx.options = way, options
        return out, lse

    @staticmethod
    def backward(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> tuple[Tensor | None, ...]:
        """Every rank takes part, also one whose gradients are all zero."""
        refuse_second_derivative()
        q, k, v, out, lse, *kept = ctx.saved_tensors
        way: Gather = ctx.way
        setting, route = way.setting, way.route
        setting.exchange.begin("backward")
        dout = torch.zeros_like(out) if dout is None else dout
        incoming = None if kept else Incoming(route, setting.exchange, k, v)
        outgoing = Outgoing(route, setting.exchange, k)
        shares: dict[int, tuple[slice, Tensor]] = {}
        for stage in route.stages[::-1] if kept else route.stages:
            if incoming is not None:
                incoming.finish(stage)
                incoming.hand_on(stage + 1)
            part = route.parts.get(stage)
            if part is not None:
                keys = way.keys(part, k, v, kept[0] if incoming is None else incoming.buffer)
                mask, rows = setting.masks(part.key, q.device), part.queries
                douts = dout[:, rows], None if dlse is None else dlse[..., rows]
                whole = out[:, rows], lse[..., rows].contiguous()
                share, dk, dv = setting.kernel.backward(douts, q[:, rows], *keys, whole, mask, ctx.options)
                shares[stage] = rows, share
                outgoing.take(part, dk, dv)
            if route.overlapped:
                outgoing.send(stage)
        if not route.overlapped:
            for stage in route.stages:
                outgoing.send(stage)
        dk, dv = outgoing.sums()
        return setting.kernel.total([shares[stage] for stage in sorted(shares)]).to(q.dtype), dk, dv, None, None
