"""Which rows of the sequence are on this rank, cut out of the whole and put together again. No attention."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from context_parallel.group import ContextParallelError, Group
from context_parallel.plan import Plan
from context_parallel.shards import Unshard, cut


class Rows:
    """The rows of one rank under a plan; what :class:`context_parallel.runtime.ContextParallel` stands on."""

    plan: Plan
    _group: Group

    @property
    def rank(self) -> int:
        """Of this process in the group."""
        return self._group.rank

    @property
    def ranks(self) -> int:
        """Number of ranks in the group."""
        return self._group.size

    @cached_property
    def local_rows(self) -> int:
        """Rows of the sequence that this rank holds; may be 0."""
        return sum(end - start for start, end in self.plan.rows(self.rank))

    def shard(self, x: Tensor) -> Tensor:
        """This rank's rows of ``[B, S, ...]``: ``[B, local rows, ...]``, contiguous, any dtype, differentiable.

        The gradient of x holds this rank's rows only, so for an x that all ranks share it is summed over the ranks, like
        that of a parameter.

        Raises:
            ContextParallelError: not the whole sequence.
        """
        seqlen = self.plan.grid.seqlen
        if x.dim() < 2 or x.shape[1] != seqlen:
            raise ContextParallelError(f"shard takes the whole sequence [batch, {seqlen}, ...]; given: {tuple(x.shape)}")
        return cut(x, self.plan.rows(self.rank))

    def unshard(self, x: Tensor) -> Tensor:
        """The whole ``[B, S, ...]`` from the local rows of all ranks, on every rank; differentiable. A collective.

        Whatever is computed from the whole must be the same on every rank, as one loss of all logits: then each rank's rows
        of the gradient are right as they are, and nothing is sent. A loss of local rows needs no unshard.

        Raises:
            ContextParallelError: not this rank's rows.
        """
        if x.dim() < 2 or x.shape[1] != self.local_rows:
            raise ContextParallelError(self.wrong_rows("x", x))
        whole: Tensor = Unshard.apply(x, self._group, self.plan)
        return whole

    def position_ids(self, device: torch.device | str | None = None) -> Tensor:
        """Where in the sequence each local row is, int64 ``[local rows]``: for rotary embeddings.

        Positions that restart at every document are sharded like any tensor.
        """
        positions = torch.arange(self.plan.grid.seqlen, device=device)
        return cut(positions[None], self.plan.rows(self.rank))[0]

    def wrong_rows(self, name: str, x: Tensor) -> str:
        """What to say of a tensor that does not have this rank's rows."""
        seqlen = self.plan.grid.seqlen
        hint = "it looks like the whole sequence: shard(x) cuts it" if x.dim() > 1 and x.shape[1] == seqlen else "see shard(x)"
        return (
            f"{name} has shape {tuple(x.shape)}; rank {self.rank} of {self.ranks} holds {self.local_rows} of the {seqlen} "
            f"rows, so the second axis must be {self.local_rows} ({hint})"
        )
