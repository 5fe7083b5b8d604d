"""Two builds by turns on one machine: A B, B A, A B, ... so that a drift of the machine hits both alike.

Each build has a process of its own, which prepares and checks a problem once and then waits for its turn before every round;
only one of them has the machine at any time. Rows of each build go to a folder of its own. Says nothing about which is faster.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness.cases import Group
from harness.compare.turn import SOME_FAILED, order
from harness.measure import SETUP
from harness.rows import row_files
from harness.runner import EXIT_OK

LOG = "turns.log"
"""What a build's process printed, beside its rows."""
_PATIENCE_S = 30

Step = tuple[int, int]
"""Number of the group; number of the round, or ``SETUP``."""


class TurnError(RuntimeError):
    """A build whose process gave up: which, how it ended, and what it said last."""


@dataclass(frozen=True)
class Build:
    """One of the two: its name, the folder of its code, the folder of its rows, and the command of its process."""

    name: str
    tree: Path
    results: Path
    command: tuple[str, ...] = (sys.executable, "-m", "harness.compare.turn")
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def has_rows(self) -> bool:
        """Whether any row of it is there: a file is made before its first row."""
        return any(path.stat().st_size for path in row_files(self.results))


class Turns:
    """The process of a build, which asks before every step."""

    def __init__(self, build: Build, groups: Sequence[Group], peak_tflops: float | None) -> None:
        self.build = build
        self._log = build.results / LOG
        self._log.parent.mkdir(parents=True, exist_ok=True)
        read_end, write_end = os.pipe()
        paths = [str(build.tree), *filter(None, [build.environment.get("PYTHONPATH")])]
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [*build.command, str(write_end)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=[write_end],
                cwd=build.tree,
                env={**os.environ, **build.environment, "PYTHONPATH": os.pathsep.join(paths)},
                text=True,
            )
        os.close(write_end)
        self._asks = os.fdopen(read_end)
        self._say(order(groups, build.results.absolute(), peak_tflops))

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it ended: ``asks`` tells how
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()

    def asks(self) -> Step | None:
        """Wait for the step that it asks for; None when it has come to its end.

        Raises:
            TurnError: that was no good end.
        """
        line = self._asks.readline()
        if line:
            group, step = json.loads(line)
            return group, step
        try:
            code = self._process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise TurnError(
                f"{self.build.name} says nothing more and does not end; its rows and {LOG}: {self.build.results}"
            ) from None
        if code in (EXIT_OK, SOME_FAILED):
            return None
        said = self._log.read_text(errors="replace").strip().splitlines()
        last = f": {said[-1]}" if said else ""
        raise TurnError(f"{self.build.name} gave up (exit code {code}){last}; its rows and {LOG}: {self.build.results}")

    def go(self) -> None:
        """It is its turn."""
        self._say("")

    def end(self) -> None:
        """End it, kindly if it reacts."""
        self._process.terminate()
        try:
            self._process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._asks.close()
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()


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

    A case that fails is recorded with its status, and the others go on. Interrupted, it leaves the rounds so far.

    Raises:
        TurnError: a build whose process gave up.
    """
    grown = [replace(group, timing=replace(group.timing, rounds=rounds)) for group in groups]
    with _running(builds, grown, peak_tflops) as turns:
        asked = [one.asks() for one in turns]
        while (number := whose(asked)) is not None:
            group, step = asked[number] or (0, 0)
            what = "prepares and checks" if step == SETUP else f"round {step + 1} of {rounds}"
            told(f"{grown[group].title}: {what}: {builds[number].name}")
            turns[number].go()
            asked[number] = turns[number].asks()


def whose(asked: Sequence[Step | None]) -> int | None:
    """Whose turn it is: who is behind, and in the same step the baseline in even rounds, else the other; None at the end."""
    live = [(step, number) for number, step in enumerate(asked) if step is not None]
    if not live:
        return None
    return min(live, key=lambda one: (one[0], one[1] != max(one[0][1], 0) % 2))[1]


@contextmanager
def _running(builds: Sequence[Build], groups: Sequence[Group], peak_tflops: float | None) -> Iterator[list[Turns]]:
    turns: list[Turns] = []
    try:
        for build in builds:
            turns.append(Turns(build, groups, peak_tflops))
        yield turns
    finally:
        for one in turns:
            one.end()
