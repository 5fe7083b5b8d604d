"""Which rank computes which chunks: balanced first, then with as little traffic as that allows.

From several starting placements chunks are exchanged until the ranks are balanced (``pairwise``); the lightest maximum found
sets the limit, a slack above it and never above the contiguous and the dual-chunk placement. Those starts are then balanced
again, no further than the limit and by exchanges that cost the least traffic, and improved by exchanges that keep the limit
(``locality``). All candidates, with slack and without, are compared by predicted time, because lower traffic is worth nothing
where it was hidden anyway.

Source: FlashMask-3 (HCC-IPO); the traffic-aware exchanges and the choice by time are this project's own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from context_parallel.bounds import least_load, least_received
from context_parallel.grid import PlanError, check_ranks, require
from context_parallel.locality import balanced_nearby, lower_traffic
from context_parallel.pairwise import balanced, loads_of
from context_parallel.placements import contiguous, dual_chunk, heaviest_first
from context_parallel.work import Work

SLACK = 50
"""The heaviest rank may be 1/50 above the best found when that saves traffic; a quarter of that is tried too."""


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
    limits = sorted({limit, min(limit, best + best // (4 * slack))}, reverse=True)
    for near in fixed:
        for most in limits:
            near = balanced_nearby(work, near, ranks, ranks_per_node, most)
            if loads_of(weights, near, ranks).max() <= most:
                candidates += [near, lower_traffic(work, near, ranks, ranks_per_node, most)]
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


def missing_units(work: Work, group_of_chunk: np.ndarray, groups: int) -> np.ndarray:
    """bool ``[groups, units]``: a chunk of the group needs the unit and none of its chunks owns it."""
    needs = np.zeros((groups, work.grid.units), dtype=bool)
    order = np.argsort(group_of_chunk, kind="stable")
    there, starts = np.unique(group_of_chunk[order], return_index=True)
    needs[there] = np.logical_or.reduceat(work.needs[order], starts, axis=0)
    needs[group_of_chunk[work.grid.chunk_of_unit()], np.arange(work.grid.units)] = False
    return needs
