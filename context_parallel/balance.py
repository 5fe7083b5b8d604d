"""Which rank computes which chunks: balanced first, then with as little traffic as that allows.

From several starting placements chunks are exchanged until the ranks are balanced (``exchange``). A start that needs few
exchanges keeps its locality, so each is balanced no further than the limit: a slack above the best maximum found, and never
above the contiguous and the dual-chunk placement. Then exchanges that keep the limit and lower what is received are made.
The candidates, with slack and without, are compared by predicted time, because lower traffic is worth nothing where it was
hidden anyway.

Source: FlashMask V3 (HCC-IPO); the traffic-aware exchanges and the choice by time are this project's own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from context_parallel.exchange import Slots, balanced, loads_of
from context_parallel.grid import PlanError, require
from context_parallel.placements import contiguous, dual_chunk, heaviest_first, shares
from context_parallel.traffic import Traffic
from context_parallel.work import Work

SLACK = 50
"""The heaviest rank may be 1/50 above the best found when that saves traffic."""


@dataclass(frozen=True)
class Balance:
    """A placement and what it costs.

    Args:
        placement: int64 ``[chunks]``, the rank of every chunk.
        loads: int64 ``[ranks]``, predicted compute time.
        received: int64 ``[ranks]``, units that the rank needs and does not own.
        entering: int64 ``[nodes]``, units that ranks of the node need and none of them owns.
        time: predicted time of the slowest rank.
        least_load: no placement with these shares has a lighter heaviest rank.
        least_received: no placement with these shares receives fewer units in all.
    """

    placement: np.ndarray
    loads: np.ndarray
    received: np.ndarray
    entering: np.ndarray
    time: int
    least_load: int
    least_received: int


def balance(work: Work, ranks: int, ranks_per_node: int | None = None, slack: int = SLACK) -> Balance:
    """A placement of the chunks on the ranks: the same on every rank that asks with the same arguments.

    Args:
        work: of the mask.
        ranks: of the group, at least 1; more ranks than chunks leave some without rows.
        ranks_per_node: a divisor of ``ranks``; None: one node.
        slack: the heaviest rank may be ``1 / slack`` above the best maximum found.

    Raises:
        PlanError: a number that is not an integer or not in its range.
    """
    check_ranks(ranks, ranks_per_node)
    require("slack", slack, 1)
    chunks, weights = work.grid.chunks, work.weights
    fixed = [contiguous(chunks, ranks), dual_chunk(chunks, ranks)]
    starts = [*fixed, heaviest_first(weights, ranks)]
    finished = [balanced(weights, start, ranks, least_load(weights, ranks)) for start in starts]
    heaviest = [int(loads_of(weights, placement, ranks).max()) for placement in finished]
    best = min(heaviest)
    limit = min(best + best // slack, *(int(loads_of(weights, start, ranks).max()) for start in fixed))
    tight = finished[heaviest.index(best)]
    candidates = [tight, lower_traffic(work, tight, ranks, ranks_per_node, best)]
    for start in starts:
        near = balanced(weights, start, ranks, limit)
        if loads_of(weights, near, ranks).max() <= limit:
            candidates += [near, lower_traffic(work, near, ranks, ranks_per_node, limit)]
    judged = [judge(work, placement, ranks, ranks_per_node) for placement in candidates]
    return min(judged, key=lambda one: (one.time, int(one.received.sum()), int(one.loads.max())))


def judge(work: Work, placement: np.ndarray, ranks: int, ranks_per_node: int | None = None) -> Balance:
    """What a placement costs.

    Args:
        placement: int64 ``[chunks]``, ranks in ``[0, ranks)``.
        work, ranks, ranks_per_node: as for :func:`balance`.

    Raises:
        PlanError: a placement of another length, or with a rank outside the group.
    """
    nodes = check_ranks(ranks, ranks_per_node)
    placement = np.asarray(placement, dtype=np.int64)
    if placement.shape != (work.grid.chunks,):
        raise PlanError(f"the placement has shape {placement.shape}; the grid has {work.grid.chunks} chunks, one rank for each")
    if placement.size and not 0 <= placement.min() <= placement.max() < ranks:
        raise PlanError(f"the placement names ranks {placement.min()} to {placement.max()}; allowed: 0 to {ranks - 1}")
    received = missing_units(work, placement, ranks).sum(1)
    entering = missing_units(work, placement // (ranks // nodes), nodes).sum(1)
    loads = loads_of(work.weights, placement, ranks)
    unit, costs = work.grid.unit, work.costs
    # Units that enter a node arrive at its ranks in equal parts, each once over the network.
    transfer = costs.near * unit * received + costs.far * unit * np.repeat(entering, ranks // nodes) // (ranks // nodes)
    shorter, longer = np.minimum(loads, transfer), np.maximum(loads, transfer)
    time = int((longer + shorter - shorter * costs.hidden_eighths // 8).max())
    bounds = least_load(work.weights, ranks), least_received(work, ranks)
    return Balance(placement, loads, received, entering, time, *bounds)


def check_ranks(ranks: int, ranks_per_node: int | None) -> int:
    """Number of nodes.

    Raises:
        PlanError: fewer than one rank, or nodes that do not come out even.
    """
    require("ranks", ranks, 1)
    if ranks_per_node is None:
        return 1
    require("ranks_per_node", ranks_per_node, 1)
    if ranks % ranks_per_node:
        raise PlanError(f"ranks_per_node is {ranks_per_node}; it must divide the number of ranks, {ranks}")
    return ranks // ranks_per_node


def missing_units(work: Work, group_of_chunk: np.ndarray, groups: int) -> np.ndarray:
    """bool ``[groups, units]``: a chunk of the group needs the unit and none of its chunks owns it."""
    needs = np.zeros((groups, work.grid.units), dtype=bool)
    np.logical_or.at(needs, group_of_chunk, work.needs)
    needs[group_of_chunk[work.grid.chunk_of_unit()], np.arange(work.grid.units)] = False
    return needs


def least_load(weights: np.ndarray, ranks: int) -> int:
    """No placement with equal shares has a heaviest rank below this; int64 ``weights`` ``[chunks]``, >= 0.

    The largest of: the mean; what the ranks of the k heaviest chunks hold on average when the rest of their shares is the
    lightest chunks there are; the lightest share without the ``ranks - 1`` lightest chunks, as some rank has none of them.
    """
    share, rising = len(weights) // ranks, np.sort(weights)
    lightest = np.concatenate([[0], rising.cumsum()])
    bound = -(-int(lightest[-1]) // ranks)
    bound = max(bound, int(rising[ranks - 1 : ranks - 1 + share].sum()))
    for heavy in range(1, min(ranks, len(weights)) + 1):
        # They lie on one to ``heavy`` ranks; the fewest with room for them and the most bound the average from below.
        on = np.arange(max(1, -(-heavy // (share + 1))), heavy + 1)
        besides = lightest[np.maximum(0, on * share - heavy)]
        bound = max(bound, int((-(-(lightest[-1] - lightest[-1 - heavy] + besides) // on)).min()))
    return bound


def least_received(work: Work, ranks: int) -> int:
    """A unit that n chunks need is needed by n / (chunks a rank) ranks at least, and one of them may own it."""
    most = int(shares(work.grid.chunks, ranks)[0])
    return int(np.maximum(0, -(-work.needs.sum(0) // most) - 1).sum())


def lower_traffic(work: Work, placement: np.ndarray, ranks: int, ranks_per_node: int | None, limit: int) -> np.ndarray:
    """The placement after exchanges that lower the cost of what is received while no rank grows heavier than ``limit``.

    The cost is the sum over the ranks plus half the number of ranks times the busiest rank, so that a rank that receives
    much counts for more than its share. Each exchange is the best one there is; at most one a slot is made.
    """
    nodes = check_ranks(ranks, ranks_per_node)
    slots = Slots(work.weights, placement, ranks)
    needs, owns = np.zeros((2, len(slots.rank), work.grid.units), dtype=np.float32)
    needs[: slots.chunks] = work.needs
    owns[work.grid.chunk_of_unit(), np.arange(work.grid.units)] = 1
    near = Traffic(needs, owns, slots.rank, ranks)
    far = Traffic(needs, owns, slots.rank // (ranks // nodes), nodes) if nodes > 1 else None
    everyone = np.arange(len(slots.rank))
    for _ in everyone:
        loads = slots.loads()
        here = loads[slots.rank][:, None] - slots.weights[:, None] + slots.weights[None, :]
        fits = (here <= limit) & (limit >= here.T) & slots.allowed(everyone)
        change = 2 * near.change() + ranks * (_busiest_after(near) - near.received.max())
        if far is not None:
            change = work.costs.near * change + 2 * work.costs.far * far.change()
        change[~fits] = 0
        best = int(change.argmin())
        if change.flat[best] >= 0:
            break
        x, y = divmod(best, len(everyone))
        slots.rank[x], slots.rank[y] = slots.rank[y], slots.rank[x]
        for traffic in (near, far):
            if traffic is not None:
                traffic.exchange(x, y)
    return slots.placement


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
