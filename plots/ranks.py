"""What ranks that share a sequence did: how much of the exchange was hidden, how even the work was, who received what.

From the rows of one cell, all rounds pooled. A strategy is run whole, with all keys there already (``comp``) and with nothing
computed (``comm``); each time is that of the slowest rank. Of simulated ranks the model says all three. Draws nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from plots.cells import Cell
from plots.statistics import median

NOISE = 0.05
"""Below this share of the whole, hiding the exchange is not worth a figure: the overlap is noise."""


@dataclass(frozen=True)
class Overlap:
    """One cell's three runs, milliseconds."""

    full_ms: float
    comp_ms: float
    comm_ms: float
    bare_ms: float | None

    @property
    def exposed_ms(self) -> float:
        """What the exchange adds to computing. Never clipped: noise may make it negative."""
        return self.full_ms - self.comp_ms

    @property
    def overlap(self) -> float:
        """Share of the exchange that is hidden; 1: all of it. Never clipped."""
        return (self.comp_ms + self.comm_ms - self.full_ms) / self.comm_ms

    @property
    def best(self) -> float:
        """The overlap that a computation of this length allows."""
        return min(1.0, self.comp_ms / self.comm_ms)

    @property
    def is_noise(self) -> bool:
        """Whether there is hardly an exchange to hide."""
        return self.comm_ms < NOISE * self.full_ms


def overlap_of(cell: Cell) -> Overlap | None:
    """The three runs of a cell; None where they were not taken, or where a model has no exchange to hide."""
    told = cell["simulation"]
    if told is not None:
        return Overlap(told["t_full_ms"], told["t_comp_ms"], told["t_comm_ms"], None) if told["t_comm_ms"] else None
    pooled = {name: [x for row in cell.rows for x in row[f"{name}_samples_ms"] or ()] for name in ("comp", "comm", "bare")}
    if not pooled["comp"] or not pooled["comm"]:
        return None
    bare = median(pooled["bare"]) if pooled["bare"] else None
    return Overlap(cell.median_ms, median(pooled["comp"]), median(pooled["comm"]), bare)


def by_rank(cell: Cell, name: str) -> list[float] | None:
    """A vector of the rows' ``ranks``, the median over rounds by rank; None where no row has it."""
    vectors = [row["ranks"][name] for row in cell.rows if row["ranks"] and name in row["ranks"]]
    return [median(list(values)) for values in zip(*vectors, strict=True)] if vectors else None


def balance_of(cell: Cell) -> float | None:
    """Mean of the ranks' computing times over the longest: 1 is even. None where they were not taken."""
    spent = by_rank(cell, "comp_ms")
    return None if spent is None or max(spent) == 0 else sum(spent) / len(spent) / max(spent)
