"""What is already recorded: which rounds of which case still count, and what is left of a plan.

A row counts while everything that determines its figures is what it is now: case, kernel source, timing method,
software, machine. Then ``ok`` rows are rounds done, and ``unsupported`` and ``incorrect`` are answers that would repeat
themselves. Everything else (a crash, a timeout, memory that ran out) is tried again. How many samples a round takes is
not part of a case: rounds taken with other settings count too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace

from harness.cases import Group
from harness.rows import Row
from harness.timing import TIMING_VERSION

_FINAL = ("unsupported", "incorrect")

Entry = tuple[int, str, str]
"""One thing to time: round, kernel, pass."""


@dataclass(frozen=True)
class Planned:
    """A group and what of it is still missing."""

    group: Group
    todo: frozenset[Entry]

    @property
    def kernels(self) -> tuple[str, ...]:
        """Competitors that have something to do, in the group's order."""
        busy = {kernel for _, kernel, _ in self.todo}
        return tuple(kernel for kernel in self.group.kernels if kernel in busy)

    @property
    def steps(self) -> int:
        """Checks and rounds of all competitors, for a progress display."""
        return len(self.kernels) + len({(number, kernel) for number, kernel, _ in self.todo})

    def without(self, kernels: Iterable[str] = (), done: Iterable[Entry] = ()) -> Planned:
        """The same with some competitors or some entries taken out."""
        gone, finished = set(kernels), set(done)
        left = frozenset(entry for entry in self.todo if entry[1] not in gone and entry not in finished)
        return replace(self, todo=left)


class Recorded:
    """Index of the rows that still count."""

    def __init__(self, rows: Iterable[Row], environment: str) -> None:
        self._rounds: dict[tuple[str, str], set[int]] = defaultdict(set)
        self._final: set[tuple[str, str]] = set()
        self._missing: set[str] = set()
        for row in rows:
            if row["environment"] != environment or row["timing_version"] != TIMING_VERSION:
                continue
            key = (row["case_id"], row["source_hash"])
            if row["status"] == "ok":
                self._rounds[key].add(row["round"])
            elif row["status"] in _FINAL:
                self._final.add(key)
            elif row["status"] == "missing_backend":
                self._missing.add(row["case_id"])

    def is_told(self, case_id: str, source_hash: str, status: str) -> bool:
        """Whether this answer about the case is recorded and need not be written again."""
        return (case_id, source_hash) in self._final or (status == "missing_backend" and case_id in self._missing)

    def missing(self, group: Group, kernel: str, hashes: dict[tuple[str, str], str]) -> set[Entry]:
        """Rounds and passes of a kernel that are not recorded."""
        found = set()
        for pass_ in group.passes:
            key = (group.case(kernel, pass_).id, hashes[kernel, pass_])
            if key not in self._final:
                done = self._rounds.get(key, set())
                found |= {(number, kernel, pass_) for number in range(group.timing.rounds) if number not in done}
        return found


def plan(groups: Iterable[Group], hashes: dict[tuple[str, str], str], recorded: Recorded) -> list[Planned]:
    """What is left to run, groups with nothing left taken out. ``hashes``: of the sources, by (kernel, pass)."""
    planned = []
    for group in groups:
        todo = frozenset().union(*(recorded.missing(group, kernel, hashes) for kernel in group.kernels))
        if todo:
            planned.append(Planned(group, todo))
    return planned
