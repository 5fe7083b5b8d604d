"""What is already recorded: which rounds of which case still count, and what is left of a plan.

A row counts while everything that determines its figures is what it is now: case, kernel source, timing method,
software, machine. Then ``ok`` rows are rounds done, and ``unsupported`` and ``incorrect`` are answers that would repeat
themselves. Everything else (a crash, a timeout, memory that ran out) is tried again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace

from harness.cases import Group
from harness.rows import Row
from harness.timing import TIMING_VERSION

_FINAL = ("unsupported", "incorrect")


@dataclass(frozen=True)
class Planned:
    """A group and the first round that is still missing."""

    group: Group
    first_round: int

    @property
    def rounds_left(self) -> int:
        """Rounds to measure."""
        return self.group.timing.rounds - self.first_round


class Recorded:
    """Index of the rows that still count."""

    def __init__(self, rows: Iterable[Row], environment: str) -> None:
        self._rounds: dict[tuple[str, str], set[int]] = defaultdict(set)
        self._final: set[tuple[str, str]] = set()
        for row in rows:
            if row["environment"] != environment or row["timing_version"] != TIMING_VERSION:
                continue
            key = (row["case_id"], row["source_hash"])
            if row["status"] == "ok":
                self._rounds[key].add(row["round"])
            elif row["status"] in _FINAL:
                self._final.add(key)

    def is_final(self, case_id: str, source_hash: str) -> bool:
        """Whether the case has an answer that need not be asked again."""
        return (case_id, source_hash) in self._final

    def next_round(self, group: Group, kernel: str, source_hash: str) -> int:
        """First round missing for a kernel of the group; ``timing.rounds`` when nothing is."""
        first = group.timing.rounds
        for pass_ in group.passes:
            key = (group.case(kernel, pass_).id, source_hash)
            if key in self._final:
                continue
            done = self._rounds.get(key, set())
            missing = (n for n in range(group.timing.rounds) if n not in done)
            first = min(first, next(missing, group.timing.rounds))
        return first


def plan(groups: Iterable[Group], hashes: dict[str, str], recorded: Recorded) -> list[Planned]:
    """What is left to run. Competitors that stand at different rounds are measured apart, so no round repeats."""
    left = []
    for group in groups:
        by_round: dict[int, list[str]] = defaultdict(list)
        for kernel in group.kernels:
            by_round[recorded.next_round(group, kernel, hashes[kernel])].append(kernel)
        for first_round, kernels in sorted(by_round.items()):
            if first_round < group.timing.rounds:
                left.append(Planned(replace(group, kernels=tuple(kernels)), first_round))
    return left
