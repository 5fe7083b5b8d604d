"""A worker, for tests: the strategy "ring" goes wrong on the second rank alone, in the way that ``STUMBLE`` says."""

import os
import signal
from multiprocessing.connection import Connection
from typing import Any

import torch

from context_parallel.runtime import ContextParallel
from harness import team, worker
from harness.resume import Planned

rank_alone = team._rank


def stumble(rank: int, planned: Planned, meet: str, said: Connection) -> None:
    attention, way = ContextParallel.attention, os.environ["STUMBLE"]

    def stumbling(self: ContextParallel, *tensors: torch.Tensor, **options: Any) -> Any:
        if self.strategy != "ring" or rank != 1:
            return attention(self, *tensors, **options)
        if way == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if way == "after":
            attention(self, *tensors, **options)
        raise MemoryError("there is no room on this rank")

    ContextParallel.attention = stumbling  # type: ignore[method-assign]
    team.GRACE_S = 1.0
    rank_alone(rank, planned, meet, said)


if __name__ == "__main__":
    team._rank = stumble
    worker.main()
