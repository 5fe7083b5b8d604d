"""Who sends which units to whom, in which stage, over which wire.

Inside a node the owner sends to every rank that needs the unit. Across nodes a unit enters a node once, however many of its
ranks need it: the owner sends it to the rank of the same slot there, the gateway, which hands it on inside the node and may
not need it itself. Stages are what a rank waits for at a time: first units of its own node, then those from other nodes.

In a ring whole shards are passed on from rank to rank, and a stage is a hop.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np


@dataclass(frozen=True)
class Transfer:
    """One message.

    Args:
        stage: from 1; its units are attended to in this stage.
        network: between nodes, to the gateway; the hand-over inside the node follows it in the same stage.
        source, target: ranks.
        units: ascending.
    """

    stage: int
    network: bool
    source: int
    target: int
    units: tuple[int, ...]


@dataclass(frozen=True)
class Schedule:
    """All messages of a plan.

    Args:
        stage: int64 ``[ranks, units]``: when the rank attends to the unit; 0 = its own, -1 = never.
        source: int64 ``[ranks, units]``: the rank that hands it over, the rank itself for its own and for what it takes from
            the network as a gateway; -1 where ``stage`` is.
        moves: int64 ``[5, moves]``, one unit each: stage, whether over the network, source, target, unit; in any order.
    """

    stage: np.ndarray
    source: np.ndarray
    moves: np.ndarray

    @cached_property
    def transfers(self) -> tuple[Transfer, ...]:
        """The moves as messages: by stage, network first, then source, then target."""
        stage, network, source, target, unit = self.moves
        moves = self.moves[:, np.lexsort((unit, target, source, 1 - network, stage))]
        cuts = np.flatnonzero((moves[:4, 1:] != moves[:4, :-1]).any(0)) + 1
        groups = np.split(moves, cuts, axis=1) if moves.shape[1] else []
        return tuple(Transfer(int(g[0, 0]), bool(g[1, 0]), int(g[2, 0]), int(g[3, 0]), tuple(g[4].tolist())) for g in groups)


def resting(owner: np.ndarray, ranks: int) -> Schedule:
    """No messages: every rank has its own units and no others. ``owner``: int64 ``[units]``."""
    units = np.arange(len(owner))
    stage = np.full((ranks, len(owner)), -1, dtype=np.int64)
    source = stage.copy()
    stage[owner, units], source[owner, units] = 0, owner
    return Schedule(stage, source, _moves(np.zeros(0, dtype=np.int64), False, 0, 0, 0))


def schedule(missing: np.ndarray, owner: np.ndarray, ranks_per_node: int, stages: int) -> Schedule:
    """The messages that bring every rank what it misses.

    Args:
        missing: bool ``[ranks, units]``, needed and not owned.
        owner: int64 ``[units]``, the rank that owns a unit.
        ranks_per_node: a divisor of the number of ranks.
        stages: stages within a node, and as many again for what comes from other nodes.
    """
    ranks = missing.shape[0]
    nodes, node_of_owner = ranks // ranks_per_node, owner // ranks_per_node
    start = resting(owner, ranks)
    stage, source = start.stage, start.source

    # Within a node. Each rank begins with its next neighbour, so that not all read from rank 0 first.
    rank, unit = np.nonzero(missing & (np.arange(ranks)[:, None] // ranks_per_node == node_of_owner))
    rank, unit, when = _in_pieces(rank, (owner[unit] - rank) % ranks, unit, stages)
    stage[rank, unit], source[rank, unit] = 1 + when, owner[unit]
    near = _moves(1 + when, False, owner[unit], rank, unit)

    # Into a node, each unit once.
    wanted = np.logical_or.reduceat(missing, np.arange(0, ranks, ranks_per_node), axis=0)
    place, unit = np.nonzero(wanted & (node_of_owner != np.arange(nodes)[:, None]))
    gateway = place * ranks_per_node + owner[unit] % ranks_per_node
    gateway, unit, when = _in_pieces(gateway, (node_of_owner[unit] - place) % nodes, unit, stages)
    when += 1 + stages
    far = _moves(when, True, owner[unit], gateway, unit)

    # And on to those of its ranks that need it.
    members = gateway[:, None] // ranks_per_node * ranks_per_node + np.arange(ranks_per_node)
    at, slot = np.nonzero(missing[members, unit[:, None]])
    rank, unit, when, gateway = members[at, slot], unit[at], when[at], gateway[at]
    stage[rank, unit], source[rank, unit] = when, gateway
    on = _moves(when, False, gateway, rank, unit)[:, rank != gateway]
    return Schedule(stage, source, np.concatenate([near, far, on], axis=1))


def ring_schedule(missing: np.ndarray, owner: np.ndarray) -> Schedule:
    """Shards, all units of an owner, handed from each rank to the next, no further than to the last one that misses some.

    A rank that misses one unit of a shard attends to all of it. One that misses none may still hand it on.

    Args:
        missing: bool ``[ranks, units]``, needed and not owned.
        owner: int64 ``[units]``, the rank that owns a unit.
    """
    ranks = missing.shape[0]
    ids = np.arange(ranks)
    start = resting(owner, ranks)
    stage, source, moves = start.stage, start.source, [start.moves]
    for first in ids.tolist():
        shard = np.flatnonzero(owner == first)
        hops = (np.flatnonzero(missing[:, shard].any(1)) - first) % ranks
        for hop in range(1, int(hops.max(initial=0)) + 1):
            rank = (first + hop) % ranks
            if hop in hops:
                stage[rank, shard], source[rank, shard] = hop, (rank - 1) % ranks
            moves.append(_moves(np.full(len(shard), hop), False, (rank - 1) % ranks, rank, shard))
    return Schedule(stage, source, np.concatenate(moves, axis=1))


def _in_pieces(
    group: np.ndarray, distance: np.ndarray, unit: np.ndarray, pieces: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Groups, their units from near to far, and the even piece of its group, from 0, that each of them falls in."""
    order = np.lexsort((unit, distance, group))
    group, unit = group[order], unit[order]
    counts = np.bincount(group)
    place = np.arange(len(group)) - (counts.cumsum() - counts)[group]
    return group, unit, place * pieces // counts[group]


def _moves(*columns: np.ndarray | int) -> np.ndarray:
    """int64 ``[5, moves]`` as in :class:`Schedule`."""
    return np.stack([np.broadcast_to(column, np.shape(columns[0])) for column in columns]).astype(np.int64)
