"""Small clusters and problems whose times can be worked out by hand."""

from __future__ import annotations

from dataclasses import replace

from harness.cases import MaskSpec, Problem
from harness.simulate.cluster import COPY, SM, Cluster, Link
from harness.simulate.rates import KernelRates, Rate, Rates, Way
from masks.column_mask import ColumnMask
from masks.families import build_mask


def rate(value: float, spread: float = 0.0) -> Rate:
    return Rate(value, spread, "a test")


def kernel(pass_: str, **changes: float) -> KernelRates:
    """1 microsecond a full tile of one head, 2 a partial one, nothing else."""
    one = KernelRates(
        kernel="fm3",
        pass_=pass_,
        head_dim=64,
        full_ps=1e6,
        partial_ps=2e6,
        outer_ps=0.0,
        launch_us=0.0,
        worst=0.0,
        median=0.0,
        rows=10,
        outer_tiles=(0.0, 1e12),
        tiles_an_outer=(0.0, 1e12),
        source="a test",
    )
    return replace(one, **changes)  # type: ignore[arg-type]


def cluster(
    *,
    gb_per_s: float = 100.0,
    network_gb_per_s: float = 10.0,
    latency_us: float = 0.0,
    message_us: float = 0.0,
    beside: float = 1.0,
    gpus_per_node: int = 8,
    nodes: int = 4,
    spread: float = 0.0,
    **of_kernel: float,
) -> Cluster:
    """One SM a GPU, memory as fast as one wants, no spreads."""

    def way(speed: float) -> Way:
        return Way(rate(speed, spread), rate(latency_us, spread), rate(beside, spread))

    def link(speed: float, *names: str) -> Link:
        return Link(rate(1e6), rate(message_us, spread), {name: way(speed) for name in names})

    rates = Rates("Model GPU", (kernel("forward", **of_kernel), kernel("backward", **of_kernel)), {})
    return Cluster(
        name="model",
        gpu="Model GPU",
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        sms=0,
        memory_gb_per_s=rate(1e12),
        memory_gib=1e6,
        near=link(gb_per_s, SM, COPY),
        far=link(network_gb_per_s, SM),
        rates=rates,
        rates_name="model",
        widen=0.0,
        digest="model",
    )


def problem(seqlen: int, family: str = "full", heads: int = 1, kv_heads: int = 1, batch: int = 1) -> Problem:
    return Problem(MaskSpec(family), seqlen, batch, heads, kv_heads, 64, "bfloat16")


def full(seqlen: int) -> ColumnMask:
    return build_mask("full", seqlen)
