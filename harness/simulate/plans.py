"""The plan that is simulated: the runtime's own on the cluster's nodes, with another slack where one is asked for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from context_parallel.balance import balance
from context_parallel.compiled import compiled_placement, why_not
from context_parallel.grid import require
from context_parallel.plan import Plan
from context_parallel.strategies import find_strategy, plan_of
from harness.simulate.cluster import Cluster
from harness.simulate.exchange import find_exchange, is_ring
from masks.column_mask import ColumnMask


@dataclass(frozen=True)
class Ask:
    """How the sequence is to be shared.

    Args:
        ranks: of the group.
        strategy: a key of ``context_parallel.strategies.STRATEGIES``.
        exchange: a key of ``harness.simulate.exchange.EXCHANGES``.
        chunk: rows of a chunk; None: the planner's choice.
        slack: the heaviest rank may be ``1 / slack`` above the best found to save traffic; None: the planner's choice. Only of
            a strategy that balances.
    """

    ranks: int
    strategy: str = "fm3"
    exchange: str = "nccl"
    chunk: int | None = None
    slack: int | None = None


def plan_of_ask(mask: ColumnMask, ask: Ask, cluster: Cluster) -> Plan:
    """The plan.

    Raises:
        ClusterError: a degree that the cluster cannot hold, an unknown exchange.
        PlanError: an unknown strategy, or a chunk or slack that does not fit.
    """
    find_exchange(ask.exchange, ask.strategy)
    per_node = cluster.ranks_per_node(ask.ranks)
    nodes = None if is_ring(ask.strategy) else per_node

    def made(placement: np.ndarray | None) -> Plan:
        return plan_of(mask, ask.ranks, ask.strategy, placement=placement, ranks_per_node=nodes, chunk=ask.chunk)

    plan = made(None)
    if ask.slack is None or find_strategy(ask.strategy).placement != "balanced":
        return plan
    return made(_with_slack(plan, ask.slack))


def _with_slack(plan: Plan, slack: int) -> np.ndarray:
    """The balanced placement of the same work with another slack."""
    require("slack", slack, 1)
    if why_not() is None:
        return compiled_placement(plan.work, plan.ranks, plan.ranks_per_node, slack)
    return balance(plan.work, plan.ranks, plan.ranks_per_node, slack).placement
