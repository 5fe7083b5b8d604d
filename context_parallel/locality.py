"""Exchanges of chunks that look at traffic: to balance without scattering, and to gather what is balanced already.

Every exchange is the best of one rank with all others, ties go to the lowest index. Numbers are integers but for one
quotient of two of them, which every machine rounds alike.
"""

from __future__ import annotations

import numpy as np

from context_parallel.grid import check_ranks
from context_parallel.pairwise import ROUNDS_A_SLOT, Slots, balanced
from context_parallel.traffic import Traffic
from context_parallel.work import Work


class _State:
    """A placement under exchanges, with the loads and the traffic that belong to it."""

    def __init__(self, work: Work, placement: np.ndarray, ranks: int, ranks_per_node: int | None) -> None:
        nodes = check_ranks(ranks, ranks_per_node)
        self.slots, self.ranks, self.costs = Slots(work.weights, placement, ranks), ranks, work.costs
        needs, owns = np.zeros((2, len(self.slots.rank), work.grid.units), dtype=np.float32)
        needs[: self.slots.chunks] = work.needs
        owns[work.grid.chunk_of_unit(), np.arange(work.grid.units)] = 1
        self.near = Traffic(needs, owns, self.slots.rank, ranks)
        self.far = Traffic(needs, owns, self.slots.rank // (ranks // nodes), nodes) if nodes > 1 else None

    def slots_of(self, rank: int) -> np.ndarray:
        """Slots of a rank, ascending."""
        return np.flatnonzero(self.slots.rank == rank)

    def loads_after(self, mine: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Loads of the two ranks once the slots ``mine`` and any slots y have changed places, int64 ``[len(mine), slots]``."""
        loads, weights = self.slots.loads()[self.slots.rank], self.slots.weights
        gained = weights[None, :] - weights[mine][:, None]
        return loads[mine][:, None] + gained, loads[None, :] - gained

    def change(self, mine: np.ndarray) -> np.ndarray:
        """int64 ``[len(mine), slots]``: change of the cost of traffic by every exchange.

        The cost is the sum over the ranks plus half the number of ranks times the busiest rank, so that a rank that receives
        much counts for more than its share, and what enters nodes at its own price.
        """
        change = 2 * self.near.change(mine) + self.ranks * (_busiest_after(self.near, mine) - self.near.received.max())
        if self.far is None:
            return change
        return self.costs.near * change + 2 * self.costs.far * self.far.change(mine)

    def exchange(self, x: int, y: int) -> None:
        """Two slots change places."""
        rank = self.slots.rank
        rank[x], rank[y] = rank[y], rank[x]
        for traffic in (self.near, self.far):
            if traffic is not None:
                traffic.exchange(x, y)


def balanced_nearby(work: Work, placement: np.ndarray, ranks: int, ranks_per_node: int | None, limit: int) -> np.ndarray:
    """The placement after exchanges of the heaviest rank that bring it to ``limit``, those that do most for their traffic.

    Args:
        work: of the mask.
        placement: int64 ``[chunks]``, equal shares.
        ranks, ranks_per_node: the group.
        limit: load to reach; where these exchanges get stuck above it, those of :func:`balanced` go on.
    """
    state = _State(work, placement, ranks, ranks_per_node)
    for _ in range(ROUNDS_A_SLOT * len(state.slots.rank)):
        loads = state.slots.loads()
        heaviest = int(loads.argmax())
        if loads[heaviest] <= limit:
            break
        mine = state.slots_of(heaviest)
        here, there = state.loads_after(mine)
        over = np.maximum(0, loads - limit)
        relief = over[heaviest] + over[state.slots.rank][None, :] - np.maximum(0, here - limit) - np.maximum(0, there - limit)
        helps = (relief > 0) & (np.maximum(here, there) <= loads[heaviest]) & state.slots.allowed(mine)
        if not helps.any():
            break
        change = state.change(mine)
        worth = np.where(helps, relief / (change - change.min() + 1), 0)
        x, y = divmod(int(worth.argmax()), worth.shape[1])
        state.exchange(int(mine[x]), y)
    return balanced(work.weights, state.slots.placement, ranks, limit)


def lower_traffic(work: Work, placement: np.ndarray, ranks: int, ranks_per_node: int | None, limit: int) -> np.ndarray:
    """The placement after exchanges that lower the cost of traffic while no rank grows heavier than ``limit``.

    Args:
        work, placement, ranks, ranks_per_node: as for :func:`balanced_nearby`.
        limit: load of the heaviest rank, at least that of ``placement``.
    """
    state = _State(work, placement, ranks, ranks_per_node)
    for _ in range(ROUNDS_A_SLOT * len(state.slots.rank)):
        if not _gather_once(state, limit):
            break
    return state.slots.placement


def _gather_once(state: _State, limit: int) -> bool:
    """The best exchange of the rank that receives most, or of the next one if none of its exchanges helps."""
    for rank in np.argsort(-state.near.received, kind="stable").tolist():
        mine = state.slots_of(rank)
        change = state.change(mine)
        here, there = state.loads_after(mine)
        change[(here > limit) | (there > limit) | ~state.slots.allowed(mine)] = 0
        x, y = divmod(int(change.argmin()), change.shape[1])
        if change[x, y] < 0:
            state.exchange(int(mine[x]), y)
            return True
    return False


def _busiest_after(traffic: Traffic, mine: np.ndarray) -> np.ndarray:
    """int64 ``[len(mine), slots]``: the most units that any group receives once these slots have changed places."""
    received, groups = traffic.received, np.arange(len(traffic.received))
    # The most among the groups that an exchange does not touch is one of the three largest.
    others = np.zeros((len(groups), len(groups)), dtype=np.int64)
    for group in np.argsort(received, kind="stable")[-3:].tolist():
        untouched = (groups[:, None] != group) & (groups[None, :] != group)
        others = np.where(untouched, np.maximum(others, received[group]), others)
    return np.maximum(others[traffic.group[mine]][:, traffic.group], np.maximum(*traffic.after(mine)))
