"""The tables of rates in docs/simulator.md, from the files that the model reads; ``harness.simulate.fit`` writes them."""

from __future__ import annotations

from harness.marked import with_part
from harness.simulate.cluster import Cluster
from harness.simulate.rates import Rate

TABLES = ("kernels", "links")
"""Names of the markers."""


def kernels(cluster: Cluster) -> str:
    """Rates of kernels, a line each."""
    lines = [
        "| kernel, pass, head dim | full tile | partial tile | outer tile | launch | cells | median, worst error |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in cluster.rates.kernels:
        borrowed = " (borrowed)" if one.borrowed else ""
        prices = " | ".join(f"{price / 1e3:.2f} ns" for price in (one.full_ps, one.partial_ps, one.outer_ps))
        lines.append(
            f"| {one.kernel} {one.pass_}, {one.head_dim}{borrowed} | {prices} | {one.launch_us:.3g} us "
            f"| {one.rows} | {one.median:.1%}, {one.worst:.1%} |"
        )
    return "\n".join(lines)


def links(cluster: Cluster) -> str:
    """Rates of links, a line a way."""
    lines = ["| link, way | one transfer | latency | a message | attention beside it | from |", "|---|---|---|---|---|---|"]
    for name, link in (("NVLink", cluster.near), ("network", cluster.far)):
        if link is None:
            continue
        for way, rates in link.ways.items():
            shown = [_cell(rates.gb_per_s, " GB/s"), _cell(rates.latency_us, " us"), _cell(link.message_us, " us")]
            shown.append(_cell(rates.beside, ""))
            origin = "assumed" if rates.gb_per_s.source.startswith("assumed") else "`results/nvidia-h200/links.csv`"
            lines.append(f"| {name}, {way} | {' | '.join(shown)} | {origin} |")
    return "\n".join(lines)


def with_tables(text: str, cluster: Cluster) -> str:
    """The page with its tables in their places.

    Raises:
        MarkerError: a marker is missing.
    """
    for name, table in zip(TABLES, (kernels(cluster), links(cluster)), strict=True):
        text = with_part(text, name, table)
    return text


def _cell(rate: Rate, unit: str) -> str:
    return f"{rate.value:.3g}{unit} ± {rate.spread:.0%}"
