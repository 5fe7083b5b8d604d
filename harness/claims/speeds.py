"""How many times as fast one side is as the other on one case, and by which way that is known.

Two sides that ran in one run are compared round by round. Two that did not are each compared with cuDNN's full attention
beside them (``harness.claims.anchor``), and these ratios with each other: cards of one model differ by several percent.
Operations are counted by 128x128 tiles, the papers' convention, so that another draw of the same mask still compares.

Pure functions over cells and published figures; which cases belong to a claim is ``harness.claims.judge``.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from harness.claims.anchor import TOLERANCE, Evidence, anchor_of, over_anchor, series_over_anchor
from harness.claims.paper import Case, Who
from plots.cells import Cell
from plots.published import Published
from plots.statistics import UNKNOWN, Ratio, median, paired_ratio

ONE_RUN = "in one run"
THROUGH = "each over cuDNN beside it"
SERIES = "published series, each over cuDNN beside it"
CHAIN = "published table, by way of published FlashMask-3 over cuDNN"
WAYS = (ONE_RUN, THROUGH, SERIES, CHAIN)
"""How a ratio is known, best first."""


@dataclass(frozen=True)
class Compared:
    """Ours over the rival's on one case: the ratio of speeds, how it is known, and what stands behind it."""

    case: Case
    ratio: Ratio
    how: str
    cells: tuple[Cell, ...]
    figures: tuple[Published, ...] = ()


def compare(evidence: Evidence, ours: Who, rival: Who, case: Case, passes: Sequence[str]) -> list[Compared]:
    """Ours over the rival's, once for each draw of the mask (document list, seed) that ours has figures of.

    Args:
        evidence: of one machine and protocol.
        passes: whose times are added, for instance forward and backward.

    Returns:
        Nothing where one side has no figures, or nothing connects the two.
    """
    found = []
    for mine in _draws(evidence, ours, case, passes):
        other = _nearest(evidence, rival, case, passes, mine)
        one = (_in_one_run(case, mine, other) or _through_anchor(evidence, case, mine, other)) if other else None
        one = one or _through_series(evidence, rival, case, mine)
        found += [one] if one is not None else []
    return found


def _in_one_run(case: Case, mine: Sequence[Cell], other: Sequence[Cell]) -> Compared | None:
    cells = (*mine, *other)
    rounds = set.intersection(*(set(cell.rounds) for cell in cells))
    return Compared(case, paired_ratio(_cost(other, rounds), _cost(mine, rounds)), ONE_RUN, cells) if rounds else None


def _through_anchor(evidence: Evidence, case: Case, mine: Sequence[Cell], other: Sequence[Cell]) -> Compared | None:
    both = [[over_anchor(evidence, cell) for cell in side] for side in (mine, other)]
    return _anchored(evidence, case, mine, both[0], both[1], THROUGH, other)


def _through_series(evidence: Evidence, rival: Who, case: Case, mine: Sequence[Cell]) -> Compared | None:
    found = [series_over_anchor(evidence, rival, cell) for cell in mine]
    figures = tuple(figure for one in found if one is not None for figure in one[1])
    theirs = [None if one is None else one[0] for one in found]
    how = SERIES if rival.through is None else CHAIN
    return _anchored(evidence, case, mine, [over_anchor(evidence, cell) for cell in mine], theirs, how, (), figures)


def _anchored(
    evidence: Evidence,
    case: Case,
    mine: Sequence[Cell],
    left: Sequence[float | None],
    right: Sequence[float | None],
    how: str,
    other: Sequence[Cell],
    figures: tuple[Published, ...] = (),
) -> Compared | None:
    """The ratio of two sides that are known as multiples of the anchor's time, a pass each."""
    if None in left or None in right:
        return None
    anchors = [anchor for cell in mine if (anchor := anchor_of(evidence, cell)) is not None]
    # The passes weigh what the anchor needs for them, on both sides alike.
    value = _weighted(right, anchors) / _weighted(left, anchors)
    cells = {id(cell): cell for cell in (*mine, *other, *anchors)}
    return Compared(case, Ratio(value, UNKNOWN, 0), how, tuple(cells.values()), figures)


def _weighted(values: Sequence[float | None], anchors: Sequence[Cell]) -> float:
    return sum((value or 0.0) * anchor.median_ms for value, anchor in zip(values, anchors, strict=True))


def _draws(evidence: Evidence, who: Who, case: Case, passes: Sequence[str]) -> list[list[Cell]]:
    """One list a draw of the mask, of one cell a pass."""
    first, *rest = passes
    sides = [[cell, *(_near(evidence, who, case, pass_, cell) for pass_ in rest)] for cell in evidence.find(who, case, first)]
    return [[cell for cell in side if cell is not None] for side in sides if None not in side]


def _nearest(evidence: Evidence, who: Who, case: Case, passes: Sequence[str], like: Sequence[Cell]) -> list[Cell] | None:
    """One cell a pass, of the draw nearest to that of ``like``."""
    found = [_near(evidence, who, case, pass_, cell) for pass_, cell in zip(passes, like, strict=True)]
    return None if None in found else [cell for cell in found if cell is not None]


def _near(evidence: Evidence, who: Who, case: Case, pass_: str, like: Cell) -> Cell | None:
    found = [cell for cell in evidence.find(who, case, pass_) if cell["batch"] == like["batch"]]
    nearest = min(found, key=partial(_apart, like), default=None)
    return nearest if nearest is not None and _apart(like, nearest) <= TOLERANCE else None


def _apart(one: Cell, other: Cell) -> float:
    """0 for the very same mask, else above 0: how far its tile density is from that of the other draw."""
    if one["mask_digest"] is not None and one["mask_digest"] == other["mask_digest"]:
        return 0.0
    return abs(float(other["tile_density"]) / float(one["tile_density"]) - 1) + 1e-9


def _cost(cells: Sequence[Cell], rounds: set[Hashable]) -> Mapping[Hashable, Sequence[float]]:
    """Milliseconds a TFLOP of all passes together, by round."""
    work = sum(cell["flops_tile128"] for cell in cells) / 1e12
    return {key: [sum(median(cell.rounds[key]) for cell in cells) / work] for key in rounds}
