"""An exchange that sends nothing because everything is there already: for timing the computation alone.

The first pass of a kind is carried by the real exchange, and the memory that it received in is kept. Every later one gets
the same memory, with what arrived then still in it, and waits for nothing. So shapes, values and order are those of the real
run, and no message is packed. For measuring only: inputs that change meanwhile are not noticed.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from context_parallel.exchanges.base import Exchange, Pending, Stage


class Arrived:
    """A stage that needs no waiting."""

    def wait(self) -> None:
        """At once."""


class Present(Exchange):
    """What ``carrier`` brought once, again and again.

    Args:
        carrier: the real exchange. The first forward and the first backward pass go through it, on all ranks.
    """

    name = "present"

    def __init__(self, carrier: Exchange) -> None:
        self._carrier = carrier
        self._kept: dict[str, list[Tensor]] = {}
        self._memory: list[Tensor] = []
        self._again = False
        self._next = 0

    def refusal(self, device: torch.device) -> str | None:
        """As the carrier."""
        return self._carrier.refusal(device)

    def begin(self, phase: str) -> None:
        """The first time of a phase is carried and kept."""
        self._again = phase in self._kept
        self._memory = self._kept.setdefault(phase, [])
        self._next = 0

    def empty(self, like: Tensor, shape: Sequence[int], dtype: torch.dtype | None = None) -> Tensor:
        """New memory the first time, afterwards the same with what it holds."""
        if not self._again:
            self._memory.append(self._carrier.empty(like, shape, dtype))
            return self._memory[-1]
        kept = self._memory[self._next]
        self._next += 1
        if kept.shape != tuple(shape):
            raise RuntimeError(f"the pass that was kept received {tuple(kept.shape)} here, this one asks for {tuple(shape)}")
        # With a count of writes of its own: the last pass may have saved this memory, and what is written is the same.
        return kept.data

    def start(self, stages: Sequence[Stage], room: int = 0) -> list[Pending]:
        """Carried the first time."""
        return [Arrived() for _ in stages] if self._again else self._carrier.start(stages, room)
