"""Family 6, share question: one question and several answers a document; answers see the question and themselves.

As in preference training and reward models, where candidate answers share their prompt.
"""

from __future__ import annotations

import torch

from masks.column_mask import ColumnMask
from masks.documents import Documents
from masks.families.family import Family, lengths_of, spread, vector

FEWEST_ANSWERS, MOST_ANSWERS = 2, 6


def share_question(seqlen: int, documents: Documents, *, seed: int) -> ColumnMask:
    """Causal; ``LTS`` = end of the document for question columns, end of the answer for answer columns.

    A document of ``L`` tokens is cut into a question and ``k`` answers, ``k`` uniform in 2..6 but at most ``L - 1``.
    Every part gets one token and the others are thrown into the parts one by one, uniformly, so parts are of similar
    size (the way of the public benchmark). A document of one token is all question.
    """
    generator = torch.Generator().manual_seed(seed)
    lengths = lengths_of(documents)
    answers = torch.randint(FEWEST_ANSWERS, MOST_ANSWERS + 1, lengths.shape, generator=generator)
    parts = 1 + torch.minimum(answers, lengths - 1)
    first_part = parts.cumsum(0) - parts

    spare = lengths - parts
    thrown = torch.rand(int(spare.sum()), generator=generator, dtype=torch.float64)
    part = torch.repeat_interleave(first_part, spare) + (thrown * torch.repeat_interleave(parts, spare)).long()
    sizes = 1 + torch.bincount(part, minlength=int(parts.sum()))

    ends = sizes.cumsum(0)
    ends[first_part] = lengths.cumsum(0)  # the question stays visible to the end of its document
    return ColumnMask(lts=vector(spread(ends, sizes)), causal=True, seqlen_q=seqlen, seqlen_k=seqlen)


FAMILY = Family("share_question", "Share question", share_question, needs_documents=True, seeded=True)
