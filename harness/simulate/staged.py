"""Keys that arrive while attention works, stage by stage: forward own keys first, backward remote ones.

In one launch that waits for a flag a stage (which no kernel can do yet), or by a launch a stage whose results are merged. By
copy engines a rank reads its units from their owners, one copy after another in the order of its stages; by NCCL a stage is
one grouped exchange, and exchanges of a rank are one after another. Over the network stages come by NCCL, and gateways are
read like owners. Backward, keys are there already: the gradients of a stage leave when it is computed.

How the tiles of a row wait for each other inside one launch is not modelled: a stage is a share of it, by its tiles.
"""

from __future__ import annotations

from harness.simulate.cluster import COPY
from harness.simulate.exchange import FLAGS, Exchange
from harness.simulate.gathered import owed, packed
from harness.simulate.loads import Loads
from harness.simulate.moves import Batch, Moves, Numbers, Route, joined
from harness.simulate.steps import COMPUTE, EXCHANGE, Steps


class _Staged:
    """Where every rank is: ``done`` on its processors, ``wire`` with its exchanges by NCCL, ``last`` with its copies."""

    def __init__(self, loads: Loads, exchange: Exchange) -> None:
        self.loads, self.plan, self.exchange = loads, loads.plan, exchange
        self.ranks = range(loads.plan.ranks)
        self.route = Route.of(loads)
        self.steps = Steps(loads.plan.ranks)
        self.moves = Moves(self.steps, loads)
        self.done: Numbers = [[] for _ in self.ranks]
        self.wire: Numbers = [[] for _ in self.ranks]
        self.last: Numbers = [[] for _ in self.ranks]
        self.attending: set[int] = set()  # ranks that have a result to merge with
        self.shares = [shares_of(loads, rank) for rank in self.ranks] if exchange.attends == FLAGS else []

    def attend(self, stage: int, arrived: Numbers) -> None:
        """Attention of every rank to its units of a stage, once they are there."""
        for rank in self.ranks:
            units = self.plan.units(rank, stage)
            if self.exchange.attends == FLAGS:
                if self.shares[rank][stage]:
                    flags = [self.moves.flag(rank, COPY, arrived[rank])] if arrived[rank] else []
                    self._compute(rank, stage, self.shares[rank][stage], flags)
            elif units or not stage:
                # Rows that see nothing of a stage are left out of its launch, and of what is merged.
                seeing = self.plan.seeing(rank, stage) if stage else None
                self._compute(rank, stage, self.loads.attention_ms(rank, units, seeing), arrived[rank])
                if rank in self.attending:
                    merge = self.steps.work(rank, COMPUTE, "merge", self.loads.merge_ms(rank, seeing), self.done[rank])
                    self.done[rank] = [merge]
                self.attending.add(rank)

    def bring(self, batch: Batch, ready: Numbers) -> Numbers:
        """Messages of a stage within the node; what every rank waits for that sends or receives some."""
        return self._copies(batch, ready, reads=True) if self.exchange.way == COPY else self.grouped(batch, ready)

    def give(self, batch: Batch, ready: Numbers) -> Numbers:
        """The same backward: whoever has gradients writes them."""
        if self.exchange.way != COPY:
            return self.grouped(batch, ready)
        goal = self._copies(batch, ready, reads=False)
        return [[self.moves.flag(rank, COPY, [step]) for step in steps] for rank, steps in enumerate(goal)]

    def grouped(self, batch: Batch, ready: Numbers) -> Numbers:
        """One exchange by NCCL, after those before it."""
        if not batch.messages:
            return [[] for _ in self.ranks]
        over = self.moves.group([batch], joined(self.wire, ready))
        part = {rank for source, target, _ in batch.messages for rank in (source, target)}
        self.wire = [over[rank] if rank in part else self.wire[rank] for rank in self.ranks]
        return [over[rank] if rank in part else [] for rank in self.ranks]

    def _copies(self, batch: Batch, ready: Numbers, reads: bool) -> Numbers:
        arrived: Numbers = [[] for _ in self.ranks]
        for message in batch.messages:
            source, target, _ = message
            copier = target if reads else source
            step = self.moves.copy(message, COPY, [*self.last[copier], *ready[source]])
            self.last[copier] = [step]
            arrived[target] = [step] if reads else [*arrived[target], step]
        return arrived

    def _compute(self, rank: int, stage: int, milliseconds: float, after: list[int]) -> None:
        work = self.steps.work(rank, COMPUTE, f"stage {stage}", milliseconds, [*self.done[rank], *after])
        self.done[rank] = [work]


def forward(loads: Loads, exchange: Exchange) -> Steps:
    """Pack; then messages on one side, stages of attention on the other."""
    run = _Staged(loads, exchange)
    there = packed(run.steps, loads)
    run.done = [*there]
    arrived: list[Numbers] = [[[] for _ in run.ranks]]
    for near in run.route.near:
        arrived.append(run.bring(near, there))
    entered = [run.grouped(far, there) for far in run.route.far]
    for stage, on in enumerate(run.route.on):
        if on.messages or run.route.far[stage].messages:
            # A rank waits for what it took from the network itself, and for what was handed to it.
            arrived[1 + stage] = joined(arrived[1 + stage], entered[stage], run.bring(on, joined(there, entered[stage])))
    for stage, numbers in enumerate(arrived):
        run.attend(stage, numbers)
    return run.steps


def backward(loads: Loads, exchange: Exchange) -> Steps:
    """Stages of attention, remote ones first; behind them the gradients; sums at gateways and at the owner."""
    run = _Staged(loads, exchange)
    nothing: Numbers = [[] for _ in run.ranks]
    home: list[Numbers] = [nothing]
    for stage in range(run.plan.last_stage, 0, -1):
        run.attend(stage, nothing)
        near, far, on = (kind[stage - 1].turned() for kind in (run.route.near, run.route.far, run.route.on))
        home.append(run.give(near, run.done))
        returned = run.give(on, run.done)
        gateways = {source for source, _, _ in far.messages}
        ready: Numbers = []
        for rank in run.ranks:
            begun = [*run.done[rank], *returned[rank]] if rank in gateways else []
            if tokens := on.tokens_to(rank):
                # Beside attention, which holds the processors: it takes time, and slows nothing down.
                begun = [run.steps.delay(rank, EXCHANGE, "add", loads.add_ms(tokens), begun)]
            ready.append(begun)
        home.append(run.grouped(far, ready))
    run.attend(0, nothing)
    owed(run.steps, loads, run.route, joined(run.done, *home))
    return run.steps


def shares_of(loads: Loads, rank: int) -> list[float]:
    """Milliseconds of the one launch that fall to every stage, by its tiles; stage 0 is the rank's own columns."""
    plan = loads.plan
    whole = loads.attention_ms(rank, plan.units(rank))
    launches = [loads.launch(rank, plan.units(rank, stage)) for stage in range(plan.last_stage + 1)]
    costs = [one.full * loads.rates.full_ps + one.partial * loads.rates.partial_ps for one in launches]
    total = sum(costs)
    return [whole * cost / total for cost in costs] if total else [whole, *([0.0] * plan.last_stage)]
