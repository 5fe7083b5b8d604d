"""Messages of torch.distributed, over gloo or NCCL: every stage is one group of sends and receives.

Stages are issued at once and in order, before the computation that hides them. NCCL runs them on a stream of its own, and
its kernels take a few SMs for as long as a stage is under way; what is issued first gets them first. Messages are packed on a
stream beside the computation, so that attention to local keys does not wait for that either.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from context_parallel.exchanges.base import Beside, Exchange, Pending, Stage
from context_parallel.group import Group


class Messages(Exchange):
    """Send and receive between the ranks of a group.

    Args:
        group: the ranks.
        backend: what must carry it, ``gloo`` or ``nccl``; None: whichever the group has for the tensors.
    """

    def __init__(self, group: Group, backend: str | None = None) -> None:
        self.name = backend or "auto"
        self._group, self._backend = group, backend
        self._beside = Beside()

    def refusal(self, device: torch.device) -> str | None:
        """The group has no backend for the device, or not the one that was asked for."""
        return self._group.cannot_carry(device, self._backend)

    def start(self, stages: Sequence[Stage], room: int = 0) -> list[Pending]:
        """One group of sends and receives a stage."""
        return [self._start(stage) for stage in stages]

    def _start(self, stage: Stage) -> Pending:
        if not stage.sends and not stage.receives:
            return self._group.start([], [])
        receives = [(one.source, one.into) for one in stage.receives]
        device = receives[0][1].device if receives else self._group.device
        with self._beside.after_current(device):
            return self._group.start([(one.target, one.tokens()) for one in stage.sends], receives)
