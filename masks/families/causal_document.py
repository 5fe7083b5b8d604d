"""Family 4, causal document: packed documents, causal inside each, nothing across."""

from __future__ import annotations

from masks.column_mask import ColumnMask
from masks.documents import Documents
from masks.families.family import Family, bounds_of, vector


def causal_document(seqlen: int, documents: Documents) -> ColumnMask:
    """``LTS_j`` = end of the column's document, causal."""
    _, ends = bounds_of(documents)
    return ColumnMask(lts=vector(ends), causal=True, seqlen_q=seqlen, seqlen_k=seqlen)


FAMILY = Family("causal_document", "Causal document", causal_document, needs_documents=True)
