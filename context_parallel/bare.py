"""The bytes of a plan as plain messages: what its exchange is held against.

One contiguous message a pair of ranks, made beforehand, all in one start, on the same carrier: no packing, no stages, no
order. Forward the keys and values that are received, backward their gradients the other way. Only for strategies that gather
within one node: elsewhere the plan's bytes are not all that moves.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from context_parallel.exchanges import Exchange, Receive, Send, Stage
from context_parallel.gathered import Gather
from context_parallel.runtime import ContextParallel
from context_parallel.shards import token_bytes


class Bare:
    """Plain messages for a plan.

    Args:
        exchange: the carrier.
        rank: of the group.
        sent: int64 ``[ranks, ranks]``, tokens from the rank of the row to that of the column.
        k: for batch, heads, head dim, dtype and device of keys.
    """

    def __init__(self, exchange: Exchange, rank: int, sent: np.ndarray, k: Tensor) -> None:
        self._exchange = exchange
        self.forward, self.backward = (_Messages(rank, way, k) for way in (sent, sent.T))

    @staticmethod
    def of(cp: ContextParallel, k: Tensor) -> Bare | None:
        """The plain messages of a runtime's plan, or None where the plan is not all that moves."""
        if not isinstance(cp.way, Gather) or cp.plan.ranks_per_node < cp.ranks:
            return None
        return Bare(cp.way.setting.exchange, cp.rank, cp.plan.bytes_sent() // cp.plan.bytes_per_token, k)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """In the place of attention: sends, and gives zeros like q, whose backward pass sends the other way."""
        out: Tensor = _Sent.apply(q, k, v, self)
        return out

    def send(self, messages: _Messages) -> None:
        """All at once, until they are there."""
        (under_way,) = self._exchange.start([Stage(messages.sends, messages.receives)], messages.room)
        under_way.wait()


class _Messages:
    def __init__(self, rank: int, sent: np.ndarray, k: Tensor) -> None:
        before = sent.cumsum(1) - sent
        shape = 2, k.shape[0], *k.shape[2:]
        self.sends, self.receives = [], []
        for other in range(len(sent)):
            if sent[rank, other]:
                tokens = torch.randn((int(sent[rank, other]), *shape), device=k.device).to(k.dtype)
                self.sends.append(Send(other, partial(_itself, tokens), int(before[rank, other])))
            if sent[other, rank]:
                into = k.new_empty((int(sent[other, rank]), *shape))
                self.receives.append(Receive(other, into, int(before[other, rank])))
        self.room = int(sent.sum(1).max(initial=0)) * token_bytes(k)


class _Sent(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, bare: Bare) -> Tensor:
        ctx.bare, ctx.like = bare, (q, k, v)
        bare.send(bare.forward)
        return q.new_zeros(()).expand(q.shape)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        ctx.bare.send(ctx.bare.backward)
        return *(x.new_zeros(()).expand(x.shape) for x in ctx.like), None


def _itself(tokens: Tensor) -> Tensor:
    return tokens
