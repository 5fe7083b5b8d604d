"""The plan of one mask on one group: who computes which rows, holds and receives which columns, and what that costs.

Every rank makes the whole plan by itself from the mask and the shape of the group, so no rank asks another. Two ranks may
compare digests when they look for a mistake; nothing needs them to.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from context_parallel.balance import SLACK, Balance, balance, judge, missing_units
from context_parallel.compiled import compiled_placement, compiled_work, why_not
from context_parallel.grid import Grid, PlanError, check_ranks, require
from context_parallel.transfers import Schedule, Transfer, schedule
from context_parallel.work import Costs, Work, work_of
from masks.column_mask import ColumnMask
from masks.localize import Range, localize


@dataclass(frozen=True)
class Plan:
    """What :func:`make_plan` returns; the same on every rank.

    Args:
        ranks, ranks_per_node: the group.
        stages: stages within a node; the last stage of all is ``last_stage``.
        bytes_per_token: keys and values of one token.
        work: tiles, needs and weights of the chunks.
        balance: the placement and its loads.
        schedule: the messages.
    """

    ranks: int
    ranks_per_node: int
    stages: int
    bytes_per_token: int
    work: Work
    balance: Balance
    schedule: Schedule

    @property
    def grid(self) -> Grid:
        """The chunks and units."""
        return self.work.grid

    @property
    def last_stage(self) -> int:
        """Stage 0 is a rank's own columns; those from its node follow, then those from other nodes."""
        return self.stages * (1 if self.ranks == self.ranks_per_node else 2)

    @property
    def transfers(self) -> tuple[Transfer, ...]:
        """All messages, in order."""
        return self.schedule.transfers

    def chunks(self, rank: int) -> list[int]:
        """The rank's chunks, ascending: its local order."""
        self._check(rank)
        return np.flatnonzero(self.balance.placement == rank).tolist()

    def rows(self, rank: int) -> list[Range]:
        """Rows of the rank's chunks, in its local order."""
        return [self.grid.rows(chunk) for chunk in self.chunks(rank)]

    def units(self, rank: int, stage: int | None = None) -> list[int]:
        """Units that the rank attends to, in the order of its buffer: all of its own, then those received, by stage.

        Args:
            rank: of the group.
            stage: only that one; None: all.
        """
        self._check(rank)
        when, source = self.schedule.stage[rank], self.schedule.source[rank]
        units = np.flatnonzero(when >= 0 if stage is None else when == stage)
        order = np.lexsort((units, (source[units] - rank) % self.ranks, when[units]))
        return units[order].tolist()

    def columns(self, rank: int, stage: int | None = None) -> list[Range]:
        """Columns of :meth:`units`; every unit takes ``grid.unit`` columns of the buffer, the short last one too."""
        return [self.grid.columns(unit) for unit in self.units(rank, stage)]

    def seeing(self, rank: int, stage: int) -> tuple[int, int]:
        """Which of the rank's chunks, ``[first, end)`` in its local order, see units of a stage: from the first that does to
        the last. None of them: (0, 0)."""
        needs = self.work.needs[self.chunks(rank)][:, self.units(rank, stage)].any(1)
        which = np.flatnonzero(needs)
        return (int(which[0]), int(which[-1]) + 1) if len(which) else (0, 0)

    def local_mask(
        self, mask: ColumnMask, rank: int, stage: int | None = None, chunks: tuple[int, int] | None = None
    ) -> ColumnMask:
        """The mask of the rank's rows by the columns of its buffer, or of one stage of it.

        Stage 0 is the rank's own columns as they lie beside its rows, without padding.

        Args:
            mask: the one the plan was made for.
            rank, stage: as for :meth:`units`.
            chunks: only the rows of these, as from :meth:`seeing`; None: all of the rank's.
        """
        self.grid.check(mask)
        rows = self.rows(rank) if chunks is None else self.rows(rank)[slice(*chunks)]
        if stage == 0:
            return localize(mask, rows, self.rows(rank))
        return localize(mask, rows, self.columns(rank, stage), slot=self.grid.unit)

    def bytes_sent(self, network: bool | None = None) -> np.ndarray:
        """int64 ``[ranks, ranks]``: bytes from the rank of the row to the rank of the column.

        Args:
            network: only what crosses between nodes (True) or stays within (False); None: both.
        """
        sent = np.zeros((self.ranks, self.ranks), dtype=np.int64)
        lengths = self.grid.unit_lengths() * self.bytes_per_token
        for one in self.transfers:
            if network is None or one.network == network:
                sent[one.source, one.target] += lengths[list(one.units)].sum()
        return sent

    def all_gather_bytes(self) -> int:
        """Bytes that all ranks would receive together if each received every column that it does not own."""
        return self.grid.seqlen * self.bytes_per_token * (self.ranks - 1)

    def tiles(self) -> np.ndarray:
        """int64 ``[ranks, stages, 2]``: full and partial tiles of every rank and stage, over mask batch and heads."""
        out = np.zeros((self.ranks, self.last_stage + 1, 2), dtype=np.int64)
        for kind, tiles in enumerate((self.work.full, self.work.partial)):
            of_rank = np.zeros((self.ranks, self.grid.units), dtype=np.int64)
            np.add.at(of_rank, self.balance.placement, tiles)
            for stage in range(self.last_stage + 1):
                out[:, stage, kind] = np.where(self.schedule.stage == stage, of_rank, 0).sum(1)
        return out

    def digest(self) -> str:
        """Hash of the plan (hex, 16 digits), for comparing ranks while debugging."""
        state = hashlib.sha256(f"{self.grid} {self.ranks} {self.ranks_per_node} {self.bytes_per_token}".encode())
        for array in (self.balance.placement, self.balance.loads, self.schedule.stage, self.schedule.source):
            state.update(array.tobytes())
        state.update(repr(self.transfers).encode())
        return state.hexdigest()[:16]

    def _check(self, rank: int) -> None:
        require("rank", rank, 0, most=self.ranks - 1)


def make_plan(
    mask: ColumnMask,
    ranks: int,
    *,
    bytes_per_token: int,
    ranks_per_node: int | None = None,
    stages: int = 2,
    chunk: int | None = None,
    unit: int | None = None,
    costs: Costs | None = None,
    placement: np.ndarray | None = None,
    compiled: bool | None = None,
) -> Plan:
    """The plan of a mask, from nothing but the arguments.

    Args:
        mask: as many rows as columns; any form, on any device (copied to the host).
        ranks: of the group, at least 1.
        bytes_per_token: keys and values of one token, that is 2 x KV heads x head dim x bytes of an element.
        ranks_per_node: a divisor of ``ranks``; None: one node.
        stages: stages in which a rank receives from its node, and again from other nodes; at least 1.
        chunk: rows of a chunk, a multiple of ``unit``; None: about an eighth of a rank's rows.
        unit: columns of a unit, a multiple of 128; None: 512 or the largest part of the chunk below.
        costs: predicted times; None: those measured on an H200.
        placement: int64 ``[chunks]``, a rank for each; None: balanced for this mask.
        compiled: by the compiled planner, or by NumPy, to the same plan; None: compiled if this machine can.

    Raises:
        PlanError: an argument outside its range, a mask with other columns than rows, a placement that does not fit,
            ``compiled=True`` without a compiler.
    """
    nodes = check_ranks(ranks, ranks_per_node)
    require("stages", stages, 1)
    require("bytes_per_token", bytes_per_token, 1)
    if compiled is None:
        compiled = why_not() is None
    elif compiled and (reason := why_not()) is not None:
        raise PlanError(f"compiled is True, but there is no compiled planner: {reason}")
    grid, costs = Grid.of(mask.seqlen_q, ranks, chunk, unit), costs or Costs()
    # Block masks are looked at tile by tile, which NumPy does.
    work = compiled_work(mask, grid, costs) if compiled and mask.block_mask is None else work_of(mask, grid, costs)
    if placement is None and compiled:
        placement = compiled_placement(work, ranks, ranks // nodes, SLACK)
    found = balance(work, ranks, ranks_per_node) if placement is None else judge(work, placement, ranks, ranks_per_node)
    owner = found.placement[work.grid.chunk_of_unit()]
    missing = missing_units(work, found.placement, ranks)
    messages = schedule(missing, owner, ranks // nodes, stages)
    return Plan(ranks, ranks // nodes, stages, bytes_per_token, work, found, messages)
