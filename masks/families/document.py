"""Family 5, document: packed documents, both directions inside each, nothing across."""

from __future__ import annotations

from masks.column_mask import ColumnMask
from masks.documents import Documents
from masks.families.family import Family, bounds_of, vector


def document(seqlen: int, documents: Documents) -> ColumnMask:
    """``LTS_j`` = end, ``UTE_j`` = start of the column's document.

    The public benchmark takes the next document's length for ``UTE``, which leaves 10-22% of its rows without a key.
    """
    starts, ends = bounds_of(documents)
    return ColumnMask(lts=vector(ends), ute=vector(starts), seqlen_q=seqlen, seqlen_k=seqlen)


FAMILY = Family("document", "Document", document, needs_documents=True)
