"""Local tensors: the rows of a rank cut out of the whole, the whole put together again, keys and values in slots of units.

A local tensor holds the rank's chunks one after the other, ascending. Keys and values travel in a buffer of one slot a unit,
``[slots * unit, 2, B, Hkv, D]``: token-major, so that the units of one message lie together whatever the batch, and K beside
V, so that they are one message. Only the last unit of a sequence is shorter than its slot; it is the last of its message, so
a message holds tokens only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from context_parallel.grid import joined
from context_parallel.group import Group
from context_parallel.plan import Plan
from masks.localize import Range


def cut(x: Tensor, rows: Sequence[Range]) -> Tensor:
    """The given rows of ``[B, S, ...]``, one after the other; contiguous."""
    return torch.cat([x[:, :0], *(x[:, start:end] for start, end in rows)], dim=1)


class Unshard(torch.autograd.Function):
    """``[B, local rows, ...]`` of every rank as ``[B, S, ...]`` on all of them."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group, plan: Plan) -> Tensor:
        """A gather of shards that are padded to the longest."""
        rows = [plan.rows(rank) for rank in range(plan.ranks)]
        lengths = [sum(end - start for start, end in spans) for spans in rows]
        ctx.rows = rows[group.rank]
        mine = x.new_empty((max(lengths), x.shape[0], *x.shape[2:]))
        mine[: lengths[group.rank]] = x.transpose(0, 1)
        mine[lengths[group.rank] :] = 0
        shards = group.gather(mine)
        whole = x.new_empty((x.shape[0], plan.grid.seqlen, *x.shape[2:]))
        for shard, spans in zip(shards, rows, strict=True):
            at = 0
            for start, end in spans:
                whole[:, start:end] = shard[at : at + end - start].transpose(0, 1)
                at += end - start
        return whole

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        """What everyone computes from the whole is the same, and so is its gradient: each rank takes its rows of it."""
        return cut(grads[0], ctx.rows), None, None


class Slots:
    """Where units lie in a buffer, in the order of ``units``.

    Args:
        plan: of the grid.
        units: of the buffer, each once.
    """

    def __init__(self, plan: Plan, units: Sequence[int]) -> None:
        self.unit = plan.grid.unit
        self.units = list(units)
        self.rows = len(self.units) * self.unit
        self._length = plan.grid.unit_lengths().tolist()
        self._slot = {unit: slot for slot, unit in enumerate(self.units)}
        self._padding = [
            slice(slot * self.unit + self._length[unit], (slot + 1) * self.unit)
            for unit, slot in self._slot.items()
            if self._length[unit] < self.unit
        ]
        #: Asked for the same units in every pass, and asked on the host while the device waits.
        self._spans: dict[tuple[int, ...], list[Range]] = {}

    def shape(self, like: Tensor) -> tuple[int, ...]:
        """Of a buffer for keys and values such as ``like``, ``[B, *, Hkv, D]``."""
        return self.rows, 2, like.shape[0], *like.shape[2:]

    def clear_padding(self, buffer: Tensor) -> Tensor:
        """The buffer, with zeros where no token will be."""
        for rows in self._padding:
            buffer[rows] = 0  # nobody sees these columns, but 0 x NaN would be NaN
        return buffer

    def spans(self, units: Sequence[int]) -> list[Range]:
        """Rows of the buffer that hold the tokens of these units, in their order; neighbours are one span."""
        key = tuple(units)
        if key not in self._spans:
            starts = [self._slot[unit] * self.unit for unit in units]
            self._spans[key] = joined([(at, at + self._length[unit]) for at, unit in zip(starts, units, strict=True)])
        return self._spans[key]

    def tokens(self, units: Sequence[int]) -> int:
        """Tokens of these units."""
        return sum(self._length[unit] for unit in units)

    def take(self, buffer: Tensor, units: Sequence[int]) -> Tensor:
        """The tokens of these units, one after the other, contiguous; a part of the buffer where they lie together."""
        spans = self.spans(units)
        return buffer[slice(*spans[0])] if len(spans) == 1 else torch.cat([buffer[:0], *(buffer[a:b] for a, b in spans)])

    def place(self, buffer: Tensor, units: Sequence[int]) -> Tensor:
        """The part of the buffer that a message fills. Its units lie together: plans order buffers by message."""
        ((start, end),) = self.spans(units)
        return buffer[start:end]

    def put(self, buffer: Tensor, units: Sequence[int], tokens: Tensor, *, add: bool = False) -> None:
        """Writes tokens as :meth:`take` gives them, or adds them (in the buffer's dtype)."""
        at = 0
        for start, end in self.spans(units):
            part = tokens[at : at + end - start]
            if add:
                buffer[start:end] += part
            else:
                buffer[start:end] = part
            at += end - start


def pack(k: Tensor, v: Tensor, spans: Sequence[Range] | None = None) -> Tensor:
    """``[B, S, H, D]`` twice to ``[S, 2, B, H, D]``, contiguous; of the given spans of rows only, one after the other."""
    if spans is None:
        return torch.stack((k.transpose(0, 1), v.transpose(0, 1)), dim=1)
    packed = k.new_empty((sum(end - start for start, end in spans), 2, k.shape[0], *k.shape[2:]))
    at = 0
    for start, end in spans:
        for i, x in enumerate((k, v)):
            packed[at : at + end - start, i] = x[:, start:end].transpose(0, 1)
        at += end - start
    return packed


def unpack(buffer: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values of a buffer, ``[B, S, H, D]`` each; views."""
    return buffer[:, 0].transpose(0, 1), buffer[:, 1].transpose(0, 1)


def token_bytes(k: Tensor) -> int:
    """Keys and values of one token, of all batch items."""
    return 2 * k.shape[0] * k.shape[2] * k.shape[3] * k.element_size()


def refuse_second_derivative() -> None:
    """For a backward pass that sends: its own derivative would silently be zero.

    Raises:
        RuntimeError: the pass is itself to be differentiated.
    """
    if torch.is_grad_enabled():
        raise RuntimeError(
            "context-parallel attention has no second derivative: its backward was differentiated (create_graph=True)"
        )
