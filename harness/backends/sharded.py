"""A kernel on ranks that share a sequence, by this project's context-parallel runtime.

Every rank makes the whole inputs and keeps its rows. What is checked is the whole result, put together from all ranks; what
is timed is the call that a model makes, on the rank's rows: attention with the exchanges of its forward or backward pass,
and beside it that call without its exchange, without its computation, and its bytes as plain messages.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from context_parallel import ContextParallelError
from context_parallel.bare import Bare
from context_parallel.grid import PlanError
from context_parallel.runtime import ContextParallel
from harness.backends.base import Attend, Availability, Backend
from harness.cases import Problem, Sharing
from harness.inputs import DTYPES, Inputs
from harness.provenance import ROOT
from masks.column_mask import ColumnMask

IMPLEMENTATIONS = {"fm3": "hopper", "flashmask": "ampere", "reference": "reference"}
"""Competitors that are this project's kernels, and what flashmask_attention calls them."""

OWN_KERNEL = {"flex_cp": "flex"}
"""Strategies that run on another kernel, and that kernel."""


class Sharded(Backend):
    """``ContextParallel`` around a kernel; lives in every rank of a group."""

    layout = "bshd"

    def __init__(self, kernel: Backend, sharing: Sharing) -> None:
        self.name, self.title = kernel.name, kernel.title  # type: ignore[misc]
        self._kernel, self._sharing = kernel, sharing
        self._cp: ContextParallel | None = None
        self._rows: Inputs | None = None
        self._plan_ms = 0.0

    def probe(self, device: str) -> Availability:
        """As the kernel."""
        return self._kernel.probe(device)

    def unsupported(self, problem: Problem, mask: ColumnMask, pass_: str, device: str) -> str | None:
        """As the kernel, and as the strategy; the kernel must be the one that the strategy calls."""
        own = OWN_KERNEL.get(self._sharing.strategy)
        if (self.name not in IMPLEMENTATIONS) if own is None else (self.name != own):
            calls = own or ", ".join(IMPLEMENTATIONS)
            return f"strategy {self._sharing.strategy} runs {calls} as its local kernel, not {self.name}"
        if own is not None and device == "cpu":
            return "on a CPU FlexAttention over ranks runs uncompiled, which is for tests and is not timed"
        refusal = None if own is not None else self._kernel.unsupported(problem, mask, pass_, device)
        if refusal is not None:
            return refusal
        try:
            cp = self._make(mask)
        except (ContextParallelError, PlanError) as error:
            return str(error)
        one = torch.zeros((), dtype=DTYPES[problem.dtype], device=device, requires_grad=pass_ != "forward")
        heads = (problem.heads, problem.kv_heads, problem.kv_heads)
        return cp.cannot(*(one.expand(problem.batch, cp.local_rows, n, problem.head_dim) for n in heads))

    def sources_of(self, pass_: str) -> Iterable[Path]:
        """The kernel and the runtime."""
        own = ("harness/backends/sharded.py", "context_parallel", "csrc/planner", "masks/localize.py", "fm3_kernel/parts.py")
        return [*self._kernel.sources_of(pass_), *(ROOT / name for name in own)]

    def prepare(self, problem: Problem, mask: ColumnMask) -> Attend:
        """The plan, on every rank."""
        begin = time.perf_counter()
        self._cp = self._make(mask)
        self._plan_ms = (time.perf_counter() - begin) * 1000
        cp, options = self._cp, self._options()
        return lambda q, k, v: _Whole.apply(cp, options, q, k, v)

    def timed(self, attend: Attend, inputs: Inputs) -> tuple[Attend, Inputs]:
        """Attention of this rank's rows."""
        self._rows = Inputs(*(self._prepared().shard(x) for x in (inputs.q, inputs.k, inputs.v, inputs.dout)))
        return self._call(self._prepared()), self._rows

    def alone(self, inputs: Inputs) -> dict[str, tuple[Attend, Inputs]]:
        """Without the exchange, without the computation, and plain messages of the same bytes."""
        cp, rows = self._prepared(), self._rows
        if not cp.separable:
            return {}
        assert rows is not None, "timed comes first"
        calls = {"comp": self._call(cp.without_exchange()), "comm": self._call(cp.without_compute())}
        bare = Bare.of(cp, inputs.k)
        if bare is not None:
            calls["bare"] = lambda q, k, v: (bare.attend(q, k, v), None)
        return {name: (call, rows) for name, call in calls.items()}

    def facts(self, inputs: Inputs) -> dict[str, Any]:
        """What the plan says: bytes and tiles by rank, and how long it took to make."""
        cp = self._prepared()
        received, keys = cp.received(inputs.q, inputs.k), 2 * inputs.k.numel() * inputs.k.element_size()
        return {
            "plan_ms": round(self._plan_ms, 4),
            "recv_share": sum(received) / (keys * (cp.ranks - 1)),
            "ranks": {"recv_bytes": received, "tiles": cp.tiles()},
        }

    def _make(self, mask: ColumnMask) -> ContextParallel:
        return ContextParallel(None, mask, strategy=self._sharing.strategy, exchange=self._sharing.exchange)

    def _prepared(self) -> ContextParallel:
        assert self._cp is not None, "prepare comes first"
        return self._cp

    def _call(self, cp: ContextParallel) -> Attend:
        options = self._options()
        return lambda q, k, v: (cp.attention(q, k, v, **options), None)

    def _options(self) -> dict[str, Any]:
        return {"implementation": IMPLEMENTATIONS.get(self.name, "auto")}


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
