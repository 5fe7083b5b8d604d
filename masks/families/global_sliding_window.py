"""Family 7, global + sliding window: a window on both sides, and a few leading tokens that see and are seen by all."""

from __future__ import annotations

import torch

from masks.column_mask import ColumnMask, MaskError
from masks.families.family import Family, at_least, positions, vector

GLOBAL_TOKENS = 16


def global_sliding_window(seqlen: int, *, window: int | None = None, global_tokens: int = GLOBAL_TOKENS) -> ColumnMask:
    """``LTS = min(j+window+1, S)``, ``LTE = S``, ``UTS = global_tokens``, ``UTE = j-window``; global columns empty.

    Args:
        window: neighbours seen on either side, the query itself not counted; None: ``S // 16``.
        global_tokens: leading rows and columns that are visible throughout.

    Raises:
        MaskError: a negative window, or a sequence shorter than its global tokens.
    """
    at_least("global_tokens", global_tokens, 0)
    if seqlen < global_tokens:
        raise MaskError(
            f"global_sliding_window needs at least its {global_tokens} global tokens; seqlen is {seqlen} (lower global_tokens)"
        )
    if window is None:
        window = seqlen // 16
    at_least("window", window, 0)
    window = min(window, seqlen)
    column = positions(seqlen)
    lts = (column + (window + 1)).clamp_(max=seqlen)
    lts[:global_tokens] = seqlen
    uts = torch.full_like(lts, global_tokens)
    ute = (column - window).clamp_(min=global_tokens)  # UTE = UTS, empty, up to column global_tokens + window
    return ColumnMask(
        lts=vector(lts),
        lte=vector(torch.full_like(lts, seqlen)),
        uts=vector(uts),
        ute=vector(ute),
        seqlen_q=seqlen,
        seqlen_k=seqlen,
    )


FAMILY = Family(
    "global_sliding_window",
    "Global sliding window",
    global_sliding_window,
    params={"window": None, "global_tokens": GLOBAL_TOKENS},
)
