"""What is moved when, where units are gathered: keys and values to the rank that needs them, their gradients back.

:class:`Incoming` has all messages of a forward pass under way from its first moment on and is asked for stages in order;
:class:`Outgoing` is given the gradients of parts and returns them stage by stage. Between nodes each is one step ahead: what
came over the network is handed on, and what a node returns is added up, while another part is computed. All ranks ask for the
same stages in the same order, so none waits for one that waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from context_parallel.exchanges import Exchange, Pending, Receive, Send, Stage
from context_parallel.route import Leg, Legs, Part, Route
from context_parallel.shards import Slots, pack, token_bytes
from fm3_kernel.parts import sum_dtype

Found = tuple[Slots, Tensor, Tensor]
"""Where the units of a part lie, and its dk and dv."""


class Incoming:
    """What a rank receives, from the start of all messages on; ``buffer`` is where.

    Args:
        route: the rank's messages. exchange: what carries them.
        k, v: of the rank's own rows, ``[B, local rows, Hkv, D]``.
    """

    def __init__(self, route: Route, exchange: Exchange, k: Tensor, v: Tensor) -> None:
        self._route, self._exchange = route, exchange
        self.buffer = route.buffer.clear_padding(exchange.empty(k, route.buffer.shape(k)))
        self._inbox = {stage: exchange.empty(k, slots.shape(k)) for stage, slots in route.inbox.items()}
        self._on: dict[int, Pending] = {}

        packed: dict[tuple[int, ...], Tensor] = {}  # many peers often need the same units

        def tokens(units: tuple[int, ...]) -> Tensor:
            if units not in packed:
                packed[units] = pack(k, v, route.own.spans(units))
            return packed[units]

        def own(leg: Leg) -> Send:
            return Send(leg.peer, lambda: tokens(leg.units), leg.at)

        near = [self._stage(route.near[s], own, route.buffer, self.buffer) for s in route.near_stages]
        network = [self._stage(route.network[s], own, route.inbox[s], self._inbox[s]) for s in route.far_stages]
        self._near = dict(zip(route.near_stages, exchange.start(near, route.room * token_bytes(k)), strict=True))
        self._network = dict(zip(route.far_stages, exchange.start(network) if network else [], strict=True))
        if not route.overlapped:
            # The rank's own units are the first of the buffer.
            self.buffer[: k.shape[1], 0], self.buffer[: k.shape[1], 1] = k.transpose(0, 1), v.transpose(0, 1)

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

    def _stage(self, legs: Legs, send: Callable[[Leg], Send], slots: Slots, buffer: Tensor) -> Stage:
        receives = [Receive(leg.peer, slots.place(buffer, leg.units), leg.at) for leg in legs.receives]
        return Stage([send(leg) for leg in legs.sends], receives)


class Outgoing:
    """The gradients that a rank returns, and those that are returned to it.

    Args:
        route: the rank's messages. exchange: what carries them, the other way round.
        k: of the rank's own rows, for shape and dtype.
    """

    def __init__(self, route: Route, exchange: Exchange, k: Tensor) -> None:
        self._route, self._exchange = route, exchange
        self._like, self._dtype = k, sum_dtype(k.dtype)
        self._found: Found | None = None
        self._own: tuple[Tensor, Tensor] | None = None
        #: Of the last far stage: itself, what members return, the sum so far.
        self._members: tuple[int, list[Receive], Pending, Tensor] | None = None
        #: Stage, what came back, until when; and what went out meanwhile, which must live as long.
        self._returned: list[tuple[int, list[tuple[Leg, Tensor]], Pending, Found | None]] = []

    def take(self, part: Part, dk: Tensor, dv: Tensor) -> None:
        """The gradients of a part, before the stages that it was made of are sent. They become this object's own."""
        self._found = part.slots, dk, dv
        if part.key in (0, None):
            rows = self._like.shape[1]  # the rank's own units are the first of the part
            self._own = dk[:, :rows], dv[:, :rows]

    def send(self, stage: int) -> None:
        """Starts the return of a stage: to its owners, or to the gateways of the node that have brought it."""
        route = self._route
        if stage in route.near_stages:
            sends, receives = self._back(route.near[stage], self._given)
            (under_way,) = self._exchange.start([Stage(sends, receives)], route.back_room[stage] * token_bytes(self._like))
            legs = list(zip(route.near[stage].sends, (one.into for one in receives), strict=True))
            self._returned.append((stage, legs, under_way, self._found))
        self._relay()
        if stage in route.far_stages:
            sends, receives = self._back(route.on[stage], self._given)
            (under_way,) = self._exchange.start([Stage(sends, receives)])
            self._members = stage, receives, under_way, self._own_share(stage)

    def sums(self) -> tuple[Tensor, Tensor]:
        """dk and dv of the rank's own rows. Units that nobody else has attended to stay as they are."""
        self._relay()
        assert self._own is not None
        (dk, dv), shared = self._own, self._route.shared
        spans = self._route.own.spans(shared.units)
        total = pack(dk, dv, spans).to(self._dtype)
        for _, legs, under_way, _ in sorted(self._returned, key=lambda one: one[0]):
            under_way.wait()
            for leg, tokens in legs:
                shared.put(total, leg.units, tokens, add=True)
        at = 0
        for start, end in spans:
            for i, own in enumerate((dk, dv)):
                own[:, start:end] = total[at : at + end - start, i].transpose(0, 1)
            at += end - start
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
        self._returned.append((stage, legs, under_way, None))

    def _own_share(self, stage: int) -> Tensor:
        """Where a gateway adds up the gradients of its inbox, with its own share in it."""
        route, slots = self._route, self._route.inbox[stage]
        total = self._like.new_zeros(slots.shape(self._like), dtype=self._dtype)
        mine = route.attended[stage]
        if mine:
            slots.put(total, mine, self._packed(mine))
        return total

    def _back(self, legs: Legs, given: Callable[[Leg], Tensor]) -> tuple[list[Send], list[Receive]]:
        """The messages of a stage the other way round; ``given`` makes the gradient of one that was received."""
        sends = [Send(leg.peer, lambda leg=leg: given(leg), leg.back_at) for leg in legs.receives]  # type: ignore[misc]
        receives = []
        for leg in legs.sends:
            shape = (self._route.own.tokens(leg.units), *self._route.own.shape(self._like)[1:])
            receives.append(Receive(leg.peer, self._exchange.empty(self._like, shape), leg.back_at))
        return sends, receives

    def _given(self, leg: Leg) -> Tensor:
        return self._packed(leg.units)

    def _packed(self, units: Sequence[int]) -> Tensor:
        """The gradients of some units of the part that was taken last."""
        assert self._found is not None
        slots, dk, dv = self._found
        return pack(dk, dv, slots.spans(units))
