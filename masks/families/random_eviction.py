"""Family 12, random eviction: causal with a key cache of half the sequence; from the middle on, each row evicts a key.

Every batch item and head has its own random columns and its own matching of columns to rows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from masks.column_mask import ColumnMask, MaskError
from masks.families.family import Family

GROUP = 1 << 18
"""Columns of as many heads as are done together: their scratch stays in the cache."""


def random_eviction(seqlen: int, *, seed: int, batch: int, heads: int) -> ColumnMask:
    """Causal; ``S - S//2`` columns, drawn uniformly from ``[0, S-1)``, get an ``LTS`` in ``S//2 .. S-1``, the others ``S``.

    Each of those rows is the ``LTS`` of exactly one column, and lies strictly below it. All such matchings are equally
    likely. The number of visible pairs does not depend on the seed.

    Raises:
        MaskError: fewer than two tokens, where no column can be evicted.
    """
    if seqlen < 2:
        raise MaskError(f"random_eviction needs at least 2 tokens; seqlen is {seqlen}")
    generator = torch.Generator().manual_seed(seed)
    many = batch * heads
    lts = torch.full((many, seqlen), seqlen, dtype=torch.int32)
    for part in lts.split(max(1, GROUP // seqlen)):
        _evict(part, generator)
    return ColumnMask(lts=lts.view(batch, heads, seqlen), causal=True, seqlen_q=seqlen, seqlen_k=seqlen)


def _evict(lts: Tensor, generator: torch.Generator) -> None:
    """Writes the evicting rows of a few heads into their ``LTS``, int32 ``[heads, S]``, filled with ``S`` so far."""
    heads, seqlen = lts.shape
    half = seqlen // 2
    columns = torch.stack([torch.randperm(seqlen - 1, generator=generator)[: seqlen - half] for _ in range(heads)])
    evicted = torch.zeros((heads, seqlen - 1), dtype=torch.bool).scatter_(1, columns, True)
    free = torch.ones((heads, seqlen - half), dtype=torch.bool)  # row half + i has no column yet
    if half < seqlen - 1:
        upper = evicted[:, half:]
        rows = _rows_of_upper_columns(upper, generator)
        lts[:, half : seqlen - 1] = torch.where(upper, half + rows, seqlen)
        head, column = upper.nonzero(as_tuple=True)
        free[head, rows[head, column]] = False
    # Columns left of the middle fit every row that is left; they are in random order already, so any order of rows does.
    head, place = (columns < half).nonzero(as_tuple=True)
    lts[head, columns[head, place]] = (free.nonzero(as_tuple=True)[1] + half).to(torch.int32)


def _rows_of_upper_columns(evicted: Tensor, generator: torch.Generator) -> Tensor:
    """A row for every evicted column right of the middle; bool ``[n, C]`` to int64 ``[n, C]`` (meaningless elsewhere).

    Columns and rows both count from the middle: column ``c`` may take rows ``c + 1 .. C``.

    From the last column to the left: at each column one more row (the one just below it) joins a pool, and an evicted
    column takes a random one out. Step by step that is slow, so it is told by slots: the new row always goes into the
    slot that this step touches, the drawn one for an evicted column, a new one otherwise. What a draw takes out is then
    what the last earlier step on the same slot put in, and one sort by slot finds that for all steps at once.
    """
    taking = evicted.flip(1)
    step = torch.arange(evicted.shape[1])
    pool = step - (taking.cumsum(1) - taking.long())  # rows in the pool before this step's row joins
    drawn = (torch.rand(evicted.shape, generator=generator, dtype=torch.float64) * (pool + 1)).long()
    slot = torch.where(taking, drawn, pool)
    # All heads in one flat sort: a one-dimensional integer sort is several times quicker in torch than one by rows.
    offset = evicted.shape[1] * torch.arange(evicted.shape[0])[:, None]
    order = (slot + offset).to(torch.int32).flatten().argsort(stable=True)
    earlier = torch.zeros_like(order)
    earlier[order[1:]] = order[:-1]
    earlier = earlier.view(evicted.shape) - offset
    # A draw of the new slot itself takes the row that has just come.
    source = torch.where(drawn < pool, earlier, step)
    return (evicted.shape[1] - source).flip(1)


FAMILY = Family("random_eviction", "Random eviction", random_eviction, per_head=True, seeded=True)
