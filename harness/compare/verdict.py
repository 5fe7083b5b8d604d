"""What is said of one case, and of all of them together. Plain data for the outputs; decides nothing but the exit code."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from harness.rows import Row
from plots.captions import machine
from plots.statistics import Interval
from plots.style import length_label, plain, title_of

if TYPE_CHECKING:
    from harness.compare.settings import Acknowledgement, Thresholds

EXIT_OK, EXIT_REGRESSION, EXIT_USAGE, EXIT_NOT_JUDGED, EXIT_BAD_DATA = 0, 1, 2, 3, 4


class Kind(StrEnum):
    """The classes, worst first."""

    REGRESSION = "REGRESSION"
    LOST = "LOST"
    ENVIRONMENT = "ENVIRONMENT"
    OTHER_MACHINE = "OTHER_MACHINE"
    AMBIGUOUS = "AMBIGUOUS"
    IMPROVED = "IMPROVED"
    NEW = "NEW"
    SAME = "SAME"


ALARMS = (Kind.REGRESSION, Kind.LOST)
"""Exit code 1."""
UNJUDGED = (Kind.AMBIGUOUS, Kind.OTHER_MACHINE)
"""Exit code 3: something was asked that these rows cannot answer."""

MEANING = {
    Kind.REGRESSION: "slower than its baseline, and not by chance",
    Kind.LOST: "had figures and has none now",
    Kind.ENVIRONMENT: "slower because the machine was: clocks or throttling explain it",
    Kind.OTHER_MACHINE: "the baseline is from another card of the kind; rerun both builds here",
    Kind.AMBIGUOUS: "these rounds could not show a drop",
    Kind.IMPROVED: "faster than its baseline, and not by chance",
    Kind.NEW: "no baseline",
    Kind.SAME: "no drop, and one would have shown",
}


def percent(change: float) -> str:
    """``-3.1%``; what rounds to nothing is ``+0.0%``."""
    return f"{round(100 * change, 1) + 0.0:+.1f}%"


@dataclass(frozen=True)
class Numbers:
    """What a verdict stands on. Ratios are new over base: below 1 is slower.

    probability: of chance, corrected for all cases of the comparison. noise: relative scatter of a round; NaN when not known.
    cycles: the ratio in clock cycles in place of time, None where the clocks are not known. clock: new SM clock over base.
    needed: (new, base) rounds that would show the visible drop, when these do not.
    """

    ratio: float
    limit: float
    probability: float
    noise: float
    rounds: tuple[int, int]
    interval: Interval | None = None
    cycles: float | None = None
    clock: float | None = None
    needed: tuple[int, int] | None = None

    @property
    def change(self) -> str:
        """``-3.1%``: throughput, relative to the base."""
        return percent(self.ratio - 1)


@dataclass(frozen=True)
class Verdict:
    """One case. ``row``: of the new side where it has one, else of the base."""

    kind: Kind
    row: Row
    reason: str
    numbers: Numbers | None = None
    certain: bool = False
    acknowledged: Acknowledgement | None = None
    command: str | None = None

    @property
    def alarm(self) -> bool:
        """Whether it makes the exit code 1."""
        return self.kind in ALARMS and self.acknowledged is None

    @property
    def unjudged(self) -> bool:
        """Whether it makes the exit code 3."""
        return self.kind in UNJUDGED and self.acknowledged is None

    @property
    def word(self) -> str:
        """The class as outputs name it."""
        return f"{self.kind}, certain" if self.certain else str(self.kind)

    @property
    def case(self) -> str:
        """The case as a person names it."""
        row = self.row
        variant = f" ({row['mask_variant']})" if row["mask_variant"] else ""
        params = "".join(f" {name}={value}" for name, value in sorted(row["mask_params"].items()))
        seed = f" seed {row['seed']}" if row["seed"] else ""
        scheme = f" CP={row['cp_degree']} {row['strategy']}" if row["cp_degree"] > 1 else ""
        where = f"{length_label(row['seqlen'])} {row['pass']}{seed}{scheme}"
        return plain(f"{title_of(row['kernel'])} {row['mask']}{variant}{params} {where}", 120)

    @property
    def setting(self) -> str:
        """Machine, protocol and shape: what may not be mixed."""
        return setting_of(self.row)


def setting_of(row: Row) -> str:
    """Machine, protocol and shape of a row as one line."""
    parts = (
        machine(row),
        row["protocol"],
        f"{plain(row['l2'])} L2",
        plain(row["dtype"]),
        f"{row['heads']}/{row['kv_heads']} heads",
        f"D={row['head_dim']}",
    )
    return ", ".join(parts) + (", SIMULATED" if row["source"] == "simulated" else "")


@dataclass(frozen=True)
class Comparison:
    """All verdicts, worst first, and what was compared. ``notes``: what a reader must know of the rows themselves."""

    candidate: str
    baseline: str
    verdicts: tuple[Verdict, ...]
    notes: tuple[str, ...]
    thresholds: Thresholds

    @property
    def counts(self) -> Counter[Kind]:
        """Verdicts by class."""
        return Counter(verdict.kind for verdict in self.verdicts)

    @property
    def exit_code(self) -> int:
        """1 an alarm; 3 nothing to compare with, or a case that these rows cannot judge; else 0."""
        if any(verdict.alarm for verdict in self.verdicts):
            return EXIT_REGRESSION
        compared = [verdict for verdict in self.verdicts if verdict.kind is not Kind.NEW]
        return EXIT_NOT_JUDGED if not compared or any(verdict.unjudged for verdict in compared) else EXIT_OK

    @property
    def headline(self) -> str:
        """One line: what came of it."""
        counts = ", ".join(f"{self.counts[kind]} {kind}" for kind in Kind if self.counts[kind])
        return f"{_OUTCOMES[self.exit_code]}: {counts or 'no case'}"

    def of(self, *kinds: Kind) -> list[Verdict]:
        """Verdicts of some classes."""
        return [verdict for verdict in self.verdicts if verdict.kind in kinds]


_OUTCOMES = {
    EXIT_OK: "nothing got slower",
    EXIT_REGRESSION: "something got slower or was lost",
    EXIT_NOT_JUDGED: "not judged",
}
