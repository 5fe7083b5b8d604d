"""Who sends which units to whom, in which stage, over which wire.

Inside a node the owner sends to every rank that needs the unit. Across nodes a unit enters a node once, however many of its
ranks need it: the owner sends it to the rank of the same slot there, the gateway, which hands it on inside the node and may
not need it itself. Stages are what a rank waits for at a time: first units of its own node, then those from other nodes.

In a ring whole shards are passed on from rank to rank, and a stage is a hop.
"""

from __future__ import annotations

from dataclasses import dataclass

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
        transfers: by stage, network first, then source, then target.
    """

    stage: np.ndarray
    source: np.ndarray
    transfers: tuple[Transfer, ...]


def schedule(missing: np.ndarray, owner: np.ndarray, ranks_per_node: int, stages: int) -> Schedule:
    """The messages that bring every rank what it misses.

    Args:
        missing: bool ``[ranks, units]``, needed and not owned.
        owner: int64 ``[units]``, the rank that owns a unit.
        ranks_per_node: a divisor of the number of ranks.
        stages: stages within a node, and as many again for what comes from other nodes.
    """
    ranks, units = missing.shape
    ids = np.arange(ranks)
    node, nodes = ids // ranks_per_node, ranks // ranks_per_node
    local = node[:, None] == node[owner][None, :]
    stage = np.full((ranks, units), -1, dtype=np.int64)
    source = np.full((ranks, units), -1, dtype=np.int64)
    stage[owner, np.arange(units)], source[owner, np.arange(units)] = 0, owner
    rows: list[np.ndarray] = []

    for rank in range(ranks):
        near = np.flatnonzero(missing[rank] & local[rank])
        # Each rank begins with its next neighbour, so that not all read from rank 0 first.
        near = near[np.lexsort((near, (owner[near] - rank) % ranks))]
        stage[rank, near], source[rank, near] = _pieces(len(near), stages, 1), owner[near]
        rows.append(_rows(stage[rank, near], False, owner[near], rank, near))
    for place in range(nodes):
        members = ids[node == place]
        entering = missing[members].any(0) & (node[owner] != place)
        for slot, gateway in enumerate(members.tolist()):
            far = np.flatnonzero(entering & (owner % ranks_per_node == slot))
            far = far[np.lexsort((far, (node[owner[far]] - place) % nodes))]
            when = _pieces(len(far), stages, stages + 1)
            rows.append(_rows(when, True, owner[far], gateway, far))
            for rank in members.tolist():
                wanted = missing[rank, far]
                stage[rank, far[wanted]], source[rank, far[wanted]] = when[wanted], gateway
                if rank != gateway:
                    rows.append(_rows(when[wanted], False, gateway, rank, far[wanted]))
    return Schedule(stage, source, _messages(np.concatenate(rows, axis=1)))


def ring_schedule(missing: np.ndarray, owner: np.ndarray) -> Schedule:
    """Shards, all units of an owner, handed from each rank to the next, no further than to the last one that misses some.

    A rank that misses one unit of a shard attends to all of it. One that misses none may still hand it on.

    Args:
        missing: bool ``[ranks, units]``, needed and not owned.
        owner: int64 ``[units]``, the rank that owns a unit.
    """
    ranks, units = missing.shape
    ids = np.arange(ranks)
    stage = np.full((ranks, units), -1, dtype=np.int64)
    source = np.full((ranks, units), -1, dtype=np.int64)
    stage[owner, np.arange(units)], source[owner, np.arange(units)] = 0, owner
    rows = [_rows(np.zeros(0, dtype=np.int64), False, 0, 0, 0)]
    for first in ids.tolist():
        shard = np.flatnonzero(owner == first)
        hops = (np.flatnonzero(missing[:, shard].any(1)) - first) % ranks
        for hop in range(1, int(hops.max(initial=0)) + 1):
            rank = (first + hop) % ranks
            if hop in hops:
                stage[rank, shard], source[rank, shard] = hop, (rank - 1) % ranks
            rows.append(_rows(np.full(len(shard), hop), False, (rank - 1) % ranks, rank, shard))
    return Schedule(stage, source, _messages(np.concatenate(rows, axis=1)))


def _pieces(count: int, pieces: int, first: int) -> np.ndarray:
    """``count`` units in order cut into even pieces: the number of each one's piece, from ``first``."""
    return first + np.arange(count, dtype=np.int64) * pieces // max(1, count)


def _rows(*columns: np.ndarray | int) -> np.ndarray:
    """int64 ``[5, messages]``: stage, network, source, target, unit."""
    return np.stack([np.broadcast_to(column, np.shape(columns[0])) for column in columns]).astype(np.int64)


def _messages(rows: np.ndarray) -> tuple[Transfer, ...]:
    stage, network, source, target, unit = rows
    rows = rows[:, np.lexsort((unit, target, source, 1 - network, stage))]
    cuts = np.flatnonzero((rows[:4, 1:] != rows[:4, :-1]).any(0)) + 1
    groups = np.split(rows, cuts, axis=1) if rows.shape[1] else []
    return tuple(Transfer(int(g[0, 0]), bool(g[1, 0]), int(g[2, 0]), int(g[3, 0]), tuple(g[4].tolist())) for g in groups)
