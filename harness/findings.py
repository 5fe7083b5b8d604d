"""What the cells say: who is fastest on which mask and by how much, and one kernel against another.

Plain data for the report and the terminal table; renders nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from plots.cells import Cell, series_of, sort_key
from plots.slots import same_problem, slot_labels
from plots.statistics import Ratio, geometric_mean
from plots.style import rank


@dataclass(frozen=True)
class Place:
    """One mask, length and pass of one setting, with every competitor asked about it."""

    label: str
    seqlen: int
    pass_: str
    cells: tuple[Cell, ...]

    @property
    def ranking(self) -> list[Cell]:
        """Cells with figures, fastest first."""
        return sorted((cell for cell in self.cells if cell.ok), key=lambda cell: (cell.median_ms, series_of(cell)))

    @property
    def best(self) -> Cell | None:
        """The fastest."""
        return next(iter(self.ranking), None)

    @property
    def lead(self) -> tuple[Cell, Ratio] | None:
        """The second, and how many times as fast the first is; None when there is nobody to compare with."""
        ranking = self.ranking
        rivals = [cell for cell in ranking[1:] if same_problem(ranking[0], cell)]
        return (rivals[0], ranking[0].speedup_over(rivals[0])) if rivals else None


@dataclass(frozen=True)
class Duel:
    """One kernel over another on one mask, length and pass."""

    label: str
    seqlen: int
    pass_: str
    density: float
    ratio: Ratio


def places(cells: Sequence[Cell]) -> list[Place]:
    """The places of one setting: by pass, length, then mask in the registry's order."""
    ordered = sorted(cells, key=sort_key)
    groups: dict[tuple[str, int, str, str], list[Cell]] = defaultdict(list)
    for cell, label in zip(ordered, slot_labels(ordered), strict=True):
        groups[(cell["pass"], cell["seqlen"], label, cell["source"])].append(cell)
    passes = ("forward", "backward", "both")
    keys = sorted(groups, key=lambda key: (passes.index(key[0]), key[1]))  # stable: masks keep their order
    return [Place(key[2], key[1], key[0], tuple(sorted(groups[key], key=_by_kernel))) for key in keys]


def _by_kernel(cell: Cell) -> tuple[tuple[int, str], str]:
    return rank(cell["kernel"]), series_of(cell)


def duels(cells: Sequence[Cell], kernel: str, over: str) -> list[Duel]:
    """``kernel`` over ``over`` wherever both have figures for the same problem."""
    found = []
    for place in places(cells):
        mine = [cell for cell in place.cells if cell.ok and cell["kernel"] == kernel]
        rivals = [cell for cell in place.cells if cell.ok and cell["kernel"] == over]
        if mine and rivals and same_problem(mine[0], rivals[0]):
            density = float(mine[0]["density"])
            found.append(Duel(place.label, place.seqlen, place.pass_, density, mine[0].speedup_over(rivals[0])))
    return found


def mean_ratio(found: Sequence[Duel]) -> float:
    """Geometric mean of the ratios.

    Raises:
        ValueError: no duels.
    """
    return geometric_mean([duel.ratio.value for duel in found])


def wins(found: Sequence[Place]) -> list[tuple[str, int, int]]:
    """(series, places it is fastest at, of these surely: see ``Ratio.sure``), most wins first.

    Places with a single competitor are nobody's win.
    """
    first: Counter[str] = Counter()
    sure: Counter[str] = Counter()
    for place in found:
        best, lead = place.best, place.lead
        if best is None or lead is None:
            continue
        first[series_of(best)] += 1
        sure[series_of(best)] += lead[1].sure
    return [(name, count, sure[name]) for name, count in sorted(first.items(), key=lambda item: (-item[1], item[0]))]
