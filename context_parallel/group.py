"""What the runtime asks of torch.distributed: ranks of a group, one grouped exchange, words that everybody hears.

All ranks here are ranks *of the group*, never global ones: the two are the same only while the group is everybody. A group
of one needs no process group and never communicates.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.constants import default_pg_timeout
from torch.distributed.device_mesh import DeviceMesh

BACKENDS = ("gloo", "nccl")


class ContextParallelError(ValueError):
    """What a rank was given does not fit, or the ranks do not fit together: says what was given and what is allowed."""


class ExchangeError(RuntimeError):
    """An exchange that did not come to its end: a peer that died, hangs or was given something else."""


@contextmanager
def _named(what: str) -> Iterator[None]:
    """Says of an error in torch.distributed which rank did what."""
    try:
        yield
    except RuntimeError as error:
        raise ExchangeError(f"{what} failed: {error}") from error


class Pending:
    """An exchange under way. It keeps the tensors alive; :meth:`wait` before what was received is read."""

    def __init__(self, works: list[Any], tensors: list[Tensor], what: str) -> None:
        self._works, self._tensors, self._what = works, tensors, what

    def wait(self) -> None:
        """Until all of it is done (on a GPU: until the current stream is behind it).

        Raises:
            ExchangeError: names this rank and its peers.
        """
        with _named(self._what):
            for work in self._works:
                work.wait()
        self._works, self._tensors = [], []


class Group:
    """The ranks of one context-parallel group, as this process sees them.

    Args:
        group: a process group that this process is in, or a DeviceMesh of one dimension. None: the default process group,
            and without one this process alone.

    Raises:
        ContextParallelError: a group that this process is not in, a mesh of several dimensions, several processes and no
            process group.
    """

    def __init__(self, group: dist.ProcessGroup | DeviceMesh | None = None) -> None:
        if isinstance(group, DeviceMesh):
            if group.ndim != 1:
                raise ContextParallelError(
                    f"the mesh has dimensions {group.mesh_dim_names or group.ndim}; give the one of context parallelism, "
                    "as in mesh['cp']"
                )
            group = group.get_group()
        if group is None and dist.is_initialized():
            group = dist.group.WORLD
        if group is None and int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise ContextParallelError(
                f"WORLD_SIZE is {os.environ['WORLD_SIZE']} and there is no process group: call "
                "torch.distributed.init_process_group first"
            )
        self.process_group = group
        self.rank = 0 if group is None else dist.get_rank(group)
        self.size = 1 if group is None else dist.get_world_size(group)
        if self.rank < 0:
            raise ContextParallelError("this process is not in the given group; only its members take part")
        #: Backend by type of device.
        self._backends: dict[str, str] = {}
        if group is not None:
            pairs = (pair.partition(":") for pair in str(dist.get_backend_config(group)).split(","))
            self._backends.update((device, backend) for device, _, backend in pairs)

    @property
    def device(self) -> torch.device:
        """Where a rank without a message of its own would have its tensors: the GPU in use, or the CPU."""
        if "cuda" in self._backends and torch.cuda.is_available():
            return torch.device("cuda", torch.cuda.current_device())
        return torch.device("cpu")

    @property
    def timeout_ms(self) -> int:
        """How long an exchange may take before it counts as failed."""
        backend = self.process_group._get_backend(self.device) if self.process_group is not None else None
        wait = getattr(getattr(backend, "options", None), "_timeout", default_pg_timeout)
        return int(wait.total_seconds() * 1000)

    def cannot_carry(self, device: torch.device, wanted: str | None = None) -> str | None:
        """Why the group cannot carry tensors on a device by the wanted backend (None: by any), or None if it can."""
        if self.size == 1:
            return None
        backend = self._backends.get(device.type)
        if backend is None:
            shown = ", ".join(f"{name} for {where}" for where, name in self._backends.items())
            return f"the tensors are on {device}; the group has {shown}"
        if wanted not in (None, backend):
            return (
                f"exchange is {wanted!r}, the group carries tensors on {device} by {backend}; allowed: "
                f"exchange={backend!r}, or a group of the {wanted} backend"
            )
        return None

    def start(self, sends: Sequence[tuple[int, Tensor]], receives: Sequence[tuple[int, Tensor]]) -> Pending:
        """Sends and receives in one group, so that no order of them can wait for itself.

        Args:
            sends: (rank, contiguous tensor).
            receives: (rank, contiguous tensor to fill).
        """
        # Nothing is sent where there is nothing: both sides know the sizes.
        ways = ((dist.isend, sends), (dist.irecv, receives))
        ops = [
            dist.P2POp(way, tensor, group=self.process_group, group_peer=peer)
            for way, messages in ways
            for peer, tensor in messages
            if tensor.numel()
        ]
        what = (
            f"rank {self.rank} of {self.size}: sending to ranks {sorted({peer for peer, _ in sends})} and receiving from ranks "
            f"{sorted({peer for peer, _ in receives})}"
        )
        with _named(what):
            works = dist.batch_isend_irecv(ops) if ops else []
        return Pending(works, [op.tensor for op in ops], what)

    def gather(self, x: Tensor) -> Tensor:
        """The tensors of all ranks, of one shape and contiguous, by rank: ``[ranks, *x.shape]``."""
        out = x.new_empty((self.size, *x.shape))
        if self.size == 1:
            return out.copy_(x)
        if x.numel():
            with _named(f"rank {self.rank} of {self.size}: gathering the shards of all ranks"):
                dist.all_gather(list(out.unbind(0)), x, group=self.process_group)
        return out

    def hear(self, word: Any) -> list[Any]:
        """The words of all ranks, by rank. Small and slow: for checks.

        Raises:
            ExchangeError: a rank did not speak within the group's timeout.
        """
        if self.size == 1:
            return [word]
        words: list[Any] = [None] * self.size
        with _named(f"rank {self.rank} of {self.size}: asking all ranks whether they agree"):
            dist.all_gather_object(words, word, group=self.process_group)
        return words
