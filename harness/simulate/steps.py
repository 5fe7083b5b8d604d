"""Steps that wait for other steps: what ranks do, before anybody knows when. Milliseconds and bytes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

COMPUTE, EXCHANGE = "compute", "exchange"
"""What a step belongs to: attention and its sums; moving keys and gradients, packing and adding them up."""


@dataclass(frozen=True)
class Lane:
    """A way through the ports: what a transfer reaches alone (bytes a millisecond), and what computing reaches beside it."""

    bytes_per_ms: float
    beside: float
    network: bool


@dataclass(frozen=True)
class Step:
    """One thing that happens once all of ``after`` have happened.

    rank: whose it is; of a transfer, the receiver. kind: one of the two above. label: for the timeline.
    work: milliseconds at full speed, of the rank's processors. delay: milliseconds that pass whatever else happens.
    lane, source, amount: of a transfer: its bytes from ``source`` to ``rank``, after ``delay``.
    """

    rank: int
    kind: str
    label: str
    after: tuple[int, ...]
    work: float = 0.0
    delay: float = 0.0
    lane: Lane | None = None
    source: int = -1
    amount: float = 0.0


@dataclass
class Steps:
    """What all ranks do, in any order that names steps before they are waited for."""

    ranks: int
    steps: list[Step] = field(default_factory=list)

    def work(self, rank: int, kind: str, label: str, milliseconds: float, after: Iterable[int] = ()) -> int:
        """The rank computes; returns the step's number."""
        return self._add(Step(rank, kind, label, tuple(after), work=milliseconds))

    def delay(self, rank: int, kind: str, label: str, milliseconds: float, after: Iterable[int] = ()) -> int:
        """Time passes."""
        return self._add(Step(rank, kind, label, tuple(after), delay=milliseconds))

    def send(self, source: int, target: int, lane: Lane, label: str, amount: float, delay: float, after: Iterable[int]) -> int:
        """Bytes travel, after a delay."""
        return self._add(Step(target, EXCHANGE, label, tuple(after), delay=delay, lane=lane, source=source, amount=amount))

    def _add(self, step: Step) -> int:
        self.steps.append(step)
        return len(self.steps) - 1

    def only(self, kind: str) -> Steps:
        """The same order of steps, where all but one kind take no time: the keys are there already, or nobody computes."""
        kept = [step if step.kind == kind else Step(step.rank, step.kind, step.label, step.after) for step in self.steps]
        return Steps(self.ranks, kept)


@dataclass(frozen=True)
class Times:
    """Begin and end of every step, milliseconds, float64 ``[steps]``. A transfer begins when its first byte moves."""

    begin: np.ndarray
    end: np.ndarray

    @property
    def total(self) -> float:
        """When everything is done."""
        return float(self.end.max(initial=0.0))
