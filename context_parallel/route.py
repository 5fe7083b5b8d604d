"""One rank's part of a plan's messages: what it sends, receives and hands on in every stage, and where that lies.

Worked out once a plan, from the plan alone; sends nothing. Backward every message goes the other way, as a gradient.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from context_parallel.plan import Plan
from context_parallel.shards import Slots
from context_parallel.transfers import Transfer


@dataclass(frozen=True)
class Leg:
    """One message.

    Args:
        peer: the other rank.
        units: ascending.
        at, back_at: tokens before it in its sender's outbox, on its way and when its gradient goes back.
    """

    peer: int
    units: tuple[int, ...]
    at: int
    back_at: int


@dataclass
class Legs:
    """The rank's messages of one kind and stage, by peer."""

    sends: list[Leg] = field(default_factory=list)
    receives: list[Leg] = field(default_factory=list)


class Part:
    """Keys that are attended to in one call.

    Args:
        key: which local mask of the plan: a stage, or None for all.
        slots: where its units lie.
        first: rows of the buffer before it.
        queries: the rank's rows that attend to it, as local rows; others see none of it.
    """

    def __init__(self, key: int | None, slots: Slots, first: int, queries: slice) -> None:
        self.key, self.slots, self.queries = key, slots, queries
        self.rows = slice(first, first + slots.rows)


class Route:
    """The messages of one rank.

    ``near``, ``network`` and ``on`` are messages by stage: from owners of the node, from owners of other nodes to the gateway,
    and from the gateway to those of its node. ``own`` says where the rank's own units lie in its local rows, ``buffer`` where
    all others do, ``inbox`` what it takes from the network in a stage, and ``attended`` which units of that it attends to
    itself. ``parts`` is what it attends to after which stage.

    Args:
        plan: not of a ring.
        rank: of the group.
        overlapped: a part for each stage; otherwise one for all of them, own units included, after the last.
    """

    def __init__(self, plan: Plan, rank: int, overlapped: bool) -> None:
        self.rank, self.overlapped = rank, overlapped
        self.stages = range(plan.last_stage + 1)
        self.near_stages = range(1, plan.stages + 1)
        self.far_stages = range(plan.stages + 1, plan.last_stage + 1)
        self.own = Slots(plan, plan.units(rank, 0))
        lengths = [end - start for start, end in plan.rows(rank)]
        everywhere = slice(0, sum(lengths))
        mine, all_ = plan.units(rank, 0), plan.units(rank)
        self.buffer = Slots(plan, all_[len(mine) :] if overlapped else all_)
        self.parts = self._parts(plan, lengths) if overlapped else {plan.last_stage: Part(None, self.buffer, 0, everywhere)}
        self.near: dict[int, Legs] = defaultdict(Legs)
        self.network: dict[int, Legs] = defaultdict(Legs)
        self.on: dict[int, Legs] = defaultdict(Legs)
        #: Tokens of the rank that sends most: all near stages together, and one of them backward.
        self.room, self.back_room = self._share_out(plan)
        self.inbox = {
            stage: Slots(plan, [unit for leg in self.network[stage].receives for unit in leg.units])
            for stage in self.far_stages
        }
        returned = {
            unit for legs in (self.near, self.network) for one in legs.values() for leg in one.sends for unit in leg.units
        }
        #: The rank's own units whose gradients come from others too.
        self.shared = Slots(plan, [unit for unit in self.own.units if unit in returned])
        there = set(self.buffer.units)
        self.attended = {stage: [unit for unit in slots.units if unit in there] for stage, slots in self.inbox.items()}

    def _parts(self, plan: Plan, lengths: list[int]) -> dict[int, Part]:
        parts, first = {0: Part(0, self.own, 0, slice(0, sum(lengths)))}, 0
        for stage in self.stages[1:]:
            slots = Slots(plan, plan.units(self.rank, stage))
            start, end = plan.seeing(self.rank, stage)
            if slots.units:
                parts[stage] = Part(stage, slots, first, slice(sum(lengths[:start]), sum(lengths[:end])))
            first += slots.rows
        return parts

    def _share_out(self, plan: Plan) -> tuple[int, dict[int, int]]:
        unit, last = plan.grid.unit, plan.grid.units - 1
        missing = plan.grid.units * unit - plan.grid.seqlen
        sent: dict[int, int] = defaultdict(int)
        returned: dict[tuple[int, int], int] = defaultdict(int)
        for one in plan.transfers:
            near = not one.network and one.stage in self.near_stages
            at, back_at = (sent[one.source], returned[one.stage, one.target]) if near else (0, 0)
            if near:
                tokens = len(one.units) * unit - (missing if one.units[-1] == last else 0)
                sent[one.source] += tokens
                returned[one.stage, one.target] += tokens
            self._note(one, near, at, back_at)
        back = {stage: max((n for (when, _), n in returned.items() if when == stage), default=0) for stage in self.near_stages}
        return max(sent.values(), default=0), back

    def _note(self, one: Transfer, near: bool, at: int, back_at: int) -> None:
        legs = (self.near if near else self.network if one.network else self.on)[one.stage]
        if one.source == self.rank:
            legs.sends.append(Leg(one.target, one.units, at, back_at))
        if one.target == self.rank:
            legs.receives.append(Leg(one.source, one.units, at, back_at))
