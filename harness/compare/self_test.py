"""Does the alarm ring? Drops injected into stored rows, with the noise that those rows have, through the whole judgement.

``python -m harness.compare --self-test [--against RESULTS]``. Every case of the stored rows gets a baseline and a candidate of
as many rounds as asked; in one case of ten the candidate is slower by the injected drop. The same for two builds of this
project's kernel by turns. Nothing is measured: this says what the alarm would do on a machine that scatters within a sitting
as the stored rows do, not how two sittings on one card differ.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import numpy as np

from harness.compare.injection import Source, noise_of, rows_of, sources_of
from harness.compare.judge import compare
from harness.compare.reading import Recording, SideError, recording, side
from harness.compare.rerun import KERNEL, ROUNDS
from harness.compare.rerun import judge as judge_turns
from harness.compare.series import Key, is_anchor, key_of
from harness.compare.settings import Settings
from harness.compare.verdict import EXIT_BAD_DATA, EXIT_NOT_JUDGED, EXIT_OK, EXIT_REGRESSION, EXIT_USAGE, Comparison, Kind
from harness.complaint import complain
from harness.rows import Row, RowError

DROPS = (0.01, 0.03, 0.05, 0.10)
MUST = {0.03: 0.90, 0.05: 0.99}
"""Share of the injected drops that must be caught."""
MOST_FALSE = 0.005
"""Share of the clean cases that may ring."""
TRIALS = 10
MANY_TRIALS = 30
"""Where the answer is yes or no: of the 200 drops in ten trials a single one is half of a percent."""
CASES = 200
"""The stored cases that these trials are for: of more cases fewer trials inject as many drops."""
_SLOWED = 0.1


@dataclass(frozen=True)
class Plan:
    """How many rounds (new, baseline), against stored rows or by turns."""

    new: int
    base: int
    by_turns: bool = False

    @property
    def title(self) -> str:
        """As the table names it."""
        return f"{self.new} by turns" if self.by_turns else f"{self.new}/{self.base}"


STORED = Plan(48, 48)
"""Rounds at which MUST holds on the committed rows, against stored ones."""
TURNS = Plan(ROUNDS, ROUNDS, by_turns=True)
"""... and by turns."""
ALSO = (Plan(5, 5), Plan(20, 5), Plan(10, 20), Plan(20, 20), Plan(20, 40), Plan(24, 24, by_turns=True))


@dataclass
class Outcome:
    """Counts over all trials of a plan."""

    plan: Plan
    injected: dict[float, int] = field(default_factory=lambda: defaultdict(int))
    caught: dict[float, int] = field(default_factory=lambda: defaultdict(int))
    clean: int = 0
    false: int = 0
    ambiguous: int = 0

    def rate(self, drop: float) -> float:
        """Share of the injected drops of a size that rang."""
        return self.caught[drop] / max(1, self.injected[drop])

    @property
    def reached(self) -> bool:
        """Whether the alarm is as good as it must be."""
        return all(self.rate(drop) >= least for drop, least in MUST.items()) and self.false <= MOST_FALSE * self.clean


def trials_of(trials: int, cases: int) -> int:
    """How many of ``trials`` grids it takes where rows have so many cases, so that more rows do not take more time."""
    return -(-trials * CASES // max(CASES, cases))


def self_test(
    rows: Sequence[Row], settings: Settings, plans: Sequence[Plan], trials: int = TRIALS, drops: Sequence[float] = DROPS
) -> list[Outcome]:
    """The outcome of every plan, of ``trials`` grids for every drop. Seeded: the same rows give the same figures."""
    sources = sources_of(rows, settings)
    found = []
    for plan in plans:
        generator = np.random.default_rng(0)
        outcome = Outcome(plan)
        # By turns a grid has a quarter of the cases.
        for _ in range((4 if plan.by_turns else 1) * trials if sources else 0):
            for drop in drops:
                _trial(sources, drop, settings, generator, outcome)
        found.append(outcome)
    return found


def _trial(sources: Sequence[Source], drop: float, settings: Settings, generator: np.random.Generator, into: Outcome) -> None:
    """One grid of all cases, one in ten of them slower, counted."""
    plan = into.plan
    if plan.by_turns:  # of the kernel that two builds can differ in; of a case that is stored from several cards, one
        sources = list({source.key: source for source in sources if source.rows[0]["kernel"] == KERNEL}.values())
    judge: Callable[[Recording, Recording], Comparison] = (
        (lambda new, base: judge_turns(new, base, settings))
        if plan.by_turns
        else (lambda new, base: compare(new, base, settings, today=datetime.now(UTC).date()))
    )
    fixed = set() if plan.by_turns else {source.key for source in sources if is_anchor(source.rows[0], settings)}
    slowed = {source.key for source in sources if generator.random() < _SLOWED and source.key not in fixed}

    def drawn(name: str, count: int, slower: Container[Key]) -> Recording:
        grown: list[Row] = []
        for source in sources:
            times = source.draw(count, generator)
            grown += rows_of(source, name, times / (1 - drop) if source.key in slower else times)
        return recording(name, grown)

    for verdict in judge(drawn("candidate", plan.new, slowed), drawn("baseline", plan.base, ())).verdicts:
        rang = verdict.kind in (Kind.REGRESSION, Kind.ENVIRONMENT)
        into.ambiguous += verdict.kind is Kind.AMBIGUOUS
        if key_of(verdict.row) in slowed:
            into.injected[drop] += 1
            into.caught[drop] += rang
        else:
            into.clean += 1
            into.false += rang


def table(rows: Sequence[Row], outcomes: Sequence[Outcome], settings: Settings) -> str:
    """The figures as text."""
    seen = noise_of(rows, settings)
    low, middle, high, most = 100 * np.quantile(seen, [0.1, 0.5, 0.9, 1.0])
    lines = [
        "SIMULATED from stored rows: rounds drawn from the rounds of each case, nothing measured",
        f"noise of a round in {len(seen)} stored cases (CV of the ratio to the anchor): "
        f"10% {low:.2f}%, median {middle:.2f}%, 90% {high:.2f}%, most {most:.1f}%",
        "",
        "new/base rounds  " + "  ".join(f"-{100 * drop:g}%".rjust(7) for drop in DROPS) + "  false alarms       ambiguous",
    ]
    for one in outcomes:
        caught = "  ".join(f"{100 * one.rate(drop):6.1f}%" for drop in DROPS)
        share = one.ambiguous / max(1, one.clean + sum(one.injected.values()))
        lines.append(f"{one.plan.title:>15}  {caught}  {f'{one.false} of {one.clean}':<17}  {100 * share:7.1f}%")
    return "\n".join(lines)


def main(against: str, settings: Settings) -> int:
    """Print the table; exit 0 when STORED and TURNS reach what must be reached, 1 when not, 3 without rows to draw from."""
    try:
        rows = side(against).rows
    except SideError as error:
        return complain("compare", str(error), EXIT_USAGE)
    except RowError as error:
        return complain("compare", str(error), EXIT_BAD_DATA)
    cases = len(sources_of(rows, settings))
    if not cases:
        return complain("compare", f"{against} has no case with rounds enough and an anchor to draw from", EXIT_NOT_JUDGED)
    few, many = (trials_of(trials, cases) for trials in (TRIALS, MANY_TRIALS))
    outcomes = self_test(rows, settings, ALSO, few) + self_test(rows, settings, [STORED, TURNS], many)
    print(table(rows, outcomes, settings))
    asked = ", ".join(f"{100 * least:g}% of -{100 * drop:g}%" for drop, least in MUST.items())
    print(f"\nmust be caught: {asked}; false alarms at most {100 * MOST_FALSE:g}%")
    required = [one for one in outcomes if one.plan in (STORED, TURNS)]
    for one in required:
        print(f"{one.plan.title}: {'reached' if one.reached else 'NOT reached'}")
    return EXIT_OK if all(one.reached for one in required) else EXIT_REGRESSION
