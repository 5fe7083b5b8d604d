"""Keys gathered before attention, and gradients sent back after it: the runtime without stages (``context_parallel.gathered``).

Between nodes the exchange has two halves: everything from owners, to their own node and to the gateways of others, and then
what gateways hand on. Backwards gradients take the same way, and a gateway adds up those of its node, so that they cross the
network once.
"""

from __future__ import annotations

from harness.simulate.loads import Loads
from harness.simulate.moves import Moves, Numbers, Route
from harness.simulate.steps import COMPUTE, EXCHANGE, Steps


def forward(loads: Loads) -> Steps:
    """Pack, exchange, hand on, attend."""
    plan, route = loads.plan, Route.of(loads)
    steps = Steps(plan.ranks)
    there = packed(steps, loads)
    moves = Moves(steps, loads)
    there = moves.group([*route.near, *route.far], there)
    there = moves.group(route.on, there)
    for rank, after in enumerate(there):
        steps.work(rank, COMPUTE, "attention", loads.attention_ms(rank, plan.units(rank)), after)
    return steps


def backward(loads: Loads) -> Steps:
    """Attend, return to gateways and owners, add up at gateways, return over the network, add up."""
    plan, route = loads.plan, Route.of(loads)
    steps = Steps(plan.ranks)
    done: Numbers = [
        [steps.work(rank, COMPUTE, "attention", loads.attention_ms(rank, plan.units(rank)))] for rank in range(plan.ranks)
    ]
    moves = Moves(steps, loads)
    on = [batch.turned() for batch in route.on]
    back = moves.group([*(batch.turned() for batch in route.near), *on], done)
    for rank in range(plan.ranks):
        tokens = sum(batch.tokens_to(rank) for batch in on)
        if tokens:
            back[rank] = [steps.work(rank, EXCHANGE, "add", loads.add_ms(tokens), back[rank])]
    back = moves.group([batch.turned() for batch in route.far], back)
    owed(steps, loads, route, back)
    return steps


def packed(steps: Steps, loads: Loads) -> Numbers:
    """Own keys and values copied to where they are sent from; one rank alone copies nothing."""
    ranks = range(loads.plan.ranks)
    if len(ranks) == 1:
        return [[]]
    return [[steps.work(rank, EXCHANGE, "pack", loads.copy_ms(loads.own_tokens(rank)))] for rank in ranks]


def owed(steps: Steps, loads: Loads, route: Route, after: Numbers) -> None:
    """What comes back to its owner added to the owner's own, in 32 bit, and given back in 16."""
    if loads.plan.ranks == 1:
        return
    for rank in range(loads.plan.ranks):
        tokens = sum(batch.turned().tokens_to(rank) for batch in (*route.near, *route.far))
        own = loads.own_tokens(rank)
        steps.work(rank, EXCHANGE, "add", 2 * loads.to_sums_ms(own) + loads.add_ms(tokens), after[rank])
