"""The ranks that share a sequence: one process each, doing the same group step by step; the first one reports.

The worker starts them, passes on what the first reports, and ends them all when one dies. Every rank checks the whole
result and takes the same samples; a sample is the longest that any rank took, from a barrier on.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from harness.resume import Planned
from harness.timing import Call, Timer
from harness.worker import Report, die_with_parent, run_group


class TeamTimer(Timer):
    """Times calls that all ranks make together."""

    def measure(self, call: Call, count: int) -> list[float]:
        """``count`` samples, milliseconds: each the longest of all ranks. The same on every rank."""
        return [max(self.by_rank(call)) for _ in range(count)]

    def by_rank(self, call: Call) -> list[float]:
        """Milliseconds of one call on every rank, from a barrier on. The same on every rank."""
        dist.barrier()
        mine = torch.tensor(super().measure(call, 1), dtype=torch.float64, device=self.device)
        samples = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(samples, mine)
        return torch.cat(samples).tolist()


def run_in_team(planned: Planned, report: Report) -> None:
    """Run a group on its ranks.

    Raises:
        RuntimeError: a rank died or failed in a way that is no verdict; all others are ended.
    """
    team = planned.group.team
    assert team is not None
    context = mp.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        ends = context.Pipe(duplex=False)
        ranks = [
            context.Process(target=_rank, args=(rank, planned, str(Path(folder) / "meet"), ends[1]), daemon=True)
            for rank in range(team.cp_degree)
        ]
        for process in ranks:
            process.start()
        ends[1].close()
        try:
            _pass_on(ends[0], report)
            for rank, process in enumerate(ranks):
                process.join()
                if process.exitcode:
                    raise RuntimeError(f"rank {rank} of {team.cp_degree} ended with exit code {process.exitcode}")
        finally:
            for process in ranks:
                process.kill()


def _pass_on(reports: Connection, report: Report) -> None:
    """Until the first rank has no more to say."""
    while True:
        try:
            event = reports.recv()
        except EOFError:
            return
        report(**event)


def _rank(rank: int, planned: Planned, meet: str, reports: Connection) -> None:
    die_with_parent()
    group, team = planned.group, planned.group.team
    assert team is not None
    device = None
    if group.device == "cuda":
        device = torch.device("cuda", rank)
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // team.cp_degree))
    torch.backends.cuda.matmul.allow_tf32 = False
    dist.init_process_group(
        "gloo" if group.device == "cpu" else "nccl",
        init_method=f"file://{meet}",
        rank=rank,
        world_size=team.cp_degree,
        timeout=timedelta(seconds=group.timing.timeout_s),
        device_id=device,
    )
    say: Callable[..., None] = (lambda **event: reports.send(event)) if rank == 0 else _silent
    run_group(planned, TeamTimer(group.device, group.timing), say)
    dist.barrier()  # nobody leaves while others still listen to it
    reports.close()
    # All is said. Taking the group and the interpreter down one thread at a time has ended in an abort on a busy machine.
    os._exit(0)


def _silent(**event: Any) -> None:
    pass
