"""Family 10, prefix LM causal: the first half is a prefix that all rows see, the rest is causal."""

from __future__ import annotations

import torch

from masks.column_mask import ColumnMask
from masks.families.family import Family, positions, vector


def prefix_lm_causal(seqlen: int) -> ColumnMask:
    """``LTS = S``; ``UTE`` = 0 for the first ``S // 2`` columns, else the diagonal."""
    ute = positions(seqlen)
    ute[: seqlen // 2] = 0
    lts = torch.full_like(ute, seqlen)
    return ColumnMask(lts=vector(lts), ute=vector(ute), seqlen_q=seqlen, seqlen_k=seqlen)


FAMILY = Family("prefix_lm_causal", "Prefix LM causal", prefix_lm_causal)
