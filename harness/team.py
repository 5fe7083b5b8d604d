"""The ranks that share a sequence: one process each, doing the same group step by step; the first one reports.

The worker starts them, passes on what the first reports, and ends them all when one dies. Every rank checks the whole
result and takes the same samples.

Every step ends with all ranks telling each other how it went (``harness.team_timer``): a competitor that fails on one rank has
failed on all. Where the others cannot be told, because they wait for that rank inside the step, the team is ended, and a new
one goes on without the competitor.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from harness.measure import Report, run_group
from harness.resume import Entry, Planned
from harness.team_timer import TeamTimer
from harness.timing import Event


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
