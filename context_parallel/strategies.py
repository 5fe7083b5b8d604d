"""Strategies by name: where the chunks lie to begin with, and which way keys and values go. All of them are plans.

``fm3`` balances the chunks for the mask and sends exactly the units that are needed. The others are what it is compared
with, on the same local kernel: ``dual_chunk`` sends what is needed under the zigzag placement, ``all_gather`` everything to
everyone, ``ring`` passes whole shards around, ``ring_skip`` no further than someone needs them. Those three are
re-implementations of what is published about Megatron-Core's context parallelism, not its code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from context_parallel.grid import Grid, PlanError
from context_parallel.placements import contiguous, dual_chunk
from context_parallel.plan import Plan, make_plan
from context_parallel.transfers import Schedule, ring_schedule, schedule
from masks.column_mask import ColumnMask
from masks.spelling import allowed_names

PLACEMENTS: dict[str, Callable[[int, int], np.ndarray] | None] = {
    "balanced": None,
    "contiguous": contiguous,
    "dual_chunk": dual_chunk,
}
"""Placements by name; ``balanced`` is made for the mask."""


@dataclass(frozen=True)
class Strategy:
    """One strategy.

    Args:
        placement: a key of ``PLACEMENTS``.
        ring: shards go around, and each hop is attended to by itself; otherwise all arrive, and one call attends to them.
        everything: also what no row needs.
    """

    placement: str
    ring: bool = False
    everything: bool = False


STRATEGIES = {
    "fm3": Strategy("balanced"),
    "dual_chunk": Strategy("dual_chunk"),
    "all_gather": Strategy("dual_chunk", everything=True),
    "ring": Strategy("dual_chunk", ring=True, everything=True),
    "ring_skip": Strategy("dual_chunk", ring=True),
}


def find_strategy(name: str) -> Strategy:
    """The strategy of that name.

    Raises:
        PlanError: unknown; names the allowed ones.
    """
    if name not in STRATEGIES:
        raise PlanError(f"unknown strategy {name!r}; {allowed_names(name, STRATEGIES)}")
    return STRATEGIES[name]


def plan_of(
    mask: ColumnMask,
    ranks: int,
    strategy: str = "fm3",
    *,
    placement: str | np.ndarray | None = None,
    chunk: int | None = None,
    unit: int | None = None,
    bytes_per_token: int = 1,
) -> Plan:
    """The plan of a strategy, from nothing but the arguments: messages, local masks and bytes as the strategy has them.

    In a ring stage i is hop i: what the neighbour before hands over then.

    Args:
        mask: as many rows as columns.
        ranks: of the group, which is taken as one node.
        strategy: a key of ``STRATEGIES``.
        placement: another than the strategy's: a key of ``PLACEMENTS``, or int64 ``[chunks]``, a rank for each.
        chunk, unit, bytes_per_token: as for :func:`context_parallel.plan.make_plan`.

    Raises:
        PlanError: an unknown name, or what ``make_plan`` refuses.
    """
    way = find_strategy(strategy)
    placement = way.placement if placement is None else placement
    grid = Grid.of(mask.seqlen_q, ranks, chunk, unit)
    if isinstance(placement, str):
        if placement not in PLACEMENTS:
            raise PlanError(f"unknown placement {placement!r}; {allowed_names(placement, PLACEMENTS)}")
        fixed = PLACEMENTS[placement]
        placement = None if fixed is None else fixed(grid.chunks, ranks)
    stages = max(1, ranks - 1) if way.ring else 1
    plan = make_plan(
        mask,
        ranks,
        bytes_per_token=bytes_per_token,
        stages=stages,
        chunk=grid.chunk,
        unit=grid.unit,
        placement=placement,
    )
    return plan if not (way.ring or way.everything) else replace(plan, schedule=_schedule(plan, way))


def _schedule(plan: Plan, way: Strategy) -> Schedule:
    owner = plan.balance.placement[plan.grid.chunk_of_unit()]
    theirs = owner[None, :] != np.arange(plan.ranks)[:, None]
    if not way.ring:
        return schedule(theirs, owner, plan.ranks, 1)
    wanted = theirs if way.everything else (plan.schedule.stage > 0)
    return ring_schedule(wanted, owner)
