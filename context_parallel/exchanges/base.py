"""What an exchange is: stages of messages that are started together and waited for one by one.

A strategy says who sends what to whom. An exchange carries it: over torch.distributed (``messages``), by copies between GPUs
that read each other's memory (``symmetric``), or not at all, when only the computation is to be timed (``present``).

On a GPU nothing here waits for the host. ``start`` takes what the current stream has computed so far and goes on beside it;
``Pending.wait`` puts the current stream behind what has arrived.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor


@dataclass(frozen=True)
class Send:
    """A message that leaves.

    Args:
        target: rank.
        tokens: makes the message, contiguous, at least one token; called when the exchange is ready for it.
        at: tokens that the sender's earlier messages of the same start hold, as all ranks know it from the plan.
    """

    target: int
    tokens: Callable[[], Tensor]
    at: int = 0


@dataclass(frozen=True)
class Receive:
    """A message that comes.

    Args:
        source: rank.
        into: contiguous, filled with it; not to be read or written until it was waited for.
        at: as the sender's.
    """

    source: int
    into: Tensor
    at: int = 0


@dataclass(frozen=True)
class Stage:
    """Messages that are waited for together."""

    sends: Sequence[Send] = ()
    receives: Sequence[Receive] = ()


class Pending(Protocol):
    """A stage under way. It keeps its tensors alive."""

    def wait(self) -> None:
        """Until all of it is done (on a GPU: until the current stream is behind it).

        Raises:
            ExchangeError: names this rank and its peers.
        """


class Exchange(ABC):
    """One way of carrying messages between the ranks of a group."""

    name: str

    @abstractmethod
    def refusal(self, device: torch.device) -> str | None:
        """Why tensors on that device cannot be carried, or None. Asks nobody else."""

    @abstractmethod
    def start(self, stages: Sequence[Stage], room: int = 0) -> list[Pending]:
        """Begins stages that follow each other. Every rank of the group calls it, in the same order, also without messages.

        Args:
            stages: each rank's own messages; a message that one rank sends another receives in the same stage.
            room: bytes of all messages of the rank that sends most in this start; the same on every rank.
        """

    def begin(self, phase: str) -> None:  # noqa: B027 - most exchanges have nothing to do here
        """A ``forward`` or a ``backward`` pass begins; what follows is the same sequence of calls every time."""

    def empty(self, like: Tensor, shape: Sequence[int], dtype: torch.dtype | None = None) -> Tensor:
        """Memory to receive in: contiguous, uninitialised, on the device of ``like`` and of its dtype unless one is given."""
        return like.new_empty(tuple(shape), dtype=dtype)


class Beside:
    """A stream of one's own on a GPU, on which messages are made and sent while the current stream computes.

    Tensors that are made on it may be freed once the current stream has waited for the exchange that used them: the next
    use of their memory is on this stream again, and ``after_current`` puts it behind the current stream first.
    """

    def __init__(self) -> None:
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    @contextmanager
    def after_current(self, device: torch.device) -> Iterator[None]:
        """Work goes to the stream, behind what the current one has so far; on a CPU it just goes on."""
        with self._entered(device):
            yield

    def _entered(self, device: torch.device) -> Any:
        if device.type != "cuda":
            return nullcontext()
        if device not in self._streams:
            # Before the computation where both could run: what is sent late arrives late.
            self._streams[device] = torch.cuda.Stream(device, priority=-1)
        stream = self._streams[device]
        stream.wait_stream(torch.cuda.current_stream(device))
        return torch.cuda.stream(stream)
