"""Family 11, QK sparse: causal over the whole pack, but flagged documents are hidden from their own rows."""

from __future__ import annotations

import torch

from masks.column_mask import ColumnMask
from masks.documents import Documents
from masks.families.family import Family, bounds_of, lengths_of, positions, spread, vector


def qk_sparse(seqlen: int, documents: Documents) -> ColumnMask:
    """Causal; columns of flagged documents: ``LTS = j``, ``LTE`` = end of the document; other columns empty."""
    _, ends = bounds_of(documents)
    flagged = spread(torch.tensor([document.flag for document in documents]), lengths_of(documents)).bool()
    lts = torch.where(flagged, positions(seqlen), seqlen)
    lte = torch.where(flagged, ends, seqlen)
    return ColumnMask(lts=vector(lts), lte=vector(lte), causal=True, seqlen_q=seqlen, seqlen_k=seqlen)


FAMILY = Family("qk_sparse", "QK sparse", qk_sparse, needs_documents=True)
