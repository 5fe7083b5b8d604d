"""The ranks that share a sequence: one process each, doing the same group step by step; the first one reports.

The worker starts them, passes on what the first reports, and ends them all when one dies. Every rank checks the whole
result and takes the same samples; a sample is the longest that any rank took, from a barrier on.

Every step ends with all ranks telling each other how it went (``TeamTimer.settle``): a competitor that fails on one rank has
failed on all. Where the others cannot be told, because they wait for that rank inside the step, the team is ended, and a new
one goes on without the competitor.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from harness.cases import Timing
from harness.measure import Report, run_group
from harness.overlap import turn_about
from harness.resume import Entry, Planned
from harness.timing import Call, Event, Timer

GRACE_S = 20.0
"""How long a rank that failed waits for the others to end the step."""

# A product of matrices that lasts at least _BUSY_S on any GPU of today, and how long a host is given at most.
_BUSY_SIZE, _BUSY_S, _LONGEST_S = 4096, 1e-4, 0.02


class TeamTimer(Timer):
    """Times calls that all ranks make together.

    Args:
        device, timing: as of one process. steps: where ranks tell each other how a step went, apart from the process group,
            in which others may be waiting. aside: says something to the worker, whatever the rank.
    """

    def __init__(self, device: str, timing: Timing, steps: dist.Store, aside: Report) -> None:
        super().__init__(device, timing)
        self._steps, self._aside, self._step = steps, aside, 0
        self._busy: torch.Tensor | None = None
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
        if self._busy is None:
            self._busy = torch.randn((_BUSY_SIZE, _BUSY_SIZE), device=self.device, dtype=torch.bfloat16)
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        for _ in range(1 + int(self._host_s / _BUSY_S)):
            self._busy @ self._busy
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


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent ends, however that ends."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def run_in_team(planned: Planned, report: Report) -> None:
    """Run a group on its ranks, with one competitor less, or one pass of it, for every team that is lost."""
    rounds = range(planned.group.timing.rounds)
    while planned.todo:
        watched = _Watched(report)
        lost = _run_once(planned, watched)
        for one in lost:
            report(**one)
            watched.done |= {(number, one["kernel"], pass_) for number in rounds for pass_ in one["passes"]}
        if not lost:
            return
        planned = planned.without(done=watched.done)


@dataclass
class _Watched:
    """Passes reports on, and remembers how far they are."""

    report: Report
    kernel: str | None = None
    phase: str = ""
    done: set[Entry] = field(default_factory=set)

    def take(self, event: Event) -> None:
        if event["event"] == "start":
            self.kernel, self.phase = event["kernel"], event["phase"]
        elif event["event"] == "round":
            self.done |= {(event["round"], entry["kernel"], entry["pass"]) for entry in event["entries"]}
        self.report(**event)


def _run_once(planned: Planned, watched: _Watched) -> list[Event]:
    """One team. Verdicts on what it was lost with, if it was: one competitor, or all where none had begun."""
    team = planned.group.team
    assert team is not None
    context = mp.get_context("spawn")
    # Where ranks find each other is in this process, and goes with it.
    meet = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    pipes = [context.Pipe(duplex=False) for _ in range(team.cp_degree)]
    ranks = [
        context.Process(target=_rank, args=(rank, planned, meet.port, os.getpid(), said), daemon=True)
        for rank, (_, said) in enumerate(pipes)
    ]
    for process in ranks:
        process.start()
    for _, said in pipes:
        said.close()
    try:
        stuck = _listen([heard for heard, _ in pipes], watched)
        died = None if stuck is not None else _first_to_die(ranks)
    finally:
        for process in ranks:
            process.kill()
        for process in ranks:
            process.join()  # their memory on the GPU is free then
    if stuck is not None:
        return [stuck]
    if died is None:
        return []
    when = watched.phase or "the start"
    crash = {"event": "verdict", "status": "crash", "passes": list(planned.group.passes)}
    crash["reason"] = f"rank {died[0]} of {team.cp_degree} {died[1]} during {when}"
    return [crash | {"kernel": kernel} for kernel in ([watched.kernel] if watched.kernel else planned.kernels)]


def _listen(pipes: list[Connection], watched: _Watched) -> Event | None:
    """Until a rank has no more to say, because it is through or dead; the verdict of one that waits for the others in vain."""
    first = pipes[0]
    while True:
        ready = wait(pipes)
        # Before anyone else is heard: what the first said, it said before the others were through or stuck.
        while first.poll():
            try:
                event = first.recv()
            except EOFError:
                return None
            if event["event"] == "out_of_step":
                return event | {"event": "verdict"}
            watched.take(event)
        for pipe in pipes[1:]:
            if pipe in ready:
                try:
                    return pipe.recv() | {"event": "verdict"}
                except EOFError:
                    return None


def _first_to_die(ranks: Sequence[BaseProcess]) -> tuple[int, str] | None:
    """The rank that ended badly, and how, as soon as one has; None when all are through."""
    left = dict(enumerate(ranks))
    while left:
        wait([process.sentinel for process in left.values()])
        for rank, process in list(left.items()):
            if process.exitcode is None:
                continue
            if process.exitcode:
                code = process.exitcode
                return rank, f"died of signal {-code}" if code < 0 else f"ended with exit code {code}"
            del left[rank]
    return None


def _rank(rank: int, planned: Planned, port: int, worker: int, reports: Connection) -> None:
    die_with_parent()
    if os.getppid() != worker:
        os._exit(1)  # it died before it could be asked for
    group, team = planned.group, planned.group.team
    assert team is not None
    device = None
    if group.device == "cuda":
        device = torch.device("cuda", rank)
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // team.cp_degree))
    torch.backends.cuda.matmul.allow_tf32 = False
    meet = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group(
        "gloo" if group.device == "cpu" else "nccl",
        store=dist.PrefixStore("group", meet),
        rank=rank,
        world_size=team.cp_degree,
        timeout=timedelta(seconds=group.timing.timeout_s),
        device_id=device,
    )

    def say(**event: Any) -> None:
        reports.send(event)

    timer = TeamTimer(group.device, group.timing, dist.PrefixStore("steps", meet), say)
    run_group(planned, timer, say if rank == 0 else _silent)
    dist.barrier()  # nobody leaves while others still listen to it
    reports.close()
    # All is said. Taking the group and the interpreter down one thread at a time has ended in an abort on a busy machine.
    os._exit(0)


def _silent(**event: Any) -> None:
    pass
