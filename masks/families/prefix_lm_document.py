"""Family 9, prefix LM document: packed documents, each with a prefix that sees itself in both directions."""

from __future__ import annotations

import torch

from masks.column_mask import ColumnMask
from masks.documents import Documents
from masks.families.family import Family, bounds_of, lengths_of, positions, spread, vector


def prefix_lm_document(seqlen: int, documents: Documents) -> ColumnMask:
    """``LTS`` = end of the document; ``UTE`` = start of the document for prefix columns, else the diagonal."""
    starts, ends = bounds_of(documents)
    prefixes = spread(torch.tensor([document.prefix for document in documents]), lengths_of(documents))
    column = positions(seqlen)
    ute = torch.where(column < starts + prefixes, starts, column)
    return ColumnMask(lts=vector(ends), ute=vector(ute), seqlen_q=seqlen, seqlen_k=seqlen)


FAMILY = Family("prefix_lm_document", "Prefix LM document", prefix_lm_document, needs_documents=True)
