"""Family 3, sliding window: causal, and only the last ``window`` keys, the query's own included."""

from __future__ import annotations

from masks.column_mask import ColumnMask
from masks.families.family import Family, at_least, positions, vector


def sliding_window(seqlen: int, *, window: int | None = None) -> ColumnMask:
    """``LTS_j = min(j + window, S)``, causal.

    Args:
        window: keys that a query sees at most, itself included; None: ``max(1, S // 16)``. Wider than ``S`` is causal.

    Raises:
        MaskError: a window below 1, with which no query would see anything.
    """
    if window is None:
        window = max(1, seqlen // 16)
    at_least("window", window, 1, "the keys a query sees, its own position included")
    lts = (positions(seqlen) + min(window, seqlen)).clamp_(max=seqlen)
    return ColumnMask(lts=vector(lts), causal=True, seqlen_q=seqlen, seqlen_k=seqlen)


FAMILY = Family("sliding_window", "Sliding window", sliding_window, params={"window": None})
