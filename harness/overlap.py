"""How much of an exchange hides behind the computation: one plan, run whole and in its two halves, turn about.

Beside the whole call a strategy offers it with all keys there already (``comp``) and with nothing computed (``comm``), and
the bytes it moves as plain messages (``bare``). Each iteration takes all of them once, so a drift of the machine hits them
alike, and a sample is the longest of all ranks. What follows from them is ``plots.ranks``; nothing is judged here.
"""

from __future__ import annotations

import statistics
from typing import Any, Protocol

from harness.timing import Call


class RankTimer(Protocol):
    """What times one call on all ranks."""

    def samples_for(self, seconds: float) -> int:
        """How many samples a round takes of a call that lasts ``seconds``."""

    def once(self, call: Call) -> float:
        """Milliseconds of one call, of the slowest rank."""

    def by_rank(self, call: Call) -> list[float]:
        """Milliseconds of one call on every rank."""


def turn_about(timer: RankTimer, whole: Call, alone: dict[str, Call]) -> dict[str, Any]:
    """A round: warm-ups, then all calls once an iteration.

    Args:
        timer: of this rank; all ranks call this together.
        whole: the call itself. alone: parts of it: ``comp``, ``comm``, ``bare``.

    Returns:
        The fields of a row: ``samples_ms`` and ``<part>_samples_ms``, and in ``ranks`` the medians by rank.
    """
    count = timer.samples_for(timer.once(whole) / 1000)
    for call in alone.values():
        timer.once(call)
    calls = {"full": whole, **alone}
    taken: dict[str, list[list[float]]] = {name: [] for name in calls}
    for _ in range(count):
        for name, call in calls.items():
            taken[name].append(timer.by_rank(call))
    fields: dict[str, Any] = {}
    ranks: dict[str, list[float]] = {}
    for name, samples in taken.items():
        fields["samples_ms" if name == "full" else f"{name}_samples_ms"] = [round(max(one), 6) for one in samples]
        if name != "bare":
            ranks[f"{name}_ms"] = [round(statistics.median(of_rank), 6) for of_rank in zip(*samples, strict=True)]
    return fields | {"ranks": ranks}
