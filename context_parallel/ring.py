"""Keys and values passed around a ring, each hop attended to by itself: ``ring`` and ``ring_skip``.

At hop i a rank has the shard of the rank i before it. It hands it to the next rank and takes the following one while it
attends; the results of hops are merged by their log-sum-exp in fp32. Backwards keys and values go around once more, none is
kept from the forward pass, and the gradients of a shard follow one hop behind it: each rank adds its part in fp32, the last
one sends the sum home, where the owner's own part is added. The order of that sum is the order of the ring, in every run.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from context_parallel.exchanges import Exchange, Pending, Receive, Send, Stage
from context_parallel.kernel import Result
from context_parallel.plan import Plan
from context_parallel.shards import Slots, pack, refuse_second_derivative, unpack
from context_parallel.ways import Setting, Way
from fm3_kernel.parts import sum_dtype


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

    def shards(self, exchange: Exchange, k: Tensor, v: Tensor) -> Iterator[tuple[int, Tensor | None]]:
        """(hop, buffer of the shard that is here, or None) of all hops. While the caller works on one, the next arrives.

        The rank's own, at hop 0, is packed only if it travels.
        """
        shard: Tensor | None = None
        for hop in range(self.ranks):
            sends, receives, coming = [], [], None
            if self.has(hop) and self.hands_on(hop):
                sends = [Send(self.next, partial(pack, k, v) if shard is None else partial(self._tokens, shard, hop))]
            if self.has(hop + 1):
                slots = self.slots[hop + 1]
                coming = slots.clear_padding(exchange.empty(k, slots.shape(k)))
                receives = [Receive(self.previous, self._tokens(coming, hop + 1))]
            (under_way,) = exchange.start([Stage(sends, receives)])
            yield hop, shard
            under_way.wait()
            shard = coming

    def _tokens(self, buffer: Tensor, hop: int) -> Tensor:
        return self.slots[hop].place(buffer, self.slots[hop].units)


class Ring(Way):
    """Attention to shards that go around."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.hops = Hops(setting.plan, setting.group.rank)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any]) -> Result:
        """See the top of this file."""
        found: Result = _Ring.apply(q, k, v, self, options)
        return found

    def parts(self) -> list[int | str | None]:
        """The rank's own shard, and those that it attends to."""
        return [hop for hop, attends in enumerate(self.hops.attends) if attends or hop == 0]


class _Ring(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, way: Ring, options: dict[str, Any]) -> Result:
        setting, hops = way.setting, way.hops
        setting.exchange.begin("forward")
        result: Result | None = None
        for hop, shard in hops.shards(setting.exchange, k, v):
            if hop == 0 or (shard is not None and hops.attends[hop]):
                keys = (k, v) if shard is None else unpack(shard)
                found = setting.kernel.forward(q, *keys, setting.masks(hop, q.device), options)
                if result is None:
                    found = setting.kernel.room(found[0], sum(hops.attends)), found[1]
                result = setting.kernel.merge(result, found, slice(None))
        assert result is not None
        out, lse = result[0].to(q.dtype), result[1]
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.way, ctx.options = way, options
        return out, lse

    @staticmethod
    def backward(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> tuple[Tensor | None, ...]:
        """Every rank takes part, also one whose gradients are all zero."""
        refuse_second_derivative()
        q, k, v, out, lse = ctx.saved_tensors
        setting, hops, kernel = ctx.way.setting, ctx.way.hops, ctx.way.setting.kernel
        exchange = setting.exchange
        exchange.begin("backward")
        dtype = sum_dtype(q.dtype)
        dout = torch.zeros_like(out) if dout is None else dout
        shares: list[tuple[slice, Tensor]] = []
        own: Tensor | None = None
        home: Tensor | None = None
        before: Tensor | None = None
        under_way: Pending | None = None
        for hop, shard in hops.shards(exchange, k, v):
            slots = hops.slots[hop]
            part = None
            if hop == 0 or (shard is not None and hops.attends[hop]):
                keys = (k, v) if shard is None else unpack(shard)
                mask = setting.masks(hop, q.device)
                share, dk, dv = kernel.backward((dout, dlse), q, *keys, (out, lse), mask, ctx.options)
                # Summed as they come: all of them at once would be P times the memory.
                total_dq = kernel.room(share, sum(hops.attends)) if hop == 0 else kernel.total([*shares, (slice(None), share)])
                shares = [(slice(None), total_dq)]
                part = pack(dk, dv) if hop == 0 else slots.take(pack(dk, dv), slots.units)
            if under_way is not None:
                under_way.wait()
            if hop == 0:
                own = part
                continue
            assert own is not None
            shape = (slots.tokens(slots.units), *own.shape[1:])
            total = own.new_zeros(shape, dtype=dtype) if hop == 1 and hops.has(1) else before
            if part is not None and total is not None:
                total += part
            under_way, before, arriving = _send_gradients(exchange, hops, hop, total, own)
            home = home if arriving is None else arriving
        if under_way is not None:
            under_way.wait()
        assert own is not None
        dk, dv = unpack((own if home is None else home.add_(own)).to(k.dtype))
        return shares[0][1].to(q.dtype), dk.contiguous(), dv.contiguous(), None, None


def _send_gradients(
    exchange: Exchange, hops: Hops, hop: int, total: Tensor | None, own: Tensor
) -> tuple[Pending, Tensor | None, Tensor | None]:
    """Sends the summed gradient of the shard of ``hop`` on, behind its shard, or home from where that stops.

    Args:
        hop: from 1 on; the rank's own shard, at hop 0, has no sum that travels.
        total: the sum so far, None without a shard.
        own: the gradient of the rank's own shard, for its shape; sums are in fp32.

    Returns:
        What is under way: the sum so far of the shard of ``hop + 1``, and the sum for the rank's own shard; None where none
        comes.
    """
    sends, receives = [], []
    before, home = None, None
    if total is not None:
        sends.append(Send(hops.next if hops.hands_on(hop) else hops.owner(hop), lambda: total))
    if hops.has(hop + 1):
        slots = hops.slots[hop + 1]
        before = exchange.empty(own, (slots.tokens(slots.units), *own.shape[1:]), sum_dtype(own.dtype))
        receives.append(Receive(hops.previous, before))
    if hops.turns_at(hop):
        home = exchange.empty(own, own.shape, sum_dtype(own.dtype))
        receives.append(Receive((hops.rank + hop) % hops.ranks, home))
    (under_way,) = exchange.start([Stage(sends, receives)])
    return under_way, before, home
