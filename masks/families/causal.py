"""Family 2, causal: a query sees the keys up to its own position."""

from __future__ import annotations

from masks.column_mask import ColumnMask
from masks.families.family import Family


def causal(seqlen: int) -> ColumnMask:
    """No vectors, the diagonal only."""
    return ColumnMask(causal=True, seqlen_q=seqlen, seqlen_k=seqlen)


FAMILY = Family("causal", "Causal", causal)
