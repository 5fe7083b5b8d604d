"""Keys and values passed around a ring, each hop attended to by itself: ``ring`` and ``ring_skip``.

At hop i a rank has the shard of the rank i before it. It hands it to the next rank and takes the following one while it
attends; the results of hops are merged by their log-sum-exp in fp32. Backwards keys and values go around once more, none is
kept from the forward pass, and the gradients of a shard follow one hop behind it: each rank adds its part in fp32, the last
one sends the sum home, where the owner's own part is added. The order of that sum is the order of the ring, in every run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from context_parallel.group import Group, Pending
from context_parallel.plan import Plan
from context_parallel.shards import Slots, pack, refuse_second_derivative, unpack
from fm3_kernel import PreparedMask, flashmask_attention
from fm3_kernel.parts import merge, part_gradients, sum_dtype


class Hops:
    """One rank's part of a plan whose stages are hops.

    Args:
        plan: by ``ring_schedule``.
        rank: of the group.
    """

    def __init__(self, plan: Plan, rank: int) -> None:
        self.ranks, self.rank = plan.ranks, rank
        self.next, self.previous = (rank + 1) % plan.ranks, (rank - 1) % plan.ranks
        self.attends = [bool(plan.units(rank, hop)) for hop in range(plan.ranks)]
        self.slots = [Slots(plan, plan.units(self.owner(hop), 0)) for hop in range(plan.ranks)]
        self._travels = [0] * plan.ranks
        for one in plan.transfers:
            self._travels[(one.target - one.stage) % plan.ranks] = one.stage

    def owner(self, hop: int) -> int:
        """Whose shard is here at this hop, if it travels so far."""
        return (self.rank - hop) % self.ranks

    def has(self, hop: int) -> bool:
        """Whether a shard is here at this hop: the rank's own at hop 0."""
        return hop < self.ranks and hop <= self._travels[self.owner(hop)]

    def hands_on(self, hop: int) -> bool:
        """Whether the shard of this hop goes on to the next rank."""
        return hop < self._travels[self.owner(hop)]

    def turns_at(self, hop: int) -> bool:
        """Whether this is the last hop of the rank's own shard, after which its gradient comes home."""
        return 0 < hop == self._travels[self.rank]

    def shards(self, group: Group, k: Tensor, v: Tensor) -> Iterator[tuple[int, Tensor | None]]:
        """(hop, buffer of the shard that is here, or None) of all hops. While the caller works on one, the next arrives."""
        own = self.slots[0].empty(k)
        self.slots[0].put(own, self.slots[0].units, pack(k, v))
        shard: Tensor | None = own
        for hop in range(self.ranks):
            sends, receives, coming = [], [], None
            if shard is not None and self.hands_on(hop):
                sends = [(self.next, self._tokens(shard, hop))]
            if self.has(hop + 1):
                coming = self.slots[hop + 1].empty(k)
                receives = [(self.previous, self._tokens(coming, hop + 1))]
            under_way = group.start(sends, receives)
            yield hop, shard
            under_way.wait()
            shard = coming

    def _tokens(self, buffer: Tensor, hop: int) -> Tensor:
        return self.slots[hop].place(buffer, self.slots[hop].units)


class Ring(torch.autograd.Function):
    """Attention of local queries over the shards of the ring: ``(out, lse)``."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        group: Group,
        hops: Hops,
        masks: Callable[[int], PreparedMask],
        options: dict[str, Any],
    ) -> tuple[Tensor, Tensor]:
        """``masks``: of the rank's rows by the shard of a hop. ``options``: of the local calls."""
        dtype = sum_dtype(q.dtype)
        out = torch.zeros_like(q, dtype=dtype, memory_format=torch.contiguous_format)
        lse = q.new_full((q.shape[0], q.shape[2], q.shape[1]), -torch.inf, dtype=dtype)
        for hop, shard in hops.shards(group, k, v):
            if shard is not None and hops.attends[hop]:
                part = flashmask_attention(q, *unpack(shard), masks(hop), return_lse=True, **options)
                out, lse = merge(out, lse, *part)
        out = out.to(q.dtype)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.way = group, hops, masks, options
        return out, lse

    @staticmethod
    def backward(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> tuple[Tensor | None, ...]:
        """Every rank takes part, also one whose gradients are all zero."""
        refuse_second_derivative()
        q, k, v, out, lse = ctx.saved_tensors
        group, hops, masks, options = ctx.way
        dtype = sum_dtype(q.dtype)
        dout = torch.zeros_like(out) if dout is None else dout
        dq = torch.zeros_like(out, dtype=dtype)
        own = k.new_zeros((k.shape[1], 2, k.shape[0], *k.shape[2:]), dtype=dtype)
        home: Tensor | None = None
        before: Tensor | None = None
        under_way: Pending | None = None
        for hop, shard in hops.shards(group, k, v):
            slots = hops.slots[hop]
            part = None
            if shard is not None and hops.attends[hop]:
                share, dk, dv = part_gradients(dout, dlse, q, *unpack(shard), out, lse, masks(hop), **options)
                dq += share
                part = slots.take(pack(dk, dv), slots.units)
            if under_way is not None:
                under_way.wait()
            total = own if hop == 0 else before
            if hop == 1 and hops.has(1):
                total = own.new_zeros((slots.tokens(slots.units), *own.shape[1:]))
            if part is not None and total is not None:
                total += part
            under_way, before, arriving = _send_gradients(group, hops, hop, total, own)
            home = home if arriving is None else arriving
        if under_way is not None:
            under_way.wait()
        if home is not None:
            own += home
        dk, dv = unpack(own.to(k.dtype))
        return dq.to(q.dtype), dk.contiguous(), dv.contiguous(), None, None, None, None


def _send_gradients(
    group: Group, hops: Hops, hop: int, total: Tensor | None, own: Tensor
) -> tuple[Pending, Tensor | None, Tensor | None]:
    """Sends the summed gradient of the shard of ``hop`` on, behind its shard, or home from where that stops.

    Args:
        total: the sum so far, None without a shard. The rank's own, at hop 0, stays.
        own: the gradient of the rank's own shard, for its shape and dtype.

    Returns:
        What is under way: the sum so far of the shard of ``hop + 1``, and the sum for the rank's own shard; None where none
        comes. A shard has a sum only from hop 1 on.
    """
    sends, receives = [], []
    before, home = None, None
    if hop > 0 and total is not None:
        sends.append((hops.next if hops.hands_on(hop) else hops.owner(hop), total))
    if hop > 0 and hops.has(hop + 1):
        slots = hops.slots[hop + 1]
        before = own.new_empty((slots.tokens(slots.units), *own.shape[1:]))
        receives.append((hops.previous, before))
    if hops.turns_at(hop):
        home = torch.empty_like(own)
        receives.append(((hops.rank + hop) % hops.ranks, home))
    return group.start(sends, receives), before, home
