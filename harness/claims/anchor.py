"""The anchor: cuDNN's full attention of the same length, shape and pass, beside which everything can be measured.

A kernel's time a TFLOP as a multiple of the anchor's, from rows of the same run or card, or from a published series with
a cuDNN of its own. Two such multiples compare kernels that never ran together. Counts operations by 128x128 tiles.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from harness.claims.paper import ANCHOR, Case, Who
from harness.rows import Row
from plots.cells import Cell
from plots.published import Published
from plots.statistics import median, paired_ratio

TOLERANCE = 0.10
"""Largest relative distance between the tile densities of two draws of one mask that are compared."""

_SHAPE = ("seqlen", "pass", "batch", "heads", "kv_heads", "head_dim", "dtype")


@dataclass(frozen=True)
class Evidence:
    """All that is known about one machine and protocol: its cells, and what others published."""

    cells: Sequence[Cell]
    published: Sequence[Published] = ()

    def find(self, who: Who, case: Case, pass_: str) -> list[Cell]:
        """The cells with figures of one side on one case, of the fastest of its kernels for each draw of the mask and batch."""
        wanted: dict[str, Any] = dict(zip(("mask", "seqlen", "cp_degree"), case, strict=True))
        wanted |= {"strategy": who.strategy, "pass": pass_}
        names = (who.kernel, *who.also)
        cells = [cell for cell in self.cells if cell.ok and cell["kernel"] in names]
        found = [cell for cell in cells if all(cell[name] == value for name, value in wanted.items())]
        slowest_first = sorted(found, key=lambda cell: cell.median_ms, reverse=True)
        fastest = {_draw(cell): cell["kernel"] for cell in slowest_first}
        return [cell for cell in found if cell["kernel"] == fastest[_draw(cell)]]


def _draw(cell: Cell) -> tuple[Any, ...]:
    return tuple(cell[name] for name in ("mask_digest", "mask_variant", "seed", *_SHAPE))


def anchor_of(evidence: Evidence, cell: Cell) -> Cell | None:
    """The anchor of a cell's shape and pass; None where it was not measured, or where ranks share a sequence.

    Of several, the one of the same run or card.
    """
    found = evidence.find(Who(ANCHOR), ("full", cell["seqlen"], 1), cell["pass"]) if cell["cp_degree"] == 1 else []
    alike = [one for one in found if all(one[name] == cell[name] for name in _SHAPE)]
    return max(alike, key=lambda one: _nearness(one, cell), default=None)


def _nearness(one: Cell, other: Cell) -> tuple[bool, bool]:
    """Whether two cells share a round, and whether a card."""
    return bool(one.rounds.keys() & other.rounds.keys()), bool(_cards(one.rows) & _cards(other.rows))


def over_anchor(evidence: Evidence, cell: Cell) -> float | None:
    """Time a TFLOP as a multiple of the anchor's, in the same run or else on the same card; None: no anchor there."""
    anchor = anchor_of(evidence, cell)
    if anchor is None:
        return None
    work = float(cell["flops_tile128"] / anchor["flops_tile128"])
    if cell.rounds.keys() & anchor.rounds.keys():
        return paired_ratio(cell.rounds, anchor.rounds).value / work
    cards = _cards(cell.rows) & _cards(anchor.rows)
    if not cards:
        return None
    return _median_ms(cell.rows, cards) / _median_ms(anchor.rows, cards) / work


def series_over_anchor(evidence: Evidence, who: Who, cell: Cell) -> tuple[float, tuple[Published, ...]] | None:
    """The same for the published figure of ``who`` on the case of a cell, with the figures that it is made of."""
    if who.published is None:
        return None
    known = [figure for figure in evidence.published if figure.convention == "tile128"]
    for figure in known:
        if figure.kernel != who.published or figure.gpu != cell["gpu"] or not _of_case(figure, cell):
            continue
        beside = [one for one in known if (one.kernel, one.mask) == (ANCHOR, "full") and _setting(one) == _setting(figure)]
        link = (1.0, ()) if who.through is None else _link(known, who.through, figure)
        if beside and link is not None:
            return link[0] * beside[0].tflops / figure.tflops, (figure, beside[0], *link[1])
    return None


def _link(known: Iterable[Published], names: tuple[str, str], figure: Published) -> tuple[float, tuple[Published, ...]] | None:
    """How many times as long ``names[0]`` takes as ``names[1]`` in a table that holds both, on the case of a figure."""
    wanted = (figure.mask, figure.pass_, figure.seqlen, figure.heads, figure.head_dim, figure.dtype)
    found: dict[tuple[str, str], Published] = {}
    for one in known:
        # A figure with a note was made with a mask that is not quite the one that it is called.
        if not one.note and (one.mask, one.pass_, one.seqlen, one.heads, one.head_dim, one.dtype) == wanted:
            found[one.source, one.kernel] = one
    for (source, kernel), slow in found.items():
        fast = found.get((source, names[1]))
        if kernel == names[0] and fast is not None:
            return fast.tflops / slow.tflops, (slow, fast)
    return None


def _setting(figure: Published) -> tuple[object, ...]:
    """What a figure shares with the anchor that was measured beside it."""
    shape = (figure.seqlen, figure.batch, figure.heads, figure.head_dim, figure.dtype)
    return (figure.source, figure.gpu, figure.pass_, *shape)


def _of_case(figure: Published, cell: Cell) -> bool:
    same = {"mask": figure.mask, "pass": figure.pass_, "seqlen": figure.seqlen, "batch": figure.batch}
    same |= {"heads": figure.heads, "head_dim": figure.head_dim, "dtype": figure.dtype}
    same["kv_heads"] = figure.heads  # all of them are without grouped heads
    if not all(cell[name] == value for name, value in same.items()) or figure.tile_density is None:
        return False
    return abs(float(cell["tile_density"]) / figure.tile_density - 1) <= TOLERANCE


def _cards(rows: Iterable[Row]) -> set[str]:
    return {row["gpu_hash"] for row in rows if row["gpu_hash"] is not None}


def _median_ms(rows: Iterable[Row], cards: set[str]) -> float:
    return median([sample for row in rows if row["gpu_hash"] in cards for sample in row["samples_ms"]])
