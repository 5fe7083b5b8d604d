"""A worker, for tests: something goes wrong on the second rank alone, in the way that ``STUMBLE`` says.

before, after, die: with the strategy "ring", before or after its exchange. round, round_die: when its backward pass is timed.
start: the rank itself, as soon as it is there.
"""

import os
import signal
from multiprocessing.connection import Connection
from typing import Any

import torch

from context_parallel.runtime import ContextParallel
from harness import measure, team, team_timer, worker
from harness.device import ClockSampler
from harness.resume import Planned
from harness.timing import Timer

rank_alone = team._rank


def stumble(rank: int, planned: Planned, port: int, parent: int, said: Connection) -> None:
    attention, way = ContextParallel.attention, os.environ["STUMBLE"]

    def stumbling(self: ContextParallel, *tensors: torch.Tensor, **options: Any) -> Any:
        if self.strategy != "ring" or rank != 1 or way not in ("before", "after", "die"):
            return attention(self, *tensors, **options)
        if way == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if way == "after":
            attention(self, *tensors, **options)
        raise MemoryError("there is no room on this rank")

    def stumbling_round(timer: Timer, competitor: measure.Competitor, pass_: str, clocks: ClockSampler) -> Any:
        if (rank, competitor.name, pass_) == (1, "reference/ring", "backward"):
            if way == "round_die":
                os.kill(os.getpid(), signal.SIGKILL)
            if way == "round":
                raise MemoryError("there is no room on this rank")
        return one_round(timer, competitor, pass_, clocks)

    if rank == 1 and way == "start":
        os._exit(3)
    one_round, measure._round = measure._round, stumbling_round
    ContextParallel.attention = stumbling  # type: ignore[method-assign]
    team_timer.GRACE_S = 1.0
    rank_alone(rank, planned, port, parent, said)


if __name__ == "__main__":
    team._rank = stumble
    worker.main()
