"""The oracle where every block of every head is compared: several heads at once, and what blocks share computed once.

The same answers as those of ``oracle``, head by head and block by block, in a third of the work. They take most of the time of
a check and are the same for all competitors of a group, so they are kept for the next one where there is room.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from harness.gate.oracle import CHUNK, Blocks, Oracle

Gradients = tuple[Tensor, Tensor, Tensor]
"""dq and shares of dk and dv, ``[heads, S, D]``."""


@dataclass(frozen=True)
class Lse:
    """The right LSE ``[len(heads), S]`` of some query heads of a batch item, in high precision."""

    item: int
    heads: tuple[int, ...]
    exact: Tensor


Part = Lse | Blocks

_SHARE_OF_FREE = 4
"""One part in so many of the free memory of a GPU may be kept; a competitor may need the rest."""
_KEPT_ON_A_HOST = 1 << 30
"""Bytes that may be kept elsewhere."""


class Answers:
    """What :func:`whole` finds, found once for all competitors where there is room."""

    def __init__(self, oracle: Oracle) -> None:
        self.oracle = oracle
        self._kept: dict[bool, list[Part]] = {}

    def parts(self, gradients: bool) -> Iterator[Part]:
        """The same as :func:`whole`."""
        if gradients not in self._kept and self.bytes(gradients) <= self.room():
            self._kept[gradients] = list(whole(self.oracle, gradients))
        yield from self._kept[gradients] if gradients in self._kept else whole(self.oracle, gradients)

    def bytes(self, gradients: bool) -> int:
        """Of all parts: right values and those of the dtype, in high precision."""
        x = self.oracle.inputs
        elements = x.q.numel() + (x.q.numel() + x.k.numel() + x.v.numel() if gradients else 0)
        return 2 * elements * self.oracle.high.itemsize

    def room(self) -> int:
        """Bytes that may be kept now."""
        device = self.oracle.inputs.q.device
        return torch.cuda.mem_get_info(device)[0] // _SHARE_OF_FREE if device.type == "cuda" else _KEPT_ON_A_HOST


def whole(oracle: Oracle, gradients: bool) -> Iterator[Part]:
    """LSE, out and with ``gradients`` dq, dk and dv: all rows and columns of all heads and batch items."""
    together = max(1, CHUNK // max(1, oracle.rows * oracle.columns))
    for item in range(oracle.inputs.q.shape[0]):
        for first in range(0, oracle.kv_heads, together):
            yield from _groups(oracle, item, range(first, min(first + together, oracle.kv_heads)), gradients)


def _groups(oracle: Oracle, item: int, kv_heads: Sequence[int], gradients: bool) -> Iterator[Part]:
    """The groups of some KV heads, one query head of each at a time."""
    group = oracle.heads // oracle.kv_heads
    sums: list[list[Tensor]] = []
    for member in range(group):
        heads = tuple(kv_head * group + member for kv_head in kv_heads)
        seen = oracle.seen_by(item, heads)
        exact, plain = (_tensors(oracle, item, heads, kv_heads, dtype) for dtype in (oracle.high, oracle.dtype))
        scores = (exact[0] @ exact[1].mT).mul_(oracle.scale).masked_fill_(~seen, -torch.inf)
        lse = torch.logsumexp(scores, dim=-1)
        yield Lse(item, heads, lse)
        shift = lse.masked_fill(lse == -torch.inf, 0)[..., None]
        weights = scores.sub_(shift).exp_()
        # The plain kind rounds scores and probabilities to its dtype.
        rounded = (plain[0] @ plain[1].mT).mul_(oracle.scale).to(oracle.high)
        rounded = rounded.sub_(shift).exp_().masked_fill_(~seen, 0).to(oracle.dtype)
        out = weights @ exact[2]
        yield oracle.all_blocks("out", item, heads, out, rounded @ plain[2])
        if gradients:
            delta = (exact[3] * out).sum(-1, keepdim=True)
            right = _gradients(weights, exact, delta, oracle.scale)
            close = _gradients(rounded, plain, delta.to(oracle.dtype), oracle.scale)
            yield oracle.all_blocks("dq", item, heads, right[0], close[0])
            # Group sums stay in high precision: how a kernel sums them is its own affair, its error not excused.
            shares = [x.to(oracle.high) for x in (right[1], close[1], right[2], close[2])]
            sums.append(shares if not sums else [before + share for before, share in zip(sums.pop(), shares, strict=True)])
    for dk, plain_dk, dv, plain_dv in sums:
        yield oracle.all_blocks("dk", item, tuple(kv_heads), dk, plain_dk)
        yield oracle.all_blocks("dv", item, tuple(kv_heads), dv, plain_dv)


def _tensors(
    oracle: Oracle, item: int, heads: Sequence[int], kv_heads: Sequence[int], dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """q, k, v, dout of some query heads and their KV heads, ``[heads, S, D]`` each."""
    x, of_q, of_kv = oracle.inputs, list(heads), list(kv_heads)
    parts = (x.q[item][:, of_q], x.k[item][:, of_kv], x.v[item][:, of_kv], x.dout[item][:, of_q])
    q, k, v, dout = (part.transpose(0, 1).to(dtype).contiguous() for part in parts)
    return q, k, v, dout


def _gradients(weights: Tensor, tensors: tuple[Tensor, Tensor, Tensor, Tensor], delta: Tensor, scale: float) -> Gradients:
    q, k, v, dout = tensors
    ds = (dout @ v.mT).sub_(delta).mul_(weights)
    return (ds @ k) * scale, (ds.mT @ q) * scale, weights.mT @ dout
