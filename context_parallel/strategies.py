"""Strategies by name: where the chunks lie to begin with, and which way keys and values go. All of them are plans.

``fm3`` balances the chunks for the mask and sends exactly the units that are needed. The others are what it is compared
with, and all but one are on the same local kernel. They are re-implementations of what is published, not the code of the
projects that are named:

- ``dual_chunk`` sends what is needed under the zigzag placement.
- ``all_gather`` sends everything to everyone, then attends; ``all_gather_overlapped`` attends to the own keys meanwhile
  (Megatron-Core's context parallelism, "all_gather").
- ``ring`` passes whole shards around, ``ring_skip`` no further than someone needs them (Megatron-Core's, "p2p").
- ``magi`` deals out equal numbers of chunks by the area that they see, heaviest first, and sends exactly the units that are
  needed in two stages (MagiAttention). Its units are 128 tokens, MagiAttention's messages are exact to the token.
- ``ulysses`` swaps rows for heads (DeepSpeed-Ulysses).
- ``flex_cp`` is PyTorch's own for FlexAttention, called as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from context_parallel.grid import Grid, PlanError, require
from context_parallel.needs import visible_of_chunks
from context_parallel.placements import contiguous, dual_chunk, heaviest_first
from context_parallel.plan import Plan, make_plan
from context_parallel.transfers import Schedule, resting, ring_schedule, schedule
from masks.column_mask import BLOCK, ColumnMask
from masks.spelling import allowed_names

PLACEMENTS: dict[str, Callable[[ColumnMask, Grid, int], np.ndarray] | None] = {
    "balanced": None,
    "contiguous": lambda mask, grid, ranks: contiguous(grid.chunks, ranks),
    "dual_chunk": lambda mask, grid, ranks: dual_chunk(grid.chunks, ranks),
    "area": lambda mask, grid, ranks: heaviest_first(visible_of_chunks(mask, grid), ranks),
}
"""Placements by name; ``balanced`` is made for the mask, by predicted time."""


@dataclass(frozen=True)
class Strategy:
    """One strategy.

    Args:
        placement: a key of ``PLACEMENTS``.
        way: ``gathered``: units are brought to who attends to them. ``ring``: shards go around, and each hop is attended to by
            itself. ``heads``: rows are swapped for heads. ``flex``: PyTorch's.
        stages: gathered: parts in which keys from the node arrive, each attended to while the next is on its way; 0: all
            arrive, and one call attends to them.
        everything: also what no row needs.
        unit: columns of a unit; None: as the grid chooses.
    """

    placement: str
    way: str = "gathered"
    stages: int = 0
    everything: bool = False
    unit: int | None = None


STRATEGIES = {
    "fm3": Strategy("balanced", stages=1),
    "dual_chunk": Strategy("dual_chunk", stages=1),
    "all_gather": Strategy("dual_chunk", everything=True),
    "all_gather_overlapped": Strategy("dual_chunk", stages=1, everything=True),
    "ring": Strategy("dual_chunk", way="ring", everything=True),
    "ring_skip": Strategy("dual_chunk", way="ring"),
    "magi": Strategy("area", stages=2, unit=BLOCK),
    "ulysses": Strategy("contiguous", way="heads"),
    "flex_cp": Strategy("dual_chunk", way="flex"),
}


def find_strategy(name: str) -> Strategy:
    """The strategy of that name.

    Raises:
        PlanError: unknown; names the allowed ones.
    """
    if name not in STRATEGIES:
        raise PlanError(f"unknown strategy {name!r}; {allowed_names(name, STRATEGIES)}")
    return STRATEGIES[name]


def stages_of(name: str, stages: int | None) -> int:
    """Stages of a strategy, its own or those that were asked for.

    Raises:
        PlanError: not an integer >= 0, or a strategy that has none.
    """
    way = find_strategy(name)
    if stages is None:
        return way.stages
    if way.way != "gathered":
        gathered = ", ".join(one for one, its in STRATEGIES.items() if its.way == "gathered")
        raise PlanError(f"stages is {stages!r} with strategy {name!r}, which has none; allowed with {gathered}")
    require("stages", stages, 0)
    return stages


def plan_of(
    mask: ColumnMask,
    ranks: int,
    strategy: str = "fm3",
    *,
    placement: str | np.ndarray | None = None,
    stages: int | None = None,
    ranks_per_node: int | None = None,
    chunk: int | None = None,
    unit: int | None = None,
    bytes_per_token: int = 1,
) -> Plan:
    """The plan of a strategy, from nothing but the arguments: messages, local masks and bytes as the strategy has them.

    In a ring stage i is hop i: what the neighbour before hands over then. ``ulysses`` and ``flex_cp`` have rows only: what
    they send is not units.

    Args:
        mask: as many rows as columns.
        ranks: of the group.
        strategy: a key of ``STRATEGIES``.
        placement: another than the strategy's: a key of ``PLACEMENTS``, or int64 ``[chunks]``, a rank for each.
        stages: as in :class:`Strategy`; None: the strategy's.
        ranks_per_node: a divisor of ``ranks``; None: one node, and the only one allowed where units are not gathered.
        chunk, unit, bytes_per_token: as for :func:`context_parallel.plan.make_plan`.

    Raises:
        PlanError: an unknown name, or what ``make_plan`` refuses.
    """
    way = find_strategy(strategy)
    if way.way != "gathered" and ranks_per_node not in (None, ranks):
        raise PlanError(f"ranks_per_node is {ranks_per_node!r} with strategy {strategy!r}, which knows no nodes; allowed: None")
    placement = way.placement if placement is None else placement
    if way.way == "flex" and isinstance(placement, str) and chunk is None and unit is None:
        require("ranks", ranks, 1)
        half = mask.seqlen_q // (2 * ranks)  # PyTorch's own, where it can
        chunk = half if half and half % BLOCK == 0 else None
    grid = Grid.of(mask.seqlen_q, ranks, chunk, way.unit if unit is None else unit)
    if isinstance(placement, str):
        if placement not in PLACEMENTS:
            raise PlanError(f"unknown placement {placement!r}; {allowed_names(placement, PLACEMENTS)}")
        fixed = PLACEMENTS[placement]
        placement = None if fixed is None else fixed(mask, grid, ranks)
    hops = max(1, ranks - 1)
    plan = make_plan(
        mask,
        ranks,
        bytes_per_token=bytes_per_token,
        ranks_per_node=ranks_per_node if way.way == "gathered" else None,
        stages=hops if way.way == "ring" else max(1, stages_of(strategy, stages)),
        chunk=grid.chunk,
        unit=grid.unit,
        placement=placement,
    )
    return plan if way.way == "gathered" and not way.everything else replace(plan, schedule=_schedule(plan, way))


def _schedule(plan: Plan, way: Strategy) -> Schedule:
    owner = plan.balance.placement[plan.grid.chunk_of_unit()]
    if way.way in ("heads", "flex"):
        return resting(owner, plan.ranks)
    theirs = owner[None, :] != np.arange(plan.ranks)[:, None]
    if way.way == "gathered":
        return schedule(theirs, owner, plan.ranks_per_node, plan.stages)
    return ring_schedule(theirs if way.everything else (plan.schedule.stage > 0), owner)
