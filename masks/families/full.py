"""Family 1, full: every query sees every key."""

from __future__ import annotations

from masks.column_mask import ColumnMask
from masks.families.family import Family


def full(seqlen: int) -> ColumnMask:
    """No vectors, nothing hidden."""
    return ColumnMask(causal=False, seqlen_q=seqlen, seqlen_k=seqlen)


FAMILY = Family("full", "Full", full)
