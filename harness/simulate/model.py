"""The answer: one problem under one plan on one cluster, simulated whole, without exchanges and without computing.

What is computed and what is sent is exact, from the plan; times are a model. Every prediction carries the interval that the
spreads of its rates span, what of the rates is borrowed or assumed, and what lies beyond that which they were fitted to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from context_parallel.plan import Plan
from harness.cases import Problem
from harness.simulate import gathered, rings, staged
from harness.simulate.cluster import Cluster
from harness.simulate.doubts import beyond_the_fit, not_known
from harness.simulate.engine import play
from harness.simulate.exchange import WHOLE, Exchange, find_exchange, is_ring
from harness.simulate.loads import Loads
from harness.simulate.plans import Ask, plan_of_ask
from harness.simulate.rates import FAST, SLOW
from harness.simulate.steps import COMPUTE, EXCHANGE, Steps, Times
from masks.column_mask import ColumnMask
from plots.ranks import Overlap

KERNEL = "fm3"
"""The local kernel whose rates are used."""

VALIDATED = False
"""Whether predictions were held against measured runs of several GPUs (``harness.simulate.validate``): there are none yet."""


@dataclass(frozen=True)
class Prediction:
    """One pass. Times are those of the slowest rank, milliseconds.

    full, compute, communicate: with both, with all keys there, and with attention that takes no time. low, high: the interval
    of ``full``. alone: the same problem on one GPU. least: no placement of these chunks computes faster. busy: milliseconds of
    attention of every rank. received: bytes of keys and values that every rank receives (forward). share: of what an
    all-gather would bring. least_received: bytes that all ranks together receive at least. held: bytes of the tensors of the
    fullest rank. doubts: what of this is borrowed, assumed or beyond the fit.
    """

    full: float
    low: float
    high: float
    compute: float
    communicate: float
    alone: float
    least: float
    busy: tuple[float, ...]
    received: tuple[int, ...]
    share: float
    least_received: int
    held: int
    doubts: tuple[str, ...]

    @property
    def runs(self) -> Overlap:
        """Its three runs, as of ranks that were measured."""
        return Overlap(self.full, self.compute, self.communicate, None)

    @property
    def exposed(self) -> float:
        """What exchanges cost beside computing, milliseconds."""
        return self.runs.exposed_ms

    @property
    def overlap(self) -> float | None:
        """Share of the exchange that was hidden, not clipped; None without one."""
        return self.runs.overlap if self.communicate > 0 else None

    @property
    def balance(self) -> float:
        """Mean over heaviest rank."""
        return float(np.mean(self.busy) / max(self.busy)) if max(self.busy) > 0 else 1.0

    @property
    def scaling(self) -> float:
        """Time on one GPU over ranks times time on all."""
        return self.alone / (len(self.busy) * self.full)


@dataclass(frozen=True)
class Simulation:
    """A prediction and what it was made of: the plan, and the steps of the whole run with their times."""

    plan: Plan
    prediction: Prediction
    steps: Steps
    times: Times


def simulate(
    problem: Problem, mask: ColumnMask, ask: Ask, pass_: str, cluster: Cluster, plan: Plan | None = None
) -> Simulation:
    """Simulate one pass.

    Args:
        problem: shapes and dtype.
        mask: of the problem, on the host.
        ask: ranks, strategy and the rest.
        pass_: forward or backward.
        cluster: what it runs on.
        plan: of the ask, if it was made already (:func:`harness.simulate.plans.plan_of_ask`).

    Raises:
        ClusterError: a degree that the cluster cannot hold, rates that were not fitted, an exchange without a model.
        PlanError: a plan that cannot be made.
    """
    rates = cluster.kernel(KERNEL, pass_, problem.head_dim, problem.dtype)
    program = _program(ask, pass_)
    loads = Loads(plan or plan_of_ask(mask, ask, cluster), problem, pass_, cluster, rates, mask_heads=mask.batch * mask.heads)
    plan, steps = loads.plan, program(loads)
    beyond = beyond_the_fit(loads)
    spread = cluster.kernel_spread(rates, bool(beyond))
    times = play(steps)
    high, low = (play(program(loads.at(end, spread))).total for end in (SLOW, FAST))
    received = _received(plan, loads)
    everything = plan.grid.seqlen * loads.bytes_per_token * (plan.ranks - 1)
    costs = loads.chunk_ms()
    prediction = Prediction(
        full=times.total,
        low=low,
        high=high,
        compute=play(steps.only(COMPUTE)).total,
        communicate=play(steps.only(EXCHANGE)).total,
        alone=float(costs.sum()),
        least=max(float(costs.sum()) / plan.ranks, float(costs.max())),
        busy=tuple(_busy(steps)),
        received=tuple(received),
        share=sum(received) / everything if everything else 0.0,
        least_received=plan.balance.least_received * plan.grid.unit * loads.bytes_per_token,
        held=max(loads.held_bytes(rank, _buffered(plan, loads, rank, ask)) for rank in range(plan.ranks)),
        doubts=(*beyond, *not_known(loads)),
    )
    return Simulation(plan, prediction, steps, times)


def one_after_another(found: Sequence[Prediction]) -> Prediction:
    """Several passes of one problem and plan: times add up, bytes of keys and values are those of the first."""
    times = ("full", "low", "high", "compute", "communicate", "alone", "least")
    return replace(
        found[0],
        **{name: sum(getattr(one, name) for one in found) for name in times},
        busy=tuple(map(sum, zip(*(one.busy for one in found), strict=True))),
        held=max(one.held for one in found),
        doubts=tuple(dict.fromkeys(doubt for one in found for doubt in one.doubts)),
    )


def _program(ask: Ask, pass_: str) -> Callable[[Loads], Steps]:
    """The function that makes the steps."""
    exchange = find_exchange(ask.exchange, ask.strategy)
    if is_ring(ask.strategy):
        return {"forward": rings.forward, "backward": rings.backward}[pass_]
    return program_of(exchange, pass_)


def program_of(exchange: Exchange, pass_: str) -> Callable[[Loads], Steps]:
    """The function that makes the steps of a pass where keys are gathered."""
    if exchange.attends == WHOLE:
        return {"forward": gathered.forward, "backward": gathered.backward}[pass_]
    whole = {"forward": staged.forward, "backward": staged.backward}[pass_]
    return lambda loads: whole(loads, exchange)


def _busy(steps: Steps) -> list[float]:
    busy = [0.0] * steps.ranks
    for step in steps.steps:
        if step.kind == COMPUTE:
            busy[step.rank] += step.work
    return busy


def _received(plan: Plan, loads: Loads) -> list[int]:
    """Bytes of keys and values that every rank receives."""
    received = [0] * plan.ranks
    for one in plan.transfers:
        received[one.target] += loads.tokens(list(one.units)) * loads.bytes_per_token
    return received


def _buffered(plan: Plan, loads: Loads, rank: int, ask: Ask) -> int:
    """Tokens of keys that are not the rank's own, at most at once: all, or two shards of a ring."""
    if is_ring(ask.strategy):
        return 2 * max(loads.own_tokens(one) for one in range(plan.ranks))
    return loads.tokens(plan.units(rank))
