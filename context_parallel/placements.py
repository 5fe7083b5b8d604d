"""Placements to start from: which rank owns which chunk, with the same number of chunks for everyone.

The hard cardinality constraint: a rank owns floor or ceil of chunks / ranks, so that memory and activations are shared
equally whatever the mask. A placement is int64 ``[chunks]``, the rank of every chunk.
"""

from __future__ import annotations

import numpy as np


def shares(chunks: int, ranks: int) -> np.ndarray:
    """Chunks of every rank, int64 ``[ranks]``: the first ``chunks % ranks`` ranks own one more."""
    return np.full(ranks, chunks // ranks, dtype=np.int64) + (np.arange(ranks) < chunks % ranks)


def contiguous(chunks: int, ranks: int) -> np.ndarray:
    """Rank 0 owns the first chunks, rank 1 the next: least traffic for masks that look nearby."""
    return np.repeat(np.arange(ranks, dtype=np.int64), shares(chunks, ranks))


def dual_chunk(chunks: int, ranks: int) -> np.ndarray:
    """Rank r owns run r and run 2 ranks - 1 - r of 2 ranks runs: exact balance of a causal mask (zigzag)."""
    each = shares(chunks, ranks)
    front, ids = (each + 1) // 2, np.arange(ranks, dtype=np.int64)
    return np.concatenate([np.repeat(ids, front), np.repeat(ids[::-1], (each - front)[::-1])])


def heaviest_first(weights: np.ndarray, ranks: int) -> np.ndarray:
    """Longest processing time: chunks by falling weight, each to the lightest rank with room. Ties: the lower index."""
    chunks = len(weights)
    least, longer = divmod(chunks, ranks)
    placement = np.zeros(chunks, dtype=np.int64)
    loads, counts = [0] * ranks, [0] * ranks
    for chunk in np.argsort(-weights, kind="stable").tolist():
        open_ranks = [r for r in range(ranks) if counts[r] < least or (counts[r] == least and longer)]
        rank = min(open_ranks, key=lambda r: (loads[r], r))
        longer -= counts[rank] == least
        placement[chunk] = rank
        loads[rank] += int(weights[chunk])
        counts[rank] += 1
    return placement
