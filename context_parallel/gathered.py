"""Keys and values gathered before they are attended to, and their gradients sent back: ``fm3``, ``all_gather``, ``dual_chunk``.

One grouped exchange brings every rank the units of its plan, each from its owner; one attention call works on all of them.
Backwards the same messages go the other way, and the owner adds up what comes in fp32, its own share first and then by rank:
the same sum in every run.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from context_parallel.group import Group
from context_parallel.plan import Plan
from context_parallel.shards import Slots, pack, refuse_second_derivative, unpack
from fm3_kernel.parts import sum_dtype


class Route:
    """One rank's part of a plan of one stage.

    Args:
        plan: of one node, with all messages in stage 1.
        rank: of the group.
    """

    def __init__(self, plan: Plan, rank: int) -> None:
        self.own = plan.units(rank, 0)
        self.slots = Slots(plan, plan.units(rank))
        self.sends = [(one.target, one.units) for one in plan.transfers if one.source == rank]
        self.receives = [(one.source, one.units) for one in plan.transfers if one.target == rank]


class Gather(torch.autograd.Function):
    """Local keys and values to those of the rank's buffer, ``[B, slots * unit, Hkv, D]``."""

    @staticmethod
    def forward(ctx: Any, k: Tensor, v: Tensor, group: Group, route: Route) -> tuple[Tensor, Tensor]:
        """Units arrive where they are attended to: each message is one run of slots."""
        slots = route.slots
        buffer = slots.empty(k)
        slots.put(buffer, route.own, pack(k, v))
        sends = [(peer, slots.take(buffer, units)) for peer, units in route.sends]
        receives = [(peer, slots.place(buffer, units)) for peer, units in route.receives]
        group.start(sends, receives).wait()
        ctx.group, ctx.route = group, route
        return unpack(buffer)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None]:
        """Every rank takes part, also one whose gradients are all zero."""
        refuse_second_derivative()
        group, route = ctx.group, ctx.route
        slots = route.slots
        found = pack(*grads)
        sends = [(peer, slots.take(found, units)) for peer, units in route.receives]
        receives = [(peer, found.new_empty((slots.tokens(units), *found.shape[1:]))) for peer, units in route.sends]
        under_way = group.start(sends, receives)
        sums = found[: len(route.own) * slots.unit].to(sum_dtype(found.dtype), copy=True)
        under_way.wait()
        for (_, units), (_, tokens) in zip(route.sends, receives, strict=True):
            slots.put(sums, units, tokens, add=True)
        dk, dv = unpack(slots.take(sums, route.own).to(found.dtype))
        return dk.contiguous(), dv.contiguous(), None, None
