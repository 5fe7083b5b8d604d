"""What every rank has to compute and to move under a plan, in milliseconds and bytes: the plan's tiles at a cluster's rates.

Exact in what is counted (the plan's own tiles, units and rows), a model in what it costs: a launch takes the sum of its tiles
over the whole GPU, and at least as long as its longest item takes one streaming multiprocessor, since an item is never
shared. Sums and copies are bound by memory. Knows no order and no clock.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from context_parallel.plan import Plan
from harness.cases import Problem
from harness.simulate.cluster import Cluster
from harness.simulate.rates import NOMINAL, KernelRates
from masks.column_mask import BLOCK

Seeing = tuple[int, int] | None
"""Which of a rank's chunks, as from ``Plan.seeing``; None: all of them."""
HALF, SINGLE = 2, 4
"""Bytes of an element: of inputs, outputs and what travels; of sums."""


@dataclass(frozen=True)
class Launch:
    """One launch of the kernel: tiles of each class and outer tiles, over all heads; ``longest``: the most picoseconds (of the
    whole GPU's rates) that one of its items takes, on average within its chunk or unit."""

    full: float
    partial: float
    outer: float
    longest: float

    def milliseconds(self, rates: KernelRates, sms: int) -> float:
        """What it takes; 0 for a launch of nothing."""
        if not self.outer:
            return 0.0
        whole = self.full * rates.full_ps + self.partial * rates.partial_ps + self.outer * rates.outer_ps
        return max(whole, self.longest * sms) / 1e9 + rates.launch_us / 1e3


class Loads:
    """One plan, problem and pass on a cluster.

    Args:
        plan: of the problem's mask; ``bytes_per_token`` 1 or whatever it is, this class counts by itself.
        problem: heads, head dim and batch.
        pass_: forward or backward.
        cluster: the rates.
        rates: of the kernel and pass.
        mask_heads: heads of all batch items that the plan's tiles are summed over.

    ``end`` is that of the spreads (``rates.NOMINAL``): see :meth:`at`.
    """

    def __init__(
        self,
        plan: Plan,
        problem: Problem,
        pass_: str,
        cluster: Cluster,
        rates: KernelRates,
        *,
        mask_heads: int,
    ) -> None:
        self.plan, self.problem, self.pass_ = plan, problem, pass_
        self.cluster, self.rates, self.end = cluster, rates, NOMINAL
        self._heads = problem.batch * problem.heads
        self._scale = self._heads / mask_heads
        self._pace = 1.0
        self._unit_lengths = plan.grid.unit_lengths()
        self._chunks = [np.array(plan.chunks(rank), dtype=np.int64) for rank in range(plan.ranks)]
        rows = [plan.rows(rank) for rank in range(plan.ranks)]
        self._row_lengths = [np.array([end - start for start, end in spans], dtype=np.int64) for spans in rows]
        self._own = [int(lengths.sum()) for lengths in self._row_lengths]
        self._launches: dict[tuple[int, bytes, Seeing], Launch] = {}

    def at(self, end: int, spread: float) -> Loads:
        """The same at an end of all spreads; ``spread``: of the kernel's times."""
        other = copy(self)
        other.end, other._pace = end, 1 + end * spread
        return other

    @cached_property
    def bytes_per_token(self) -> int:
        """Keys and values of one token of all batch items, as they travel."""
        p = self.problem
        return 2 * p.batch * p.kv_heads * p.head_dim * HALF

    def tokens(self, units: np.ndarray | list[int]) -> int:
        """Tokens of some units."""
        return int(self._unit_lengths[np.asarray(units, dtype=np.int64)].sum())

    def own_tokens(self, rank: int) -> int:
        """Rows of a rank, and columns that it owns."""
        return self._own[rank]

    def launch(self, rank: int, units: list[int], seeing: Seeing = None) -> Launch:
        """The launch that takes a rank's rows to the columns of these units. Of a rank without rows or columns: nothing.

        ``seeing``: only the rows of these of the rank's chunks, ``[first, end)`` in their order.
        """
        columns = np.array(units, dtype=np.int64)
        key = rank, columns.tobytes(), seeing
        if key not in self._launches:
            self._launches[key] = self._launch(rank, columns, slice(*(seeing or (None,))))
        return self._launches[key]

    def _launch(self, rank: int, columns: np.ndarray, seeing: slice) -> Launch:
        chunks = self._chunks[rank][seeing]
        if not len(chunks) or not len(columns):
            return Launch(0.0, 0.0, 0.0, 0.0)
        full, partial = (kind[np.ix_(chunks, columns)] for kind in (self.plan.work.full, self.plan.work.partial))
        # The kernel works through row tiles forward and through column tiles backward.
        axis = 1 if self.pass_ == "forward" else 0
        lengths = self._row_lengths[rank][seeing] if axis == 1 else self._unit_lengths[columns]
        tiles = (lengths + BLOCK - 1) // BLOCK
        costs = (full * self.rates.full_ps + partial * self.rates.partial_ps).sum(axis) * self._scale / self._heads
        longest = float((costs / tiles).max()) + self.rates.outer_ps
        return Launch(
            float(full.sum() * self._scale), float(partial.sum() * self._scale), float(tiles.sum() * self._heads), longest
        )

    def launches(self) -> list[Launch]:
        """Those that were asked for, each once, in the order in which they were."""
        return list(self._launches.values())

    def attention_ms(self, rank: int, units: list[int], seeing: Seeing = None) -> float:
        """Of that launch."""
        return self.launch(rank, units, seeing).milliseconds(self.rates, self.cluster.sms) * self._pace

    def chunk_ms(self) -> np.ndarray:
        """What every chunk costs wherever it lies, at the rates as they are: float64 ``[chunks]``."""
        work, rates = self.plan.work, self.rates
        spans = [self.plan.grid.rows(chunk) for chunk in range(self.plan.grid.chunks)]
        rows = np.array([(end - start + BLOCK - 1) // BLOCK for start, end in spans])
        tiles = (work.full.sum(1) * rates.full_ps + work.partial.sum(1) * rates.partial_ps) * self._scale
        return (tiles + rows * self._heads * rates.outer_ps) / 1e9

    def copy_ms(self, tokens: int) -> float:
        """Reading and writing keys and values of so many tokens: packing them."""
        return self._memory(tokens * self.bytes_per_token * 2)

    def to_sums_ms(self, tokens: int) -> float:
        """Gradients of so many tokens read, and kept as sums; or sums read, and given back as gradients."""
        return self._memory(tokens * self.bytes_per_token / HALF * (HALF + SINGLE))

    def add_ms(self, tokens: int, size: int = HALF) -> float:
        """Gradients of so many tokens, of elements of this size, added to sums."""
        return self._memory(tokens * self.bytes_per_token / HALF * (size + 2 * SINGLE))

    def merge_ms(self, rank: int, seeing: Seeing = None) -> float:
        """The output of one part merged into the rank's, or its share of dq added: a 16-bit part, 32-bit sums. ``seeing``: of
        the rows of these chunks."""
        p = self.problem
        elements = int(self._row_lengths[rank][slice(*(seeing or (None,)))].sum()) * p.batch * p.heads * p.head_dim
        return self._memory(elements * (HALF + 2 * SINGLE))

    def _memory(self, amount: float) -> float:
        return self.cluster.memory_ms(amount, self.end)

    def held_bytes(self, rank: int, buffered: int) -> int:
        """Bytes that the tensors of this attention need on a rank at the end of its backward pass.

        q, out, their gradients and the sums of dq; own k, v and their gradients; and ``buffered`` tokens of gathered keys and
        values with gradients of both. What a kernel keeps for itself, and other layers, come on top.
        """
        p = self.problem
        queries = self.own_tokens(rank) * p.batch * p.heads * (p.head_dim * (4 * HALF + SINGLE) + SINGLE)
        return queries + 2 * (self.own_tokens(rank) + buffered) * self.bytes_per_token
