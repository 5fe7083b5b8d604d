"""Messages inside a node by copies: every rank reads what it needs out of its peers' memory, and no SM works for it.

Each rank has an outbox in torch's symmetric memory, which all GPUs of the node can read. One ``start`` is one epoch, and all
of it is issued on a stream beside the computation, in this order:

1. wait until the readers of the epoch before last are done: the outbox has two halves, used in turn;
2. pack all messages into this epoch's half, and tell each target that they are there;
3. wait until each source has said the same;
4. copy stage by stage out of the sources' outboxes (the copy engines do it), an event after each stage;
5. tell each source that its outbox was read.

A flag is set by one rank and cleared by the one that waits for it, and each pair has one for *there* and one for *read* in
each half. No epoch waits for more than epochs before it and for steps 1 and 2 of its peers, so none can wait for itself. A
flag is not set twice: *there* of an epoch follows *read* of the epoch before last, which the setter has waited for.

Packing and flags are small kernels and run before the attention that hides the copies; the copies need nothing but the
engines. Checked on two H200s, and not measured yet; its order is also tested with memory shared by threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from context_parallel.exchanges.base import Beside, Exchange, Pending, Stage
from context_parallel.group import ExchangeError, Group

HALVES = 2
SMALLEST = 1 << 20
"""Bytes of half an outbox at least: growing it waits for all GPUs."""


class Shared(Protocol):
    """What is used of torch's handle of symmetric memory."""

    def get_buffer(self, rank: int, sizes: Any, dtype: torch.dtype, storage_offset: int) -> Tensor:
        """A rank's memory from an offset on, in elements of the dtype."""

    def put_signal(self, dst_rank: int, channel: int, timeout_ms: int) -> None:
        """Sets the flag that the other rank waits for, once it is clear."""

    def wait_signal(self, src_rank: int, channel: int, timeout_ms: int) -> None:
        """Waits for the flag that the other rank sets, and clears it."""


class Arrival:
    """A stage on its way by copies."""

    def __init__(self, event: torch.cuda.Event | None, tensors: list[Tensor]) -> None:
        self._event, self._tensors = event, tensors

    def wait(self) -> None:
        """Puts the current stream behind the copies."""
        if self._event is not None:
            torch.cuda.current_stream().wait_event(self._event)
        self._tensors = []


class Symmetric(Exchange):
    """Copies between the GPUs of one node.

    Args:
        group: the ranks, all of one node.
    """

    name = "symmetric"

    def __init__(self, group: Group) -> None:
        self._group, self._beside = group, Beside()
        self._shared: Shared | None = None
        self._half_bytes, self._epoch = 0, 0
        self._readers: list[list[int]] = [[] for _ in range(HALVES)]

    def refusal(self, device: torch.device) -> str | None:
        """No GPU, a torch without symmetric memory, a GPU that cannot read another one of this node."""
        if self._group.size == 1:
            return None
        instead = "allowed: exchange='nccl', or auto"
        if device.type != "cuda":
            return f"exchange is 'symmetric', which copies between GPUs, and the tensors are on {device}; allowed: auto"
        reason = _torch_lacks()
        if reason is not None:
            return f"exchange is 'symmetric', but {reason}; {instead}"
        own = torch.cuda.current_device() if device.index is None else device.index
        others = [other for other in range(torch.cuda.device_count()) if other != own]
        apart = [other for other in others if not torch.cuda.can_device_access_peer(own, other)]
        if apart:
            return f"exchange is 'symmetric', but GPU {own} has no peer access to GPU {apart[0]}; {instead}"
        return self._group.cannot_carry(device)

    def start(self, stages: Sequence[Stage], room: int = 0) -> list[Pending]:
        """One epoch; see the top of this file."""
        if room == 0:
            return [Arrival(None, []) for _ in stages]
        device = self._group.device
        if room > self._half_bytes:
            self._grow(room, device)
        half = self._epoch % HALVES
        self._epoch += 1
        there, read = half, HALVES + half
        targets = _once(one.target for stage in stages for one in stage.sends)
        sources = _once(one.source for stage in stages for one in stage.receives)
        with self._beside.after_current(device):
            for rank in self._readers[half]:
                self._wait(rank, read)
            self._readers[half] = targets
            kept: list[list[Tensor]] = []  # until they are waited for: their memory may be another stream's
            for stage in stages:
                kept.append([send.tokens() for send in stage.sends])
                for send, tokens in zip(stage.sends, kept[-1], strict=True):
                    self._outbox(self._group.rank, half, tokens, send.at).copy_(tokens)
            for rank in targets:
                self._put(rank, there)
            for rank in sources:
                self._wait(rank, there)
            arrivals: list[Pending] = []
            for stage, sent in zip(stages, kept, strict=True):
                for one in stage.receives:
                    one.into.copy_(self._outbox(one.source, half, one.into, one.at))
                event = torch.cuda.current_stream(device).record_event() if device.type == "cuda" else None
                arrivals.append(Arrival(event, [*sent, *(one.into for one in stage.receives)]))
            for rank in sources:
                self._put(rank, read)
        return arrivals

    def _outbox(self, rank: int, half: int, tokens: Tensor, at: int) -> Tensor:
        """Where a message lies in a rank's outbox: ``at`` tokens of its size into the half."""
        assert self._shared is not None
        first = half * self._half_bytes // tokens.element_size() + at * (tokens.numel() // len(tokens))
        return self._shared.get_buffer(rank, tuple(tokens.shape), tokens.dtype, first)

    def _put(self, rank: int, channel: int) -> None:
        assert self._shared is not None
        self._shared.put_signal(rank, channel, self._group.timeout_ms)

    def _wait(self, rank: int, channel: int) -> None:
        assert self._shared is not None
        self._shared.wait_signal(rank, channel, self._group.timeout_ms)

    def _grow(self, room: int, device: torch.device) -> None:
        """A larger outbox: all ranks come here at the same start, since ``room`` is the same on all of them."""
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # what this rank reads and writes in the old one is done; so it is for all, below
        self._half_bytes = max(SMALLEST, 1 << (room - 1).bit_length())
        try:
            self._shared = self._rendezvous(HALVES * self._half_bytes, device)
        except RuntimeError as error:
            who, size = f"rank {self._group.rank} of {self._group.size}", HALVES * self._half_bytes
            raise ExchangeError(
                f"{who}: sharing {size} bytes with the GPUs of the node failed: {error}; exchange='nccl' shares none"
            ) from error
        self._readers = [[] for _ in range(HALVES)]  # new flags, all clear

    def _rendezvous(self, size: int, device: torch.device) -> Shared:
        """Symmetric memory of all ranks, its flags clear. Returns when every rank has come."""
        import torch.distributed._symmetric_memory as symmetric_memory

        assert self._group.process_group is not None
        memory = symmetric_memory.empty(size, dtype=torch.uint8, device=device)
        shared: Any = symmetric_memory.rendezvous(memory, self._group.process_group)
        return shared


def _torch_lacks() -> str | None:
    """What this torch does not have, or None."""
    try:
        import torch.distributed._symmetric_memory as symmetric_memory
        from torch._C._distributed_c10d import _SymmetricMemory
    except ImportError:
        return f"torch {torch.__version__} has no symmetric memory"
    missing = [name for name in ("empty", "rendezvous") if not hasattr(symmetric_memory, name)]
    missing += [name for name in ("get_buffer", "put_signal", "wait_signal") if not hasattr(_SymmetricMemory, name)]
    return f"the symmetric memory of torch {torch.__version__} has no {', '.join(missing)}" if missing else None


def _once(ranks: Any) -> list[int]:
    return sorted(set(ranks))
