"""Iterative pairwise optimal exchange: chunks change ranks until no pair of ranks can share its chunks better.

The number of chunks of every rank is kept, but for ranks that own one fewer than others: they hold an empty slot, which is
exchanged like a chunk of no weight, and no rank gets two of them. All arithmetic is on integers and ties go to the lowest
index, so that every rank of a group finds the same exchanges.

Source: FlashMask-3, hard-cardinality-constrained iterative pairwise optimisation (HCC-IPO).
"""

from __future__ import annotations

from functools import cache

import numpy as np

SPLIT_EXACTLY = 16
"""Slots of a pair of ranks whose equal splits are all tried: 6,435 at most. Above, single exchanges only."""

ROUNDS_A_SLOT = 16
"""Bound on exchanges; each lowers what it looks at, and one or two a slot are what is seen."""


class Slots:
    """Chunks and empty slots, every rank with the same number.

    Args:
        weights: int64 ``[chunks]``.
        placement: int64 ``[chunks]``, each rank with floor or ceil of chunks / ranks.
        ranks: of the group.
    """

    def __init__(self, weights: np.ndarray, placement: np.ndarray, ranks: int) -> None:
        counts = np.bincount(placement, minlength=ranks)
        empty = np.repeat(np.arange(ranks), counts.max() - counts)
        self.chunks, self.ranks = len(weights), ranks
        self.rank = np.concatenate([placement, empty])
        self.weights = np.concatenate([weights, np.zeros(len(empty), dtype=np.int64)])
        self.empty = np.arange(len(self.rank)) >= self.chunks

    @property
    def placement(self) -> np.ndarray:
        """int64 ``[chunks]``: the rank of every chunk."""
        return self.rank[: self.chunks].copy()

    def loads(self) -> np.ndarray:
        """int64 ``[ranks]``."""
        return loads_of(self.weights, self.rank, self.ranks)

    def allowed(self, mine: np.ndarray) -> np.ndarray:
        """bool ``[len(mine), slots]``: the slots may change places. They have two ranks, and neither gets two empty ones."""
        apart = self.rank[mine][:, None] != self.rank[None, :]
        if not self.empty.any():
            return apart
        has_empty = np.zeros(self.ranks, dtype=bool)
        has_empty[self.rank[self.empty]] = True
        here, there = self.rank[mine], self.rank
        gets, gives = self.empty[None, :] & ~self.empty[mine][:, None], self.empty[mine][:, None] & ~self.empty[None, :]
        bad = (gets & has_empty[here][:, None]) | (gives & has_empty[there][None, :])
        return apart & ~bad


def loads_of(weights: np.ndarray, placement: np.ndarray, ranks: int) -> np.ndarray:
    """Sum of weights of every rank, int64 ``[ranks]`` (``np.bincount`` would add floats)."""
    loads = np.zeros(ranks, dtype=np.int64)
    np.add.at(loads, placement, weights)
    return loads


def balanced(weights: np.ndarray, placement: np.ndarray, ranks: int, enough: int = 0) -> np.ndarray:
    """The placement after exchanges between the heaviest rank and the others.

    Args:
        weights: int64 ``[chunks]``, >= 0.
        placement: int64 ``[chunks]`` to start from, floor or ceil of chunks / ranks each.
        ranks: of the group.
        enough: stop once no rank is heavier.

    Returns:
        int64 ``[chunks]``; its heaviest rank is never heavier than that of ``placement``.
    """
    slots = Slots(weights, placement, ranks)
    for _ in range(ROUNDS_A_SLOT * len(slots.rank)):
        loads = slots.loads()
        heaviest = int(loads.argmax())
        if loads[heaviest] <= enough:
            break
        if not (_best_exchange(slots, loads, heaviest) or _best_split(slots, loads, heaviest)):
            break
    return slots.placement


def _best_exchange(slots: Slots, loads: np.ndarray, heaviest: int) -> bool:
    """Exchanges the two slots that leave the lightest pair of ranks, if lighter than the heaviest rank is now."""
    mine = np.flatnonzero(slots.rank == heaviest)
    moved = slots.weights[mine][:, None] - slots.weights[None, :]
    after = np.maximum(loads[heaviest] - moved, loads[slots.rank][None, :] + moved)
    after[~slots.allowed(mine)] = np.iinfo(np.int64).max
    best = int(after.argmin())
    if after.flat[best] >= loads[heaviest]:
        return False
    x, y = mine[best // after.shape[1]], best % after.shape[1]
    slots.rank[x], slots.rank[y] = slots.rank[y], slots.rank[x]
    return True


def _best_split(slots: Slots, loads: np.ndarray, heaviest: int) -> bool:
    """Splits the slots of the heaviest rank and another anew, the lightest other first, if that helps."""
    for other in np.argsort(loads, kind="stable").tolist():
        pair = np.flatnonzero((slots.rank == heaviest) | (slots.rank == other))
        if other == heaviest or len(pair) > SPLIT_EXACTLY:
            continue
        halves = _halves(len(pair))
        first = halves @ slots.weights[pair]
        after = np.maximum(first, loads[heaviest] + loads[other] - first)
        # Two empty slots go one to each rank.
        empty = slots.empty[pair]
        if empty.sum() == 2:
            after[halves[:, empty].sum(1) != 1] = np.iinfo(np.int64).max
        best = int(after.argmin())
        if after[best] < loads[heaviest]:
            slots.rank[pair] = np.where(halves[best] == 1, heaviest, other)
            return True
    return False


@cache
def _halves(slots: int) -> np.ndarray:
    """Every way to halve the slots, 0/1 int64 ``[ways, slots]``; slot 0 stays in the first half, the rest is its mirror."""
    bits = (np.arange(1, 1 << slots, 2, dtype=np.int64)[:, None] >> np.arange(slots)) & 1
    return bits[bits.sum(1) == slots // 2]
