"""Processes of one group, one a rank, for tests of what runs in several of them: over gloo, or NCCL with a GPU each."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn


def run_ranks(
    function: Callable[..., None], ranks: int, folder: Path, *args: object, timeout: float = 60, backend: str = "gloo"
) -> None:
    """Calls ``function(rank, *args)`` in so many processes of one group; raises what the first of them raises.

    Args:
        function: of a module, so that the processes find it.
        ranks: number of processes.
        folder: empty, where they meet.
        timeout: seconds after which an unanswered exchange fails.
        backend: ``gloo``, or ``nccl``: then each process has the GPU of its rank.
    """
    spawn(_start, args=(ranks, str(folder / "meet"), timeout, backend, function, args), nprocs=ranks, join=True)


def _start(
    rank: int, ranks: int, meet: str, timeout: float, backend: str, function: Callable[..., None], args: tuple[object, ...]
) -> None:
    torch.set_num_threads(1)
    wait = timedelta(seconds=timeout)
    if backend == "nccl":
        torch.cuda.set_device(rank)
    dist.init_process_group(backend, init_method=f"file://{meet}", rank=rank, world_size=ranks, timeout=wait)
    function(rank, *args)
    # Taking group and interpreter down one thread at a time has ended in an abort on a busy machine.
    sys.stdout.flush()
    os._exit(0)
