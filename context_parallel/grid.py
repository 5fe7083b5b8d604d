"""The grid that a plan is made on: chunks of query rows that ranks own, units of key columns that ranks exchange.

A chunk is a run of rows; its rank also owns the keys and values of the same tokens. A unit is a run of columns within one
chunk, the smallest piece that is sent. Both are whole numbers of mask tiles, so that no rank computes a tile that the whole
sequence would not have; the last chunk and the last unit may be short.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from masks.column_mask import BLOCK, ColumnMask, tile_count
from masks.localize import Range

CHUNKS_A_RANK = 8
"""By default: with eight to choose from, exchanging chunks comes within a percent of the mean."""

TILES_A_UNIT = 4
"""By default: smaller units are needed less, larger ones are copied faster."""


class PlanError(ValueError):
    """A plan that cannot be made: the message says what was given and what is allowed."""


LONGEST = 2**31 - BLOCK
"""Rows of the largest chunk: the compiled planner counts in 32 bits."""
MOST_RANKS = 2**16
"""Every rank's plan holds a number for every other rank."""


def require(name: str, value: object, least: int, multiple: int = 1, most: int | None = None) -> None:
    """Refuses a value that is not an integer >= ``least``, a multiple of ``multiple`` and at most ``most``."""
    allowed = f"an integer >= {least}" if most is None else f"an integer from {least} to {most}"
    allowed += f" and a multiple of {multiple}" if multiple > 1 else ""
    if (
        not isinstance(value, int)
        or isinstance(value, bool)
        or value < least
        or value % multiple
        or (most is not None and value > most)
    ):
        raise PlanError(f"{name} is {value!r}; it must be {allowed}")


def joined(rows: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same rows, neighbours as one range."""
    out: list[tuple[int, int]] = []
    for start, end in rows:
        if out and out[-1][1] == start:
            start = out.pop()[0]
        out.append((start, end))
    return out


def check_ranks(ranks: int, ranks_per_node: int | None) -> int:
    """Number of nodes.

    Raises:
        PlanError: fewer than one rank, or nodes that do not come out even.
    """
    require("ranks", ranks, 1, most=MOST_RANKS)
    if ranks_per_node is None:
        return 1
    require("ranks_per_node", ranks_per_node, 1)
    if ranks % ranks_per_node:
        raise PlanError(f"ranks_per_node is {ranks_per_node}; it must divide the number of ranks, {ranks}")
    return ranks // ranks_per_node


@dataclass(frozen=True)
class Grid:
    """Chunks and units of one sequence.

    Args:
        seqlen: tokens, at least 1.
        chunk: rows of a chunk, a multiple of ``unit``.
        unit: columns of a unit, a multiple of 128.

    Raises:
        PlanError: anything else.
    """

    seqlen: int
    chunk: int
    unit: int

    def __post_init__(self) -> None:
        require("seqlen", self.seqlen, 1)
        require("unit", self.unit, BLOCK, BLOCK, LONGEST)
        require("chunk", self.chunk, self.unit, self.unit, LONGEST)

    @staticmethod
    def of(seqlen: int, ranks: int, chunk: int | None = None, unit: int | None = None) -> Grid:
        """The grid for so many ranks; what is None is chosen.

        Args:
            seqlen: tokens.
            ranks: of the group, at least 1.
            chunk: default: about ``CHUNKS_A_RANK`` chunks a rank.
            unit: default: ``TILES_A_UNIT`` tiles, or the largest part of the chunk below that.
        """
        require("seqlen", seqlen, 1)
        require("ranks", ranks, 1, most=MOST_RANKS)
        if chunk is None:
            step = unit if isinstance(unit, int) and unit > 0 else BLOCK
            chunk = max(step, seqlen // (ranks * CHUNKS_A_RANK) // step * step)
        if unit is None:
            require("chunk", chunk, BLOCK, BLOCK)
            unit = BLOCK * max(n for n in range(1, TILES_A_UNIT + 1) if chunk % (n * BLOCK) == 0)
        return Grid(seqlen, chunk, unit)

    def check(self, mask: ColumnMask) -> None:
        """Refuses a mask of another sequence."""
        if (mask.seqlen_q, mask.seqlen_k) != (self.seqlen, self.seqlen):
            raise PlanError(
                f"the mask has {mask.seqlen_q} rows and {mask.seqlen_k} columns; a rank owns rows and columns of the same "
                f"tokens, so both must be the grid's {self.seqlen}"
            )

    @property
    def chunks(self) -> int:
        """Number of chunks, the short one included."""
        return tile_count(self.seqlen, self.chunk)

    @property
    def units(self) -> int:
        """Number of units, the short one included."""
        return tile_count(self.seqlen, self.unit)

    def rows(self, chunk: int) -> Range:
        """Rows of a chunk, as a half-open range of the sequence."""
        return chunk * self.chunk, min(self.seqlen, (chunk + 1) * self.chunk)

    def columns(self, unit: int) -> Range:
        """Columns of a unit, as a half-open range of the sequence."""
        return unit * self.unit, min(self.seqlen, (unit + 1) * self.unit)

    def unit_lengths(self) -> np.ndarray:
        """Columns of every unit, int64 ``[units]``."""
        starts = np.arange(self.units, dtype=np.int64) * self.unit
        return np.minimum(self.seqlen - starts, self.unit)

    def chunk_of_unit(self) -> np.ndarray:
        """The chunk whose tokens a unit's columns are, int64 ``[units]``."""
        return np.arange(self.units, dtype=np.int64) * self.unit // self.chunk
