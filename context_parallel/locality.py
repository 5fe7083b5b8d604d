"""Exchanges of chunks that look at traffic: to balance without scattering, and to gather what is balanced already.

Every exchange is the best of all pairs of slots, ties go to the lowest index. Numbers are integers but for one quotient of
two of them, which every machine rounds alike.
"""

from __future__ import annotations

import numpy as np

from context_parallel.exchange import Slots, balanced
from context_parallel.grid import check_ranks
from context_parallel.traffic import Traffic
from context_parallel.work import Work


class _State:
    """A placement under exchanges, with the loads and the traffic that belong to it."""

    def __init__(self, work: Work, placement: np.ndarray, ranks: int, ranks_per_node: int | None) -> None:
        nodes = check_ranks(ranks, ranks_per_node)
        self.slots, self.ranks, self.costs = Slots(work.weights, placement, ranks), ranks, work.costs
        self.all = np.arange(len(self.slots.rank))
        needs, owns = np.zeros((2, len(self.all), work.grid.units), dtype=np.float32)
        needs[: self.slots.chunks] = work.needs
        owns[work.grid.chunk_of_unit(), np.arange(work.grid.units)] = 1
        self.near = Traffic(needs, owns, self.slots.rank, ranks)
        self.far = Traffic(needs, owns, self.slots.rank // (ranks // nodes), nodes) if nodes > 1 else None

    def loads_after(self, loads: np.ndarray) -> np.ndarray:
        """int64 ``[slots, slots]``: load of the rank of slot x once slot y has taken its place."""
        weights = self.slots.weights
        return loads[self.slots.rank][:, None] - weights[:, None] + weights[None, :]

    def change(self) -> np.ndarray:
        """int64 ``[slots, slots]``: change of the cost of traffic by every exchange.

        The cost is the sum over the ranks plus half the number of ranks times the busiest rank, so that a rank that receives
        much counts for more than its share, and what enters nodes at its own price.
        """
        change = 2 * self.near.change() + self.ranks * (_busiest_after(self.near) - self.near.received.max())
        if self.far is None:
            return change
        return self.costs.near * change + 2 * self.costs.far * self.far.change()

    def exchange(self, best: int) -> None:
        """Makes the exchange of that flat index."""
        x, y = divmod(best, len(self.all))
        rank = self.slots.rank
        rank[x], rank[y] = rank[y], rank[x]
        for traffic in (self.near, self.far):
            if traffic is not None:
                traffic.exchange(x, y)


def balanced_nearby(work: Work, placement: np.ndarray, ranks: int, ranks_per_node: int | None, limit: int) -> np.ndarray:
    """The placement after exchanges that bring every rank to ``limit``, those first that do most for their traffic.

    Args:
        work: of the mask.
        placement: int64 ``[chunks]``, equal shares.
        ranks, ranks_per_node: the group.
        limit: load to reach; where these exchanges get stuck above it, those of :func:`balanced` go on.
    """
    state = _State(work, placement, ranks, ranks_per_node)
    for _ in range(2 * len(state.all)):
        loads = state.slots.loads()
        if loads.max() <= limit:
            break
        after = state.loads_after(loads)
        over, here = np.maximum(0, loads - limit)[state.slots.rank], np.maximum(0, after - limit)
        relief = over[:, None] + over[None, :] - here - here.T
        lighter = np.maximum(after, after.T) <= loads.max()
        helps = (relief > 0) & lighter & state.slots.allowed(state.all)
        if not helps.any():
            break
        change = state.change()
        worth = np.where(helps, relief / (change - change.min() + 1), 0)
        state.exchange(int(worth.argmax()))
    return balanced(work.weights, state.slots.placement, ranks, limit)


def lower_traffic(work: Work, placement: np.ndarray, ranks: int, ranks_per_node: int | None, limit: int) -> np.ndarray:
    """The placement after exchanges that lower the cost of traffic while no rank grows heavier than ``limit``.

    Args:
        work, placement, ranks, ranks_per_node: as for :func:`balanced_nearby`.
        limit: load of the heaviest rank, at least that of ``placement``. At most one exchange a slot is made.
    """
    state = _State(work, placement, ranks, ranks_per_node)
    for _ in state.all:
        here = state.loads_after(state.slots.loads())
        change = state.change()
        change[(here > limit) | (limit < here.T) | ~state.slots.allowed(state.all)] = 0
        best = int(change.argmin())
        if change.flat[best] >= 0:
            break
        state.exchange(best)
    return state.slots.placement


def _busiest_after(traffic: Traffic) -> np.ndarray:
    """int64 ``[slots, slots]``: the most units that any group receives once two slots have changed places."""
    received, groups = traffic.received, np.arange(len(traffic.received))
    # The most among the groups that an exchange does not touch is one of the three largest.
    others = np.zeros((len(groups), len(groups)), dtype=np.int64)
    for group in np.argsort(received, kind="stable")[-3:].tolist():
        untouched = (groups[:, None] != group) & (groups[None, :] != group)
        others = np.where(untouched, np.maximum(others, received[group]), others)
    pairs = others[traffic.group[:, None], traffic.group[None, :]]
    after = traffic.after()
    return np.maximum(pairs, np.maximum(after, after.T))
