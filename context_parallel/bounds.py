"""What no placement can beat: printed beside what was found, so that a reader sees how much is left."""

from __future__ import annotations

import numpy as np

from context_parallel.placements import shares
from context_parallel.work import Work


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
