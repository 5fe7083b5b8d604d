"""The runtime: one sequence over the ranks of a group, under any column mask. :class:`ContextParallel`.

Each rank holds some rows of the sequence, attends from them to whatever they see, and gets the very numbers that one device
with the whole sequence would compute. Everything but attention works on local rows as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import copy
from typing import Any, Literal, overload

import numpy as np
import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh

from context_parallel.agreement import Facts, agree
from context_parallel.ahead import ahead, upload
from context_parallel.exchanges import EXCHANGES, Exchange, choose
from context_parallel.exchanges.present import Present
from context_parallel.flex_cp import FlexCP
from context_parallel.gathered import Gather
from context_parallel.grid import require
from context_parallel.group import ContextParallelError, Group
from context_parallel.kernel import Idle, Kernel
from context_parallel.plan import Plan
from context_parallel.ring import Ring
from context_parallel.rows import Rows
from context_parallel.strategies import find_strategy, plan_of, stages_of
from context_parallel.ulysses import Ulysses
from context_parallel.ways import Setting, Way
from fm3_kernel import FM3Error, PreparedMask, flashmask_attention, prepare_mask
from fm3_kernel.checks import check_mask_heads, check_tensors, check_types
from masks.column_mask import ColumnMask

WAYS: dict[str, type[Way]] = {"gathered": Gather, "ring": Ring, "heads": Ulysses, "flex": FlexCP}
"""What ``Strategy.way`` names."""


class ContextParallel(Rows):
    """One mask on one group: which rows are here, and attention from them to the whole sequence.

    ``plan`` says who has which rows, needs which units and gets them from whom; ``mask`` and ``strategy`` are as given, and
    ``way`` is the strategy on this rank.

    Args:
        group: a process group that this process is in, or a DeviceMesh of one dimension. None: the default process group,
            and without one this process alone.
        mask: of the whole sequence, as many rows as columns, the same on every rank.
        strategy: a key of ``context_parallel.strategies.STRATEGIES``.
        exchange: what carries it: ``auto`` (also None), whichever backend the group has for the tensors; ``gloo``; ``nccl``;
            ``symmetric``, copies between the GPUs of one node; or an ``Exchange`` of one's own.
        placement: another than the strategy's: ``balanced``, ``contiguous``, ``dual_chunk``, ``area``, or int64
            ``[chunks]``, a rank for each.
        stages: parts in which keys from the node arrive, each attended to while the next is on its way, and as many for those
            from other nodes; 0: all arrive, and one call attends to them. None: the strategy's.
        ranks_per_node: a divisor of the number of ranks, whose first so many are one node. Units then cross the network once a
            node. None: one node.
        keep: keys and values that were received are kept for the backward pass; otherwise they come once more. Rings and
            PyTorch's own keep what they keep.
        chunk: rows of a chunk, the smallest piece that a rank owns; a multiple of ``unit``. None: an eighth of a rank's rows.
        unit: columns of a unit, the smallest piece that is sent; a multiple of 128. None: 512 or less.
        bytes_per_token: keys and values of one token, in which ``plan.bytes_sent()`` counts; 1: it counts tokens.
        check: before the first exchange compare with all ranks: mask, plan, shapes, dtypes, options; two small collectives
            that wait for the host. Without it NCCL needs another collective of the group first.

    Raises:
        PlanError: a mask of other columns than rows, an unknown name, a placement, chunk or unit that does not fit.
        ContextParallelError: a group that this process cannot use.
        TypeError: a mask that is not a ColumnMask.
    """

    def __init__(
        self,
        group: ProcessGroup | DeviceMesh | None,
        mask: ColumnMask,
        *,
        strategy: str = "fm3",
        exchange: str | Exchange | None = None,
        placement: str | np.ndarray | None = None,
        stages: int | None = None,
        ranks_per_node: int | None = None,
        keep: bool = True,
        chunk: int | None = None,
        unit: int | None = None,
        bytes_per_token: int = 1,
        check: bool = True,
    ) -> None:
        self._group = Group(group)
        self._exchange = exchange if isinstance(exchange, Exchange) else choose(exchange, self._group)
        self._kernel, self._keep = Kernel(), keep
        how = {"stages": stages, "ranks_per_node": ranks_per_node}
        sizes = {"chunk": chunk, "unit": unit, "bytes_per_token": bytes_per_token}
        self._make(mask, strategy, placement, check, how | sizes)

    def _make(self, mask: ColumnMask, strategy: str, placement: Any, check: bool, how: dict[str, Any]) -> None:
        if not isinstance(mask, ColumnMask):
            raise TypeError(f"mask is a {type(mask).__name__}; expected a masks.column_mask.ColumnMask of the whole sequence")
        self.mask, self.strategy = mask, strategy
        self.plan: Plan = plan_of(mask, self._group.size, strategy, placement=placement, **how)
        self._stages = stages_of(strategy, how["stages"])
        self._unchecked = check
        self._masks: dict[tuple[int | str | None, torch.device], PreparedMask] = {}
        self.way = self._way_by(self._exchange, self._kernel)

    def _way_by(self, exchange: Exchange, kernel: Kernel) -> Way:
        setting = Setting(
            self.plan, self.mask, self._group, exchange, kernel, self._prepared, overlapped=self._stages > 0, keep=self._keep
        )
        return WAYS[find_strategy(self.strategy).way](setting)

    def with_mask(self, mask: ColumnMask, *, check: bool = True) -> ContextParallel:
        """The same rows on the same ranks under another mask of the same sequence: for models with several masks, and for
        masks that change at every step.

        Args:
            mask: the other one. check: as for the class; for this mask.

        Raises:
            PlanError: a mask of another sequence.
        """
        if isinstance(mask, ColumnMask):
            self.plan.grid.check(mask)
        other = copy(self)
        grid = self.plan.grid
        sizes = {"chunk": grid.chunk, "unit": grid.unit, "bytes_per_token": self.plan.bytes_per_token}
        gathers = isinstance(self.way, Gather)
        how = {"stages": self._stages if gathers else None, "ranks_per_node": self.plan.ranks_per_node}
        other._make(mask, self.strategy, self.plan.balance.placement, check, how | sizes)
        return other

    def ahead(
        self, masks: Iterable[ColumnMask], device: torch.device | str | None = None, *, depth: int = 2
    ) -> Iterator[ContextParallel]:
        """:meth:`with_mask` for every mask of an iterable, made ahead in a thread: for masks that change at every step.

        Steady state costs no synchronisation of the device with the host. Every rank must give the same masks in the same
        order; they are not compared. Leaving the loop early ends the thread.

        Args:
            masks: with their vectors on the host, as from a data loader; taken one by one in the thread.
            device: where attention will run; None: the GPU in use if the group has a backend for it, else the CPU.
            depth: steps that may be ready and not used yet, at least 1.

        Raises:
            PlanError: ``depth``; a mask of another sequence, when its step is asked for. So is what ``masks`` raises.
        """
        require("depth", depth, 1)
        return ahead(self, masks, self._group.device if device is None else torch.device(device), depth)

    def prepare(self, device: torch.device) -> None:
        """Cuts and prepares all local masks now, for attention on that device; otherwise the first call does."""
        for part in [None] if self.ranks == 1 else self.way.parts():
            self._prepared(part, device)

    def prepared(self) -> list[PreparedMask]:
        """The local masks that are prepared so far."""
        return list(self._masks.values())

    def without_exchange(self) -> ContextParallel:
        """The same plan for timing what is computed: after one forward and one backward pass nothing is sent any more, and
        what was received then is taken as received. Results are right while the inputs stay the same.

        Raises:
            ContextParallelError: a strategy whose exchange cannot be taken out.
        """
        return self._timed(Present(self._exchange), self._kernel)

    def without_compute(self) -> ContextParallel:
        """The same plan for timing what is sent: nothing is computed, and the results are zeros.

        Raises:
            ContextParallelError: a strategy whose computation cannot be taken out.
        """
        return self._timed(self._exchange, Idle())

    @property
    def separable(self) -> bool:
        """Whether there is an exchange, and one that can be told from what is computed."""
        return self.way.separable and self.ranks > 1

    def _timed(self, exchange: Exchange, kernel: Kernel) -> ContextParallel:
        if not self.separable:
            raise ContextParallelError(
                f"strategy {self.strategy!r} on {self.ranks} ranks has no exchange of its own to be parted from"
            )
        other = copy(self)
        other.way = self._way_by(exchange, kernel)
        return other

    # -- attention -----------------------------------------------------------------------------------------------

    @overload
    def attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        scale: float | None = None,
        deterministic: bool = False,
        implementation: str = "auto",
        return_lse: Literal[False] = False,
    ) -> Tensor: ...

    @overload
    def attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        scale: float | None = None,
        deterministic: bool = False,
        implementation: str = "auto",
        return_lse: Literal[True],
    ) -> tuple[Tensor, Tensor]: ...

    def attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        scale: float | None = None,
        deterministic: bool = False,
        implementation: Any = "auto",
        return_lse: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Attention of this rank's rows to the whole sequence under the mask. A collective, and so is its backward pass.

        Every rank of the group must call it, and every rank must run the backward pass if one does, ranks without rows too:
        their tensors have no rows, and ``out.sum()`` is a loss.

        Args:
            q: ``[B, local rows, Hq, D]``. k, v: ``[B, local rows, Hkv, D]``. As :meth:`shard` gives them.
            scale, deterministic, implementation, return_lse: as for :func:`fm3_kernel.flashmask_attention`. Gradients that
                come from other ranks are summed in a fixed order whatever ``deterministic`` is.

        Returns:
            ``out`` ``[B, local rows, Hq, D]``; with ``return_lse`` also ``lse`` ``[B, Hq, local rows]``, differentiable.

        Raises:
            ContextParallelError: tensors that are not sharded, or wrongly; ranks that disagree (all of them raise then).
            ExchangeError: a peer that is gone, hangs, or does something else.
            FM3Error, TypeError: what ``flashmask_attention`` refuses.
        """
        options = {"scale": scale, "deterministic": deterministic, "implementation": implementation}
        refusal = self._refusal(q, k, v)
        if self._unchecked:
            agree(self._group, self._facts(q, k, v, options) if refusal is None else {}, refusal)
            self._unchecked = False
        elif refusal is not None:
            raise refusal
        if self.ranks == 1:
            return flashmask_attention(q, k, v, self._prepared(None, q.device), return_lse=return_lse, **options)
        found = self.way.attend(q, k, v, options)
        return found if return_lse else found[0]

    def _prepared(self, part: int | str | None, device: torch.device) -> PreparedMask:
        """The mask of a part, prepared once for all layers. See :class:`context_parallel.ways.Setting`."""
        key = (part, device)
        if key not in self._masks:
            # One rank has the whole in its own order: the mask as it is, so that the result has the same bits.
            local = self.mask if self.ranks == 1 else self.way.local_mask(part)
            self._masks[key] = prepare_mask(upload(local, device))
        return self._masks[key]

    # -- what it costs -------------------------------------------------------------------------------------------

    def received(self, q: Tensor, k: Tensor) -> list[int]:
        """Bytes that every rank receives in a forward pass, by rank, for tensors such as this rank's q and k."""
        return self.way.received(q, k)

    def tiles(self) -> list[int]:
        """128x128 tiles that every rank computes, by rank, over mask batch and heads."""
        return self.way.tiles()

    # -- refusals ------------------------------------------------------------------------------------------------

    def _refusal(self, q: Tensor, k: Tensor, v: Tensor) -> Exception | None:
        """Why this rank cannot take part, found before anything is sent."""
        try:
            check_types(q, k, v)
            for name, x in (("q", q), ("k", k), ("v", v)):
                if x.dim() == 4 and x.shape[1] != self.local_rows:
                    raise ContextParallelError(self.wrong_rows(name, x))
            check_tensors(q, k, v)
            check_mask_heads(self.mask, q, k)
            reason = self.cannot(q, k, v)
            if reason is not None:
                raise ContextParallelError(reason)
        except (ContextParallelError, FM3Error, TypeError) as error:
            return error
        return None

    def cannot(self, q: Tensor, k: Tensor, v: Tensor) -> str | None:
        """Why the exchange cannot carry tensors like these local ones, or the strategy not attend to them; None if they can."""
        if self.ranks == 1:
            return None
        name = self._exchange.name
        if name in EXCHANGES and name not in self.way.exchanges:
            return f"strategy {self.strategy!r} is not carried by exchange={name!r}; allowed: {', '.join(self.way.exchanges)}"
        if name == "symmetric" and self.plan.ranks_per_node < self.ranks:
            return "exchange is 'symmetric', which stays within a node, and the ranks are on several; allowed: nccl"
        return self._exchange.refusal(q.device) or self.way.refusal(q, k, v)

    def _facts(self, q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any]) -> Facts:
        """What must be equal on all ranks. Whether gradients are wanted too: a rank without a backward pass would be waited
        for."""
        grad = [name for name, x in (("q", q), ("k", k), ("v", v)) if x.requires_grad and torch.is_grad_enabled()]
        mask = self.mask.to("cpu")  # every rank may have it on a device of its own
        return {
            "the mask": f"digest {mask.digest()} of {mask!r}",
            "the plan": f"digest {self.plan.digest()} of strategy {self.strategy!r} on {self.plan.grid}",
            "the exchange": f"{self._exchange.name}, {self._stages} stages, keep={self._keep}",
            "the shapes": f"batch {q.shape[0]}, {q.shape[2]} query heads, {k.shape[2]} KV heads, head dim {q.shape[3]}",
            "the dtype": str(q.dtype),
            "the device": q.device.type,
            "the options": ", ".join(f"{name}={value!r}" for name, value in options.items()),
            "what requires a gradient": ", ".join(grad) or "nothing",
        }
