"""``python -m harness.plan``: which strategy, degree, chunk size and slack for a mask on a cluster. Simulated, not measured.

Takes the same words as ``python -m harness``; without ``cp_degree`` every power of two that the cluster holds is tried, without
``strategy`` every strategy. Prints a ranking with what each way costs and the bounds that no way beats, what of it is doubtful,
and writes the ranking and the timeline of the best way. No rows: those come from ``python -m harness``.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from context_parallel.balance import SLACK
from context_parallel.grid import Grid, PlanError
from context_parallel.strategies import STRATEGIES
from harness.cases import Problem
from harness.columns import WIDTH, aligned, terminal_width
from harness.config import ConfigError, RunConfig
from harness.config.compose import load
from harness.config.resolve import resolve
from harness.expand import expand
from harness.inputs import make_mask
from harness.machine import this_machine
from harness.simulate.cluster import Cluster, find_cluster
from harness.simulate.exchange import strategies_of
from harness.simulate.model import VALIDATED, Prediction, one_after_another, simulate
from harness.simulate.plans import Ask, plan_of_ask
from harness.simulate.reading import ClusterError
from harness.simulate.timeline import spans
from masks.column_mask import BLOCK, ColumnMask
from plots import simulated_timeline
from plots.files import save, to_csv

OK, USAGE = 0, 2

MOST_RANKS = 32
"""Larger degrees are only tried when named."""

SLACKS = (1000, 10)
"""Tried beside the planner's own: nearly none, and a tenth."""

GIB = 2**30


@dataclass(frozen=True)
class Way:
    """One way to share the sequence, and what is predicted of the asked passes together."""

    ask: Ask
    chunk: int
    prediction: Prediction

    @property
    def name(self) -> str:
        """As the ranking names it."""
        return f"{self.ask.strategy} CP={self.ask.ranks} chunk={self.chunk} slack=1/{self.ask.slack or SLACK}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0, or 2 for a question that has no answer."""
    parser = argparse.ArgumentParser(
        prog="python -m harness.plan",
        description="Rank ways to share a sequence among the GPUs of a cluster, by simulation.",
        epilog="for instance: python -m harness.plan mask=document mask.lengths=my.parquet seqlen=131072 hardware=h100_8",
    )
    parser.add_argument("words", nargs="*", metavar="key=value", help="as for python -m harness")
    parser.add_argument("--out", type=Path, help="folder of the ranking and the timeline (default: RESULTS_DIR/plan)")
    parser.add_argument("--top", type=int, default=12, metavar="N", help="lines of the ranking (default: 12)")
    options = parser.parse_intermixed_args(arguments)
    if options.top < 1:
        parser.error(f"--top is {options.top}; it must be at least 1")
    try:
        config = _config(options.words)
        problem = _problem(config)
        cluster = find_cluster(str(config.cluster))
        degrees = _degrees(options.words, config, cluster, problem.seqlen)
        out = options.out or Path(config.results_dir) / "plan"
        out.mkdir(parents=True, exist_ok=True)  # before all the work
        mask = make_mask(problem, "cpu")
        ways = ranking(problem, mask, config, cluster, degrees)
        print(text(ways, problem, config.passes, cluster, options.top, terminal_width()))
        _write(ways, problem, mask, config, cluster, out)
        print(f"ranking and timeline: {out}")
    except (ConfigError, ClusterError, PlanError) as error:
        print(f"error: {error}", file=sys.stderr)
        return USAGE
    except OSError as error:
        print(f"error: cannot write {error.filename or options.out}: {error.strerror or error}", file=sys.stderr)
        return USAGE
    return OK


def _config(words: Sequence[str]) -> RunConfig:
    """The question, as a simulated run of some degree."""
    for word in words:
        key, _, value = word.partition("=")
        if key == "source" and value != "simulated":
            raise ConfigError(f"{word}: a plan is simulated; leave it out")
        if key == "passes" and "both" in value:
            raise ConfigError(f"{word}: a plan adds passes up by itself; allowed: forward, backward")
    said = {word.partition("=")[0] for word in words}
    extra = [word for word in ("source=simulated", "cp_degree=8") if word.partition("=")[0] not in said]
    machine = this_machine()
    return resolve(load([*words, *extra]), machine.gpu, machine.gpus)


def _problem(config: RunConfig) -> Problem:
    groups = expand(config, this_machine())
    problem = groups[0].problem
    if any(group.problem != problem for group in groups):
        raise ConfigError("a plan is for one mask and one length, and this asks for several; give mask= and seqlen=")
    return problem


def _degrees(words: Sequence[str], config: RunConfig, cluster: Cluster, seqlen: int) -> list[int]:
    """The degree that was named, or all powers of two that the cluster holds and the sequence has tiles for."""
    if any(word.startswith("cp_degree=") for word in words):
        return list(config.cp_degrees)
    most = min(MOST_RANKS, cluster.nodes * cluster.gpus_per_node, max(2, seqlen // BLOCK))
    powers = [2**n for n in range(1, most.bit_length()) if 2**n <= most]
    return [n for n in powers if n <= cluster.gpus_per_node or n % cluster.gpus_per_node == 0]


def ranking(problem: Problem, mask: ColumnMask, config: RunConfig, cluster: Cluster, degrees: Sequence[int]) -> list[Way]:
    """All ways that are tried, fastest first; equally fast ones in the order they are tried.

    Every strategy at every degree with the planner's chunk and slack; then, for the strategy that balances, half and double the
    chunk, and more and less slack, one at a time. Where that gives a plan that was tried already it is no other way.
    """
    exchange = "nccl" if config.exchange in (None, "auto") else config.exchange
    names = config.strategies or strategies_of(exchange)
    found = []
    for ranks in degrees:
        for name in names:
            tried = set()
            for ask in _variants(Ask(ranks, name, exchange), problem.seqlen):
                plan = plan_of_ask(mask, ask, cluster)
                what = (plan.grid.chunk, plan.balance.placement.tobytes())
                if what in tried:
                    continue
                tried.add(what)
                passes = [simulate(problem, mask, ask, pass_, cluster, plan).prediction for pass_ in config.passes]
                found.append(Way(ask, plan.grid.chunk, one_after_another(passes)))
    return sorted(found, key=lambda way: way.prediction.full)


def _variants(ask: Ask, seqlen: int) -> Iterator[Ask]:
    yield ask
    if STRATEGIES[ask.strategy].placement != "balanced":
        return
    chunk = Grid.of(seqlen, ask.ranks).chunk
    for other in (chunk // 2 // BLOCK * BLOCK, chunk * 2):
        if BLOCK <= other != chunk and other * ask.ranks <= seqlen:
            yield replace(ask, chunk=other)
    for slack in SLACKS:
        yield replace(ask, slack=slack)


def text(ways: Sequence[Way], problem: Problem, passes: Sequence[str], cluster: Cluster, top: int, width: int = WIDTH) -> str:
    """The ranking, the bounds and the doubts, for a terminal of so many columns."""
    p = problem
    heads = f"{p.heads}/{p.kv_heads} heads"
    told = [
        f"SIMULATED on {cluster.title}; nothing of this is a measurement{'' if VALIDATED else ', and nothing was validated'}",
        f"{p.mask.family}, {p.seqlen} tokens, batch {p.batch}, {heads}, D={p.head_dim}, {p.dtype}: {' + '.join(passes)}",
    ]
    lines = [*(part for line in told for part in textwrap.wrap(line, width)), ""]
    table = [HEAD, *([str(place), *_line(way, cluster)] for place, way in enumerate(ways[:top], 1))]
    lines += aligned(table, width, keys=HEAD.index("slack") + 1, left=(HEAD.index("strategy"),))
    lines += ["", "bounds, whatever the placement of chunks:"]
    for ranks in sorted({way.ask.ranks for way in ways}):
        of_degree = [way for way in ways if way.ask.ranks == ranks]
        least = min(way.prediction.least for way in of_degree)
        received = min(way.prediction.least_received for way in of_degree) / ranks / GIB
        best = f"{of_degree[0].prediction.full:.3g} ms ({of_degree[0].name})"
        bound = f"  CP={ranks}: at least {least:.3g} ms of attention, {received:.3g} GiB received a rank; best: {best}"
        lines += textwrap.wrap(bound, width, subsequent_indent="    ")
    lines += ["", "doubts about the first:"]
    for doubt in ways[0].prediction.doubts:
        lines += textwrap.wrap(f"  {doubt}", width, subsequent_indent="    ")
    return "\n".join(lines)


HEAD = [
    "",
    "ranks",
    "strategy",
    "chunk",
    "slack",
    "ms",
    "interval",
    "hidden",
    "balance",
    "received",
    "share",
    "held",
    "scaling",
]


def _line(way: Way, cluster: Cluster) -> list[str]:
    one = way.prediction
    too_much = "!" if one.held > cluster.memory_gib * GIB else ""
    return [
        str(way.ask.ranks),
        way.ask.strategy,
        str(way.chunk),
        f"1/{way.ask.slack or SLACK}" if STRATEGIES[way.ask.strategy].placement == "balanced" else "-",
        f"{one.full:.2f}",
        f"{one.low:.2f}-{one.high:.2f}",
        "-" if one.overlap is None else f"{one.overlap:.0%}",
        f"{one.balance:.2f}",
        f"{max(one.received) / GIB:.2f} GiB",
        f"{one.share:.2f}",
        f"{one.held / GIB:.1f} GiB{too_much}",
        f"{one.scaling:.2f}",
    ]


def _write(ways: Sequence[Way], problem: Problem, mask: ColumnMask, config: RunConfig, cluster: Cluster, out: Path) -> None:
    """The whole ranking as CSV, and the timeline of the best way, a figure a pass."""
    columns = ["place", "source", "cluster", *HEAD[1:]]
    lines = [[place, "simulated", cluster.name, *_line(way, cluster)] for place, way in enumerate(ways, 1)]
    (out / "ranking.csv").write_text(to_csv(pd.DataFrame(lines, columns=columns)), encoding="utf-8")
    best = ways[0]
    for pass_ in config.passes:
        run = simulate(problem, mask, best.ask, pass_, cluster)
        frame = simulated_timeline.data(spans(run))
        one = run.prediction
        known = "" if VALIDATED else ", not validated"
        shape = f"{problem.dtype}, {problem.heads}/{problem.kv_heads} heads, D={problem.head_dim}"
        first = f"SIMULATED on {cluster.title}{known} · {shape} · {one.full:.3g} ms ({one.low:.3g} to {one.high:.3g})"
        caption = "\n".join([first, simulated_timeline.note(), *one.doubts])
        title = f"SIMULATED · {problem.mask.family}, {problem.seqlen} tokens, {pass_}: {best.name}"
        figure = simulated_timeline.draw(frame, caption, title=title, compute_ms=one.compute)
        save(figure, frame, out / f"timeline_{pass_}")


if __name__ == "__main__":
    sys.exit(main())
