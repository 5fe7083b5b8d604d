"""What every strategy is to the runtime: a way of attending, built for one rank from one :class:`Setting`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from context_parallel.exchanges import Exchange
from context_parallel.group import Group
from context_parallel.kernel import Kernel, Result
from context_parallel.plan import Plan
from context_parallel.shards import token_bytes
from fm3_kernel import PreparedMask
from masks.column_mask import ColumnMask


@dataclass(frozen=True)
class Setting:
    """What a strategy works with.

    Args:
        plan, mask: of the whole sequence.
        group: the ranks.
        exchange: what carries messages between them.
        kernel: what computes.
        masks: (part, device) to the prepared mask of the part: a stage of the plan, None for all of a rank's buffer, or
            ``"heads"`` for all rows and columns of the rank's heads.
        overlapped: each stage is attended to by itself, while the next is on its way.
        keep: keys and values that were received are kept for the backward pass.
    """

    plan: Plan
    mask: ColumnMask
    group: Group
    exchange: Exchange
    kernel: Kernel
    masks: Callable[[int | str | None, torch.device], PreparedMask]
    overlapped: bool
    keep: bool


class Way(ABC):
    """One strategy on one rank of several."""

    exchanges: ClassVar[tuple[str, ...]] = ("auto", "gloo", "nccl")
    """Names of the exchanges that can carry it."""
    separable: ClassVar[bool] = True
    """Whether exchange and computation can be run without each other."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting

    def refusal(self, q: Tensor, k: Tensor, v: Tensor) -> str | None:
        """Why these tensors cannot be attended to this way, or None; known before anything is sent."""
        return None

    @abstractmethod
    def attend(self, q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any]) -> Result:
        """The rank's rows of the result; differentiable, a collective."""

    def local_mask(self, part: int | str | None) -> ColumnMask:
        """The mask of a part that it attends to: the rank's rows by the units of a stage, or of all (None)."""
        assert not isinstance(part, str)
        return self.setting.plan.local_mask(self.setting.mask, self.setting.group.rank, part)

    @abstractmethod
    def parts(self) -> list[int | str | None]:
        """The keys of ``Setting.masks`` that it will ask for."""

    def received(self, q: Tensor, k: Tensor) -> list[int]:
        """Bytes that every rank receives in a forward pass, by rank; here: the keys and values of the plan's messages.

        Args:
            q, k: of the rank's rows, for their shapes and dtype.
        """
        lengths, out = self.setting.plan.grid.unit_lengths(), [0] * self.setting.plan.ranks
        for one in self.setting.plan.transfers:
            out[one.target] += int(lengths[list(one.units)].sum()) * token_bytes(k)
        return out

    def tiles(self) -> list[int]:
        """128x128 tiles that every rank does not skip, by rank, over mask batch and heads."""
        tiles: list[int] = self.setting.plan.tiles().sum((1, 2)).tolist()
        return tiles
