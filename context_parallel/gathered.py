"""Keys and values brought to the rank that needs them: ``fm3``, ``magi``, ``dual_chunk``, and both ``all_gather``.

All messages of the node, and those from other nodes, are under way before the first call of the kernel. Overlapped, that
call attends to the rank's own keys; those of a stage follow when they are there, and results are merged by their
log-sum-exp in fp32. Otherwise one call attends to everything. What came over the network is handed on within the node one
stage ahead of the computation.

Backward received keys are there still (or come once more), so their stages are taken first, last to first: the gradients of
a stage are on their way to the owner while the next one is computed, and the rank's own keys come last. A gateway adds up
what its node returns before it goes over the network. Every sum is in fp32 and in one order, its own share first and then by
stage and rank: the same in every run. Messages are in the dtype of the inputs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from context_parallel.exchanges import Pending, Receive, Send, Stage
from context_parallel.kernel import Result
from context_parallel.route import Leg, Legs, Part, Route
from context_parallel.shards import Slots, pack, refuse_second_derivative, token_bytes, unpack
from context_parallel.ways import Setting, Way
from fm3_kernel.parts import sum_dtype


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

    def keys(self, part: Part, k: Tensor, v: Tensor, buffer: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of a part: the rank's own as they are, others where they arrived."""
        return (k, v) if part.key == 0 else unpack(buffer[part.rows])


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, way: Gather, options: dict[str, Any]) -> Result:
        setting, route = way.setting, way.route
        setting.exchange.begin("forward")
        incoming = Incoming(way, k, v)
        result: Result | None = None
        for stage in route.stages:
            incoming.finish(stage)
            incoming.hand_on(stage + 1)
            part = route.parts.get(stage)
            if part is not None:
                mask = setting.masks(part.key, q.device)
                found = setting.kernel.forward(q, *way.keys(part, k, v, incoming.buffer), mask, options)
                result = setting.kernel.merge(result, found)
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
        incoming = None if kept else Incoming(way, k, v)
        outgoing = Outgoing(way, k)
        dq: Tensor | None = None
        for stage in route.stages[::-1] if kept else route.stages:
            if incoming is not None:
                incoming.finish(stage)
                incoming.hand_on(stage + 1)
            part = route.parts.get(stage)
            if part is not None:
                keys = way.keys(part, k, v, kept[0] if incoming is None else incoming.buffer)
                mask = setting.masks(part.key, q.device)
                share, dk, dv = setting.kernel.backward((dout, dlse), q, *keys, (out, lse), mask, ctx.options)
                dq = setting.kernel.add(dq, share)
                outgoing.take(part, dk, dv)
            if route.overlapped:
                outgoing.send(stage)
        if not route.overlapped:
            for stage in route.stages:
                outgoing.send(stage)
        assert dq is not None
        dk, dv = outgoing.sums()
        return dq.to(q.dtype), dk, dv, None, None


class Incoming:
    """What a rank receives, from the start of all messages on.

    Args:
        way: the strategy. k, v: of the rank's own rows.
    """

    def __init__(self, way: Gather, k: Tensor, v: Tensor) -> None:
        self._route, self._exchange = way.route, way.setting.exchange
        self._like = k
        route, exchange = way.route, way.setting.exchange
        self.buffer = route.buffer.clear_padding(exchange.empty(k, route.buffer.shape(k)))
        self._inbox = {stage: exchange.empty(k, slots.shape(k)) for stage, slots in route.inbox.items()}
        self._on: dict[int, Pending] = {}

        def own(leg: Leg) -> Send:
            return Send(leg.peer, lambda: pack(k, v, route.own.spans(leg.units)), leg.at)

        near = [self._stage(route.near[s], own, route.buffer, self.buffer) for s in route.near_stages]
        network = [self._stage(route.network[s], own, route.inbox[s], self._inbox[s]) for s in route.far_stages]
        self._near = dict(zip(route.near_stages, exchange.start(near, route.room * token_bytes(k)), strict=True))
        self._network = dict(zip(route.far_stages, exchange.start(network) if network else [], strict=True))
        if not route.overlapped:
            route.buffer.put(self.buffer, route.own.units, pack(k, v))

    def hand_on(self, stage: int) -> None:
        """What the network brought in a stage, to its place here and to others of the node. Stages in order."""
        if stage not in self._network or stage in self._on:
            return
        self._network[stage].wait()
        route, slots, inbox = self._route, self._route.inbox[stage], self._inbox[stage]
        mine = route.attended[stage]
        route.buffer.put(self.buffer, mine, slots.take(inbox, mine))
        on = self._stage(
            route.on[stage],
            lambda leg: Send(leg.peer, lambda: slots.take(inbox, leg.units)),
            route.buffer,
            self.buffer,
        )
        (self._on[stage],) = self._exchange.start([on])

    def finish(self, stage: int) -> None:
        """Until all units of a stage are in the buffer. Stages in order."""
        self.hand_on(stage)
        under_way = self._on.get(stage) or self._near.get(stage)
        if under_way is not None:
            under_way.wait()

    def _stage(self, legs: Legs, send: Any, slots: Slots, buffer: Tensor) -> Stage:
        receives = [Receive(leg.peer, slots.place(buffer, leg.units), leg.at) for leg in legs.receives]
        return Stage([send(leg) for leg in legs.sends], receives)


class Outgoing:
    """The gradients that a rank returns, and those that are returned to it.

    Args:
        way: the strategy. k: of the rank's own rows.
    """

    def __init__(self, way: Gather, k: Tensor) -> None:
        self._route, self._exchange = way.route, way.setting.exchange
        self._like, self._dtype = k, sum_dtype(k.dtype)
        self._found: tuple[Slots, Tensor] | None = None
        self._own: Tensor | None = None
        #: Of the last far stage: itself, what members return, the sum so far.
        self._members: tuple[int, list[Receive], Pending, Tensor] | None = None
        self._returned: list[tuple[int, list[tuple[Leg, Tensor]], Pending]] = []

    def take(self, part: Part, dk: Tensor, dv: Tensor) -> None:
        """The gradients of a part, before the stages that it was made of are sent."""
        self._found = part.slots, pack(dk, dv)
        if part.key in (0, None):
            own = self._found[1] if part.key == 0 else part.slots.take(self._found[1], self._route.own.units)
            self._own = own.to(self._dtype)

    def send(self, stage: int) -> None:
        """Starts the return of a stage: to its owners, or to the gateways of the node that have brought it."""
        route = self._route
        if stage in route.near_stages:
            sends, receives = self._back(route.near[stage], self._given)
            (under_way,) = self._exchange.start([Stage(sends, receives)], route.back_room[stage] * token_bytes(self._like))
            legs = list(zip(route.near[stage].sends, (one.into for one in receives), strict=True))
            self._returned.append((stage, legs, under_way))
        self._relay()
        if stage in route.far_stages:
            sends, receives = self._back(route.on[stage], self._given)
            (under_way,) = self._exchange.start([Stage(sends, receives)])
            self._members = stage, receives, under_way, self._own_share(stage)

    def sums(self) -> tuple[Tensor, Tensor]:
        """dk and dv of the rank's own rows."""
        self._relay()
        route = self._route
        total = self._own
        assert total is not None
        for _, legs, under_way in sorted(self._returned, key=lambda one: one[0]):
            under_way.wait()
            for leg, tokens in legs:
                route.own.put(total, leg.units, tokens, add=True)
        dk, dv = unpack(total.to(self._like.dtype))
        return dk.contiguous(), dv.contiguous()

    def _relay(self) -> None:
        """What the node returned of the last far stage, added up and on its way over the network."""
        if self._members is None:
            return
        (stage, receives, under_way, total), self._members = self._members, None
        route, slots = self._route, self._route.inbox[stage]
        under_way.wait()
        for leg, one in zip(route.on[stage].sends, receives, strict=True):
            slots.put(total, leg.units, one.into, add=True)
        done = total.to(self._like.dtype)
        sends, back = self._back(route.network[stage], lambda leg: slots.take(done, leg.units))
        (under_way,) = self._exchange.start([Stage(sends, back)])
        legs = list(zip(route.network[stage].sends, (one.into for one in back), strict=True))
        self._returned.append((stage, legs, under_way))

    def _own_share(self, stage: int) -> Tensor:
        """Where a gateway adds up the gradients of its inbox, with its own share in it."""
        route, slots = self._route, self._route.inbox[stage]
        total = self._like.new_zeros(slots.shape(self._like), dtype=self._dtype)
        mine = route.attended[stage]
        if mine:
            assert self._found is not None
            slots.put(total, mine, self._found[0].take(self._found[1], mine))
        return total

    def _back(self, legs: Legs, given: Any) -> tuple[list[Send], list[Receive]]:
        """The messages of a stage the other way round; ``given`` makes the gradient of one that was received."""
        sends = [Send(leg.peer, lambda leg=leg: given(leg), leg.back_at) for leg in legs.receives]  # type: ignore[misc]
        receives = []
        for leg in legs.sends:
            shape = (self._route.own.tokens(leg.units), *self._route.own.shape(self._like)[1:])
            receives.append(Receive(leg.peer, self._exchange.empty(self._like, shape), leg.back_at))
        return sends, receives

    def _given(self, leg: Leg) -> Tensor:
        assert self._found is not None
        return self._found[0].take(self._found[1], leg.units)
