"""A kernel of this project on ranks that share a sequence, by this project's context-parallel runtime.

Every rank makes the whole inputs and keeps its rows. What is checked is the whole result, put together from all ranks; what
is timed is the call that a model makes, on the rank's rows: attention with the exchanges of its forward or backward pass.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from context_parallel.runtime import ContextParallel
from harness.backends.base import Attend, Availability, Backend
from harness.cases import Problem, Sharing
from harness.inputs import Inputs
from harness.provenance import ROOT
from masks.column_mask import ColumnMask

IMPLEMENTATIONS = {"fm3": "hopper", "reference": "reference"}
"""Competitors that are this project's kernels, and what flashmask_attention calls them."""


class Sharded(Backend):
    """``ContextParallel`` around a kernel; lives in every rank of a group."""

    layout = "bshd"

    def __init__(self, kernel: Backend, sharing: Sharing) -> None:
        self.name, self.title = kernel.name, kernel.title  # type: ignore[misc]
        self._kernel, self._sharing = kernel, sharing
        self._cp: ContextParallel | None = None

    def probe(self, device: str) -> Availability:
        """As the kernel."""
        return self._kernel.probe(device)

    def unsupported(self, problem: Problem, mask: ColumnMask, pass_: str, device: str) -> str | None:
        """As the kernel; and it must be one that the runtime calls."""
        if self.name not in IMPLEMENTATIONS:
            return f"context parallelism runs {', '.join(IMPLEMENTATIONS)} as its local kernel, not {self.name}"
        return self._kernel.unsupported(problem, mask, pass_, device)

    def sources_of(self, pass_: str) -> Iterable[Path]:
        """The kernel and the runtime."""
        own = ("harness/backends/sharded.py", "context_parallel", "csrc/planner", "masks/localize.py", "fm3_kernel/parts.py")
        return [*self._kernel.sources_of(pass_), *(ROOT / name for name in own)]

    def prepare(self, problem: Problem, mask: ColumnMask) -> Attend:
        """The plan, on every rank."""
        self._cp = ContextParallel(None, mask, strategy=self._sharing.strategy, exchange=self._sharing.exchange)
        cp, options = self._cp, self._options()
        return lambda q, k, v: _Whole.apply(cp, options, q, k, v)

    def timed(self, attend: Attend, inputs: Inputs) -> tuple[Attend, Inputs]:
        """Attention of this rank's rows."""
        cp, options = self._cp, self._options()
        assert cp is not None, "prepare comes first"
        rows = Inputs(*(cp.shard(x) for x in (inputs.q, inputs.k, inputs.v, inputs.dout)))
        return lambda q, k, v: (cp.attention(q, k, v, **options), None), rows

    def _options(self) -> dict[str, Any]:
        return {"implementation": IMPLEMENTATIONS[self.name]}


class _Whole(torch.autograd.Function):
    """The whole sequence in and out on every rank, through the ranks' attention and its backward pass. A collective."""

    @staticmethod
    def forward(
        ctx: Any, cp: ContextParallel, options: dict[str, Any], q: Tensor, k: Tensor, v: Tensor
    ) -> tuple[Tensor, Tensor]:
        leaves = [cp.shard(x).detach().requires_grad_(x.requires_grad) for x in (q, k, v)]
        with torch.set_grad_enabled(any(x.requires_grad for x in leaves)):
            out, lse = cp.attention(*leaves, return_lse=True, **options)
        ctx.cp, ctx.leaves, ctx.results = cp, leaves, (out, lse)
        rows = lse.detach().transpose(1, 2).contiguous()
        return cp.unshard(out.detach()), cp.unshard(rows).transpose(1, 2).contiguous()

    @staticmethod
    def backward(ctx: Any, dout: Tensor, dlse: Tensor) -> tuple[Tensor | None, ...]:
        cp, rows = ctx.cp, (dout, dlse.transpose(1, 2))
        grads = [cp.shard(x.contiguous()) for x in rows]
        found = torch.autograd.grad(ctx.results, ctx.leaves, (grads[0], grads[1].transpose(1, 2)), retain_graph=True)
        return None, None, *(cp.unshard(x.contiguous()) for x in found)
