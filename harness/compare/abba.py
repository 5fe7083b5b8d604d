"""Two builds by turns on one machine: A B, B A, A B, ... so that a drift of the machine hits both alike.

A turn is a process of its own that measures one round of every group and ends: chance that a process meets once, such as
where its memory lies, differs from round to round as well, and cannot be taken for a difference of the builds. Rows of each
build go to a folder of its own. Says nothing about which is faster.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness.cases import Group
from harness.compare.turn import order
from harness.rows import row_files
from harness.runner import EXIT_FAILED, EXIT_OK


class TurnError(RuntimeError):
    """A turn that failed: which build, which round, and how it ended."""


@dataclass(frozen=True)
class Build:
    """One of the two: its name, the folder of its code, the folder of its rows, and the command of a turn."""

    name: str
    tree: Path
    results: Path
    command: tuple[str, ...] = (sys.executable, "-m", "harness.compare.turn")
    environment: Mapping[str, str] = field(default_factory=dict)

    def turn(self, groups: Sequence[Group], peak_tflops: float | None) -> int:
        """Measure what of the groups is not recorded yet; the exit code of the process."""
        paths = [str(self.tree), *filter(None, [self.environment.get("PYTHONPATH")])]
        done = subprocess.run(
            self.command,
            input=order(groups, self.results.absolute(), peak_tflops),
            text=True,
            cwd=self.tree,
            env={**os.environ, **self.environment, "PYTHONPATH": os.pathsep.join(paths)},
        )
        return done.returncode


def alternate(
    builds: tuple[Build, Build],
    groups: Sequence[Group],
    rounds: int,
    peak_tflops: float | None = None,
    told: Callable[[str], None] = lambda line: None,
) -> None:
    """Measure ``rounds`` rounds of every group with each build, by turns.

    Args:
        builds: (baseline, candidate).
        groups: the problems; their own number of rounds is not used.
        rounds: of each build.
        peak_tflops: the machine's peak; a faster figure is refused as wrong.
        told: told of every turn.

    A case that fails is recorded with its status, and the others go on.

    Raises:
        TurnError: a turn that recorded nothing, or that the runner itself gave up.
    """
    for number in range(rounds):
        # What is recorded is not measured again: asking for one round more measures that one.
        grown = [replace(group, timing=replace(group.timing, rounds=number + 1)) for group in groups]
        for build in builds if number % 2 == 0 else builds[::-1]:
            told(f"round {number + 1} of {rounds}: {build.name}")
            code = build.turn(grown, peak_tflops)
            recorded = code in (EXIT_OK, EXIT_FAILED) and (not code or row_files(build.results))
            if not recorded:  # the runner's 1 is also Python's, for a tree that does not even start
                raise TurnError(f"{build.name} failed in round {number + 1} (exit code {code}); its rows: {build.results}")
