"""The walk of the reference over row tiles: which columns are live, in which steps, for how many heads at once.

It decides what is multiplied with what and how large a step may be; the arithmetic is in ``fm3_kernel.reference``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import groupby

import torch
from torch import Tensor

from fm3_kernel.checks import FM3Error
from fm3_kernel.element_mask import ElementMask
from fm3_kernel.layout import Layout
from masks.column_mask import BLOCK, ColumnMask, tile_count
from masks.tiles import PARTIAL, SKIPPED, class_of_tiles

# Columns in one step of the online softmax: with a row tile of 128 this bounds the scratch at any length.
MAX_COLUMNS = 16384
# Scores in one step over all its heads. On a CPU they should stay in cache; a GPU wants one large call.
SCORES_CPU = 1 << 20
SCORES_OTHER = 1 << 26


class Step:
    """Live columns of one row tile that are handled together.

    Attributes:
        runs: column ranges, in order, that do not touch each other.
        partial: (offset, start, end): columns ``[start, end)``, at ``offset`` among the gathered ones, need the element mask.
        columns: columns gathered.
    """

    def __init__(self) -> None:
        self.runs: list[tuple[int, int]] = []
        self.partial: list[tuple[int, int, int]] = []
        self.columns = 0

    def append(self, start: int, end: int, partial: bool) -> None:
        """Add the next columns, merging ranges that touch."""
        if partial:
            if self.partial and self.partial[-1][2] == start:
                offset, first, _ = self.partial[-1]
                self.partial[-1] = (offset, first, end)
            else:
                self.partial.append((self.columns, start, end))
        if self.runs and self.runs[-1][1] == start:
            self.runs[-1] = (self.runs[-1][0], end)
        else:
            self.runs.append((start, end))
        self.columns += end - start

    def gather(self, x: Tensor) -> Tensor:
        """These columns of ``x`` ``[N, Sk, D]``: a view when they form one run."""
        if len(self.runs) == 1:
            return x[:, self.runs[0][0] : self.runs[0][1]]
        return torch.cat([x[:, start:end] for start, end in self.runs], dim=1)

    def add_product(self, x: Tensor, a: Tensor, b: Tensor, alpha: float = 1.0) -> None:
        """``x[:, these columns] += alpha * (a @ b)`` in place."""
        offset = 0
        for start, end in self.runs:
            x[:, start:end].baddbmm_(a[:, offset : offset + end - start], b, alpha=alpha)
            offset += end - start


def steps_of(classes: list[int], columns: int, limit: int) -> list[Step]:
    """The live columns of one row tile, in steps of at most ``limit`` columns (a multiple of 128).

    Args:
        classes: class of every column tile.
        columns: number of columns.
    """
    steps: list[Step] = []
    tile = 0
    for kind, group in groupby(classes):
        start = tile * BLOCK
        tile += sum(1 for _ in group)
        end = min(tile * BLOCK, columns)
        while kind != SKIPPED and start < end:
            if not steps or steps[-1].columns >= limit:
                steps.append(Step())
            stop = min(end, start + limit - steps[-1].columns)
            steps[-1].append(start, stop, kind == PARTIAL)
            start = stop
    return steps


class Work:
    """One (row tile, heads that share a mask item) of the loop: index ranges, steps and the bounds of partial tiles."""

    def __init__(self, items: slice, rows: slice, steps: list[Step], bounds: list[list[Tensor]], group: int) -> None:
        self.items, self.rows, self.steps, self.bounds, self.group = items, rows, steps, bounds, group

    def apply(self, scores: Tensor, index: int) -> None:
        """Hide the hidden elements of step ``index`` in ``scores`` ``[N, rows * group, columns]``."""
        per_row = scores.view(scores.shape[0], -1, self.group, scores.shape[2])
        for (offset, start, end), bound in zip(self.steps[index].partial, self.bounds[index], strict=True):
            part = per_row[..., offset : offset + end - start]
            torch.minimum(part, bound, out=part)


class RowTiles:
    """The loop that forward and backward share: class map on the host, step sizes, scratch."""

    def __init__(self, layout: Layout, mask: ColumnMask, classes: Tensor | None) -> None:
        expected = (mask.batch, mask.heads, tile_count(mask.seqlen_q), tile_count(mask.seqlen_k))
        if classes is not None and (classes.dtype != torch.uint8 or tuple(classes.shape) != expected):
            raise FM3Error(
                f"classes is {classes.dtype} {tuple(classes.shape)}; expected torch.uint8 {expected}, {BLOCK}x{BLOCK} tiles"
            )
        self.layout, self.mask = layout, mask
        # The one copy to the host; the loop below asks the device for nothing.
        self.classes = (class_of_tiles(mask) if classes is None else classes).cpu()
        self.elements = ElementMask(mask, layout.dtype, layout.device)
        self.budget = SCORES_CPU if layout.device.type == "cpu" else SCORES_OTHER
        self._scratch: dict[str, Tensor] = {}

    def work(self, batch: int, head: int) -> Iterator[Work]:
        """All row tiles of one mask item, dead ones left out, in pieces whose scores fit the budget."""
        items, group = self.layout.items(self.mask, batch), self.layout.group_of(self.mask)
        for index in range(self.classes.shape[2]):
            first, end = index * BLOCK, min((index + 1) * BLOCK, self.mask.seqlen_q)
            rows = (end - first) * group
            limit = min(MAX_COLUMNS, max(BLOCK, self.budget // rows // BLOCK * BLOCK))
            steps = steps_of(self.classes[batch, head, index].tolist(), self.mask.seqlen_k, limit)
            if not steps:
                continue
            row = slice(first, end)
            bounds = [[self.elements.bound(batch, head, row, slice(a, b)) for _, a, b in step.partial] for step in steps]
            count = max(1, self.budget // (rows * max(step.columns for step in steps)))
            for start in range(0, items, count):
                stop = min(items, start + count)
                yield Work(slice(start, stop), slice(first * group, end * group), steps, bounds, group)

    def scratch(self, name: str, *shape: int) -> Tensor:
        """A block of scores that is reused by the next step; fresh memory would cost more than the arithmetic on it."""
        size = math.prod(shape)
        held = self._scratch.get(name)
        if held is None or held.numel() < size:
            held = self._scratch[name] = torch.empty(size, dtype=self.layout.dtype, device=self.layout.device)
        return held[:size].view(shape)
