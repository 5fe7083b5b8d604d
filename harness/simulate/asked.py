"""Which simulated cases a run asks for, and what the model refuses before anything is computed."""

from __future__ import annotations

from collections.abc import Sequence

from context_parallel.grid import PlanError
from harness.cases import Team
from harness.config.errors import ConfigError
from harness.config.run_config import RunConfig
from harness.simulate.cluster import find_cluster
from harness.simulate.exchange import find_exchange, modelled, strategies_of
from harness.simulate.model import KERNEL
from harness.simulate.reading import ClusterError


def simulated_team(config: RunConfig, degree: int) -> Team:
    """The ranks that are simulated, by NCCL unless another exchange was named.

    Raises:
        ConfigError: a degree that the cluster cannot hold, rates that were not fitted, a strategy or an exchange that there is
            no model of.
    """
    if config.deterministic:
        raise ConfigError("deterministic=true: there are no rates of the deterministic backward pass to simulate it with")
    try:
        for name in config.strategies or modelled()[:1]:
            find_exchange(_exchange(config), name)
        cluster = find_cluster(str(config.cluster))
        cluster.ranks_per_node(degree)
        for pass_ in ("forward", "backward") if "both" in config.passes else config.passes:
            cluster.kernel(KERNEL, pass_, config.head_dim, config.dtype)
    except (ClusterError, PlanError) as error:
        raise ConfigError(str(error)) from error
    return Team(degree, _exchange(config))


def simulated_strategies(config: RunConfig) -> Sequence[str]:
    """The strategies that were named, or all that have the exchange."""
    return config.strategies or strategies_of(_exchange(config))


def _exchange(config: RunConfig) -> str:
    return "nccl" if config.exchange in (None, "auto") else str(config.exchange)


def simulated_kernels(config: RunConfig) -> tuple[str, ...]:
    """The kernel whose rates there are.

    Raises:
        ConfigError: another one was named.
    """
    other = [name for name in config.kernels or () if name != KERNEL]
    if other:
        raise ConfigError(f"kernel.names={','.join(other)}: what is simulated is {KERNEL}; allowed: that alone")
    return (KERNEL,)
