"""Family 8, causal blockwise: documents see only themselves, the last one (the test example) sees all of them.

The mask of in-context learning with demonstrations.
"""

from __future__ import annotations

from masks.column_mask import ColumnMask
from masks.documents import Documents
from masks.families.family import Family, bounds_of, vector


def causal_blockwise(seqlen: int, documents: Documents) -> ColumnMask:
    """Causal; ``LTS`` = end of the column's document, ``LTE`` = start of the last one, whose own columns are empty."""
    last = seqlen - documents[-1].length
    _, lts = bounds_of(documents)
    lte = lts.clamp(min=last)  # the last document: LTS = LTE = S
    lte[:last] = last
    return ColumnMask(lts=vector(lts), lte=vector(lte), causal=True, seqlen_q=seqlen, seqlen_k=seqlen)


FAMILY = Family("causal_blockwise", "Causal blockwise", causal_blockwise, needs_documents=True)
