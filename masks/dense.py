"""The brute-force oracle: the dense mask, element by element, from the words of the definition.

Written on plain Python integers and apart from ``ColumnMask.visible`` on purpose: tests compare the two.
O(Sq * Sk) time and memory in pure Python, so small masks only.
"""

from __future__ import annotations

import torch
from torch import Tensor

from masks.column_mask import BLOCK, ColumnMask


def dense(mask: ColumnMask) -> Tensor:
    """bool ``[B, Hm, Sq, Sk]`` on the CPU, True = visible."""
    rows, columns = mask.seqlen_q, mask.seqlen_k
    out = torch.zeros((mask.batch, mask.heads, rows, columns), dtype=torch.bool)
    vectors = {name: getattr(mask, name).expand(mask.batch, mask.heads, -1).tolist() for name in mask.vectors}
    keep = None
    if mask.block_mask is not None:
        keep = mask.block_keep().cpu().expand(mask.batch, mask.heads, -1, -1).tolist()
    for b in range(mask.batch):
        for h in range(mask.heads):
            seen = []
            for i in range(rows):
                line = []
                for j in range(columns):
                    hidden = mask.causal and j > i + columns - rows
                    if "lts" in vectors:
                        end = vectors["lte"][b][h][j] if "lte" in vectors else rows
                        hidden = hidden or vectors["lts"][b][h][j] <= i < end
                    if "ute" in vectors:
                        start = vectors["uts"][b][h][j] if "uts" in vectors else 0
                        hidden = hidden or start <= i < vectors["ute"][b][h][j]
                    if keep is not None:
                        hidden = hidden or not keep[b][h][i // BLOCK][j // BLOCK]
                    line.append(not hidden)
                seen.append(line)
            if rows and columns:
                out[b, h] = torch.tensor(seen)
    return out
