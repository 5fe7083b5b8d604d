"""The exchanges by name: who moves the bytes within a node, and how attention goes with them.

``nccl``: grouped sends and receives by NCCL's kernels. ``symmetric``: copy engines within a node. Between nodes both use NCCL.
By either the strategy says whether all keys are there before attention begins (``WHOLE``) or a launch attends to each stage
while the next is on its way (``PARTS``). One launch that takes each stage when its flag is up (``FLAGS``) is what the kernel is
designed to be asked for; nothing asks for it yet.
"""

from __future__ import annotations

from dataclasses import dataclass

from context_parallel.strategies import STRATEGIES, find_strategy
from harness.simulate.cluster import COPY, SM
from harness.simulate.reading import ClusterError
from masks.spelling import allowed_names

WHOLE, PARTS, FLAGS = "whole", "parts", "flags"
"""One launch when all keys are there; a launch a stage, merged; one launch that waits for flags."""


@dataclass(frozen=True)
class Exchange:
    """way: within a node. attends: one of the three above."""

    way: str
    attends: str


WAYS = {"nccl": SM, "symmetric": COPY}
"""Exchanges that there is a model of."""


def is_ring(strategy: str) -> bool:
    """Whether a strategy passes its shards around.

    Raises:
        PlanError: an unknown one.
    """
    return find_strategy(strategy).way == "ring"


def find_exchange(name: str, strategy: str) -> Exchange:
    """How a strategy's keys travel by the exchange of that name.

    Raises:
        PlanError: an unknown strategy.
        ClusterError: one without a model, an unknown exchange, or one that the strategy has not.
    """
    way = find_strategy(strategy)
    if way.way not in ("gathered", "ring"):
        raise ClusterError(f"strategy={strategy}: there is no model of it; allowed: {', '.join(modelled())}")
    if name not in WAYS:
        raise ClusterError(f"exchange={name}: there is no model of it; {allowed_names(name, WAYS)}")
    if is_ring(strategy) and WAYS[name] != SM:
        others = ", ".join(strategies_of(name))
        raise ClusterError(f"exchange={name}: strategy={strategy} passes its shards on by nccl; with {name} allowed: {others}")
    return Exchange(WAYS[name], PARTS if way.stages else WHOLE)


def modelled() -> list[str]:
    """Strategies that there is a model of."""
    return [name for name, one in STRATEGIES.items() if one.way in ("gathered", "ring")]


def strategies_of(name: str) -> list[str]:
    """Those of them that have the exchange."""
    return [one for one in modelled() if WAYS.get(name) == SM or not is_ring(one)]
