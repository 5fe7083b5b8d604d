"""Spans of a simulated run, for a figure: what every rank did when."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from harness.simulate.model import Simulation
from harness.simulate.steps import COMPUTE

LANES = ("attention", "copies and sums", "from its node", "from other nodes")


def spans(run: Simulation) -> list[dict[str, Any]]:
    """``{rank, lane, begin_ms, end_ms}``, by rank, lane and time; what overlaps within a lane is one span.

    A rank's transfers are those that it receives. What only waits has no span.
    """
    found: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    for step, begin, end in zip(run.steps.steps, run.times.begin.tolist(), run.times.end.tolist(), strict=True):
        if end <= begin or (step.lane is None and not step.work):
            continue
        lane = (3 if step.lane.network else 2) if step.lane is not None else 0 if step.kind == COMPUTE else 1
        found[step.rank, lane].append((begin, end))
    return [
        {"rank": rank, "lane": LANES[lane], "begin_ms": begin, "end_ms": end}
        for rank, lane in sorted(found)
        for begin, end in _joined(sorted(found[rank, lane]))
    ]


def _joined(parts: list[tuple[float, float]]) -> list[tuple[float, float]]:
    joined = [parts[0]]
    for begin, end in parts[1:]:
        if begin <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((begin, end))
    return joined
