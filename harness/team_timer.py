"""The timer of ranks that share a sequence: a sample is the longest that any of them took, and each step ends for all alike.

Every rank has one, and all call it together. What the ranks are and who starts them is ``harness.team``.
"""

from __future__ import annotations

import json
import signal
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from harness.cases import Timing
from harness.measure import Report
from harness.overlap import turn_about
from harness.timing import Call, Event, Timer

GRACE_S = 20.0
"""How long a rank that failed waits for the others to end the step."""

# How long a host is given at most.
_LONGEST_S = 0.02


class TeamTimer(Timer):
    """Times calls that all ranks make together.

    Args:
        device, timing: as of one process. steps: where ranks tell each other how a step went, apart from the process group,
            in which others may be waiting. aside: says something to the worker, whatever the rank.
    """

    def __init__(self, device: str, timing: Timing, steps: dist.Store, aside: Report) -> None:
        super().__init__(device, timing)
        self._steps, self._aside, self._step = steps, aside, 0
        self._host_s = _LONGEST_S  # what the host needed for the last call

    def measure(self, call: Call, count: int) -> list[float]:
        """``count`` samples, milliseconds: each the longest of all ranks. The same on every rank."""
        return [max(self.by_rank(call)) for _ in range(count)]

    def by_rank(self, call: Call) -> list[float]:
        """Milliseconds of one call on every rank, from a moment on at which all are there. The same on every rank."""
        dist.barrier()
        taken = super().measure(call, 1) if self.device == "cpu" else [self._from_one_moment(call)]
        mine = torch.tensor(taken, dtype=torch.float64, device=self.device)
        samples = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(samples, mine)
        return torch.cat(samples).tolist()

    def _from_one_moment(self, call: Call) -> float:
        """The GPUs multiply matrices while hosts issue the call, which is then no part of it, as with many samples in a row.
        They begin together, behind a sum over all ranks, since hosts are not that punctual."""
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        self.occupy(self._host_s)
        self.flush()
        dist.all_reduce(torch.zeros(1, device=self.device))
        begin.record()
        start = time.perf_counter()
        result = call()
        spent = time.perf_counter() - start
        end.record()
        torch.cuda.synchronize()
        del result
        # Of the next call, which may be another one; a call that compiles is no measure.
        self._host_s = min(max(spent, 0.9 * self._host_s), _LONGEST_S)
        return begin.elapsed_time(end)

    def round_of(self, whole: Call, parts: dict[str, Call]) -> Event:
        """As of one process; with parts, all of them turn about."""
        return turn_about(self, whole, parts) if parts else super().round_of(whole, parts)

    def settle(self, event: Event | None) -> Event | None:
        """This rank's verdict on the step, else that of the first rank that has one. Does not return where the others do not
        come to the end of a step in which this rank failed: the worker is told and ends them all."""
        rank, ranks = dist.get_rank(), dist.get_world_size()
        step, self._step = self._step, self._step + 1
        self._steps.set(f"{step}/{rank}", json.dumps(event))
        patience = self.timing.timeout_s
        if event is not None:
            patience = min(GRACE_S, patience / 4)  # the worker's own patience must not end first
        try:
            self._steps.wait([f"{step}/{other}" for other in range(ranks)], timedelta(seconds=patience))
        except RuntimeError:
            if event is None:
                raise
            self._aside(**_of_rank(event, rank, ranks) | {"event": "out_of_step"})
            signal.pause()
        if event is not None:
            return event
        told = [json.loads(self._steps.get(f"{step}/{other}")) for other in range(ranks)]
        return next((_of_rank(theirs, other, ranks) for other, theirs in enumerate(told) if theirs is not None), None)


def _of_rank(verdict: Event, rank: int, ranks: int) -> Event:
    return verdict | {"reason": f"rank {rank} of {ranks}: {verdict['reason']}"}
