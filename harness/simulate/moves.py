"""Messages of a plan as transfers: by which lane, after which latency, who waits for what.

A grouped exchange by NCCL begins on two ranks when both have come to it, and is over on a rank when all that it sends and
receives is. Copies within a node go one by one, and a flag tells of a stage that is there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.simulate.cluster import SM
from harness.simulate.loads import Loads
from harness.simulate.steps import EXCHANGE, Lane, Steps

Message = tuple[int, int, int]
"""Source, target, tokens."""

Numbers = list[list[int]]
"""For every rank, the steps that it waits for."""


@dataclass(frozen=True)
class Batch:
    """Messages that travel alike. network: between nodes."""

    messages: tuple[Message, ...] = ()
    network: bool = False

    def turned(self) -> Batch:
        """The same the other way: gradients on their way back."""
        return Batch(tuple((target, source, tokens) for source, target, tokens in self.messages), self.network)

    def tokens_to(self, rank: int) -> int:
        """What comes to a rank."""
        return sum(tokens for _, target, tokens in self.messages if target == rank)


@dataclass(frozen=True)
class Route:
    """The messages of a plan, one batch a stage, from stage 1.

    near: from owners within the node. far: from owners of other nodes to the gateway. on: from the gateway to its node.
    """

    near: tuple[Batch, ...]
    far: tuple[Batch, ...]
    on: tuple[Batch, ...]

    @staticmethod
    def of(loads: Loads) -> Route:
        """Of the plan's own transfers."""
        plan = loads.plan
        kinds: tuple[dict[int, list[Message]], ...] = (defaultdict(list), defaultdict(list), defaultdict(list))
        for one in plan.transfers:
            kind = 1 if one.network else 0 if one.stage <= plan.stages else 2
            kinds[kind][one.stage].append((one.source, one.target, loads.tokens(list(one.units))))
        stages = range(1, plan.last_stage + 1)
        near, far, on = (
            tuple(Batch(tuple(kind[stage]), network) for stage in stages)
            for kind, network in zip(kinds, (False, True, False), strict=True)
        )
        return Route(near, far, on)


class Moves:
    """Adds transfers to steps.

    Args:
        steps: that they are added to.
        loads: for bytes, the cluster and the end of its spreads.
    """

    def __init__(self, steps: Steps, loads: Loads) -> None:
        self.steps, self.loads = steps, loads

    def group(self, batches: Sequence[Batch], ready: Numbers, scale: float = 1.0) -> Numbers:
        """One grouped exchange of all batches. A rank sets up its messages one after another.

        Args:
            batches: messages at once.
            ready: what every rank waits for before it comes to the exchange.
            scale: bytes of a token, in those of its 16-bit keys and values.

        Returns:
            What every rank waits for after it: its own transfers, or ``ready`` where it has none.
        """
        over: Numbers = [[] for _ in ready]
        set_up: dict[int, int] = defaultdict(int)
        for batch in (one for one in batches if one.messages):
            lane, latency, each = self._way(batch.network, SM)
            for source, target, tokens in batch.messages:
                set_up[source] += 1
                set_up[target] += 1
                delay = latency + each * max(set_up[source], set_up[target])
                step = self._send((source, target, tokens), lane, delay, [*ready[source], *ready[target]], scale)
                over[source].append(step)
                over[target].append(step)
        return [mine or [*before] for mine, before in zip(over, ready, strict=True)]

    def copy(self, message: Message, way: str, after: Iterable[int]) -> int:
        """One copy within a node; its latency is paid by a flag."""
        lane, _, each = self._way(False, way)
        return self._send(message, lane, each, after, 1.0)

    def flag(self, rank: int, way: str, after: Iterable[int]) -> int:
        """From the last byte of a stage until the rank sees it."""
        return self.steps.delay(rank, EXCHANGE, "flag", self._way(False, way)[1], after)

    def _send(self, message: Message, lane: Lane, delay: float, after: Iterable[int], scale: float) -> int:
        source, target, tokens = message
        amount = tokens * self.loads.bytes_per_token * scale
        return self.steps.send(source, target, lane, f"from {source}", amount, delay, after)

    def _way(self, network: bool, way: str) -> tuple[Lane, float, float]:
        """Lane, latency and cost of a message, milliseconds."""
        link, end = self.loads.cluster.far if network else self.loads.cluster.near, self.loads.end
        assert link is not None, "a plan of several nodes on a cluster of one"
        return link.lane(way, network, end), link.latency_ms(way, end), link.message_ms(end)


def joined(*sides: Numbers) -> Numbers:
    """What every rank waits for on all sides."""
    return [[step for steps in of_rank for step in steps] for of_rank in zip(*sides, strict=True)]
