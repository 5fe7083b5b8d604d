"""What is doubtful about a prediction, in words that rows keep and captions count by their first one."""

from __future__ import annotations

from harness.simulate.loads import Loads


def beyond_the_fit(loads: Loads) -> list[str]:
    """How the launches that were asked for lie beyond those that the rates were fitted to."""
    launches = [one for one in loads.launches() if one.outer]
    sizes = [one.outer for one in launches]
    lengths = [(one.full + one.partial) / one.outer for one in launches]
    told = []
    for values, (low, high), what in (
        (sizes, loads.rates.outer_tiles, "outer tiles a launch"),
        (lengths, loads.rates.tiles_an_outer, "tiles an outer tile"),
    ):
        if values and (min(values) < low or max(values) > high):
            seen = f"{low:g}" if low == high else f"{low:g} to {high:g}"
            told.append(f"extrapolated: {min(values):.4g} to {max(values):.4g} {what}, fitted at {seen}")
    return told


def not_known(loads: Loads) -> list[str]:
    """Which rates are another kernel's, pass's or GPU's, and which nobody has measured."""
    ranks, cluster = loads.plan.ranks, loads.cluster
    told = []
    if loads.rates.borrowed is not None:
        told.append(f"borrowed: {loads.rates.borrowed}")
    if cluster.borrowed:
        told.append(f"borrowed: kernels and NVLink of {cluster.rates.gpu}")
    if ranks > 2:
        told.append("assumed: NVLink between two GPUs as between all of a node")
    if ranks > cluster.gpus_per_node:
        told.append("assumed: all rates between nodes")
    return told
