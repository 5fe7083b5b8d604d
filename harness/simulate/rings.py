"""Shards that go around, forward and backward, step by step as in ``context_parallel.ring``.

A hop's exchange is issued before its attention and after all that came before, so both go side by side; the next hop waits for
both. Exchanges of a rank are one after another, also those of keys and of gradients. Backward the gradient of a shard follows
one hop behind it, in 32 bit, and comes home from the last rank.
"""

from __future__ import annotations

from context_parallel.ring import Hops
from harness.simulate.gathered import packed
from harness.simulate.loads import HALF, SINGLE, Loads
from harness.simulate.moves import Batch, Message, Moves, Numbers, joined
from harness.simulate.steps import COMPUTE, EXCHANGE, Steps


class _Ring:
    """Where every rank is: ``behind`` on its processors, ``wire`` with its exchanges."""

    def __init__(self, loads: Loads) -> None:
        self.loads = loads
        self.ranks = range(loads.plan.ranks)
        self.per_node = loads.cluster.ranks_per_node(loads.plan.ranks)
        self.hops = [Hops(loads.plan, rank) for rank in self.ranks]
        self.steps = Steps(loads.plan.ranks)
        self.moves = Moves(self.steps, loads)
        self.behind: Numbers = packed(self.steps, loads)
        self.wire: Numbers = [[] for _ in self.ranks]
        self.units = [loads.plan.units(rank, 0) for rank in self.ranks]

    def pass_on(self, hop: int) -> Numbers:
        """Keys of this hop to the next rank."""
        messages = [
            (rank, one.next, self.loads.own_tokens(one.owner(hop)))
            for rank, one in enumerate(self.hops)
            if one.has(hop) and one.hands_on(hop)
        ]
        return self.exchange(messages, 1.0)

    def exchange(self, messages: list[Message], scale: float) -> Numbers:
        """One grouped exchange; what every rank waits for when it waits for it."""
        near: list[Message] = []
        far: list[Message] = []
        for message in messages:
            apart = message[0] // self.per_node != message[1] // self.per_node
            (far if apart else near).append(message)
        ready = joined(self.behind, self.wire)
        self.wire = self.moves.group([Batch(tuple(near)), Batch(tuple(far), network=True)], ready, scale)
        return self.wire

    def attend(self, hop: int) -> None:
        """Attention of every rank to the shard that it has, and its result merged."""
        for rank, one in enumerate(self.hops):
            if not (one.has(hop) and one.attends[hop]):
                continue
            milliseconds = self.loads.attention_ms(rank, self.units[one.owner(hop)])
            attention = self.steps.work(rank, COMPUTE, f"hop {hop}", milliseconds, self.behind[rank])
            self.behind[rank] = [self.steps.work(rank, COMPUTE, "merge", self.loads.merge_ms(rank), [attention])]

    def wait_for(self, over: Numbers) -> None:
        """The processors go on after an exchange."""
        self.behind = joined(self.behind, over)


def forward(loads: Loads) -> Steps:
    """Hop by hop: pass on, attend, wait."""
    ring = _Ring(loads)
    for hop in ring.ranks:
        coming = ring.pass_on(hop)
        ring.attend(hop)
        ring.wait_for(coming)
    return ring.steps


def backward(loads: Loads) -> Steps:
    """Hop by hop: pass keys on, attend, wait for the sum so far, add, pass the sum on, wait for the keys."""
    ring = _Ring(loads)
    under_way: Numbers = [[] for _ in ring.ranks]
    for hop in ring.ranks:
        coming = ring.pass_on(hop)
        ring.attend(hop)
        ring.wait_for(under_way)
        messages: list[Message] = []
        for rank, one in enumerate(ring.hops):
            if not one.has(hop):
                continue
            owner = one.owner(hop)
            tokens = loads.own_tokens(owner)
            if one.attends[hop]:
                _add(ring, rank, loads.add_ms(tokens))
            if hop:
                messages.append((rank, one.next if one.hands_on(hop) else owner, tokens))
        under_way = ring.exchange(messages, SINGLE / HALF)
        ring.wait_for(coming)
    ring.wait_for(under_way)
    if loads.plan.ranks > 1:
        for rank in ring.ranks:
            own = loads.own_tokens(rank)
            _add(ring, rank, loads.add_ms(own, SINGLE) + loads.to_sums_ms(own))
    return ring.steps


def _add(ring: _Ring, rank: int, milliseconds: float) -> None:
    ring.behind[rank] = [ring.steps.work(rank, EXCHANGE, "add", milliseconds, ring.behind[rank])]
