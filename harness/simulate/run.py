"""A group of the harness, simulated: the worker's part, in place of checking and timing. One round, one sample.

Reports what ``harness.worker`` would, so rows, resuming and everything that reads rows are the same; the rows say that they are
simulated, and what of them is doubtful.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from functools import lru_cache
from typing import Any

from context_parallel.grid import PlanError
from harness.backends import backend_of
from harness.cases import Group, MaskSpec, Problem
from harness.inputs import make_mask
from harness.resume import Planned
from harness.simulate.backend import Simulated
from harness.simulate.cluster import Cluster
from harness.simulate.model import VALIDATED, Prediction, one_after_another, simulate
from harness.simulate.plans import plan_of_ask
from harness.simulate.reading import ClusterError
from masks.column_mask import ColumnMask
from masks.tiles import exact_density, tile_density

Report = Callable[..., None]


def simulate_group(planned: Planned, report: Report) -> None:
    """Predict every pass of one group; refusals become verdicts."""
    group = planned.group
    mask, facts = mask_and_facts(group.problem)
    report(event="mask", **facts)
    for kernel in planned.kernels:
        backend = backend_of(kernel, group)
        assert isinstance(backend, Simulated)
        report(event="start", kernel=kernel, phase="check")
        passes = [pass_ for pass_ in group.passes if (0, kernel, pass_) in planned.todo]
        try:
            found = predictions(group, mask, backend)
        except (ClusterError, PlanError) as error:
            report(event="verdict", kernel=kernel, passes=passes, status="unsupported", reason=str(error))
            continue
        report(event="start", kernel=kernel, phase="simulating", round=0)
        entries = [_entry(kernel, pass_, found[pass_], backend.cluster) for pass_ in passes]
        report(event="round", round=0, entries=entries)


def predictions(group: Group, mask: ColumnMask, backend: Simulated) -> dict[str, Prediction]:
    """Of the group's passes."""
    plan = plan_of_ask(mask, backend.ask, backend.cluster)
    single = ("forward", "backward") if "both" in group.passes else group.passes
    found = {pass_: simulate(group.problem, mask, backend.ask, pass_, backend.cluster, plan).prediction for pass_ in single}
    if "both" in group.passes:
        found["both"] = one_after_another(list(found.values()))
    return found


def facts_of(whole: Prediction, cluster: Cluster) -> dict[str, Any]:
    """The row's ``simulation``; names and meaning are those of the summary's columns where it has them."""
    return {
        "cluster": cluster.name,
        "rates": cluster.rates_name,
        "ranks_per_node": cluster.ranks_per_node(len(whole.busy)),
        "validated": VALIDATED,
        "doubts": list(whole.doubts),
        "interval_ms": [whole.low, whole.high],
        "t_full_ms": whole.full,
        "t_comp_ms": whole.compute,
        "t_comm_ms": whole.communicate,
        "exposed_ms": whole.exposed,
        "overlap": whole.overlap,
        "balance": whole.balance,
        "recv_bytes": sum(whole.received),
        "recv_bytes_max": max(whole.received),
        "recv_share": whole.share,
        "scaling": whole.scaling,
        "least_ms": whole.least,
        "held_bytes": whole.held,
    }


def _entry(kernel: str, pass_: str, one: Prediction, cluster: Cluster) -> dict[str, Any]:
    facts = facts_of(one, cluster)
    return {"kernel": kernel, "pass": pass_, "order": 0, "samples_ms": [one.full], "errors": {}, "simulation": facts}


def mask_and_facts(problem: Problem) -> tuple[ColumnMask, dict[str, Any]]:
    """The mask of a problem on the host and what rows say of it; kept for the next call, which often has the same problem."""
    return _mask_of(json.dumps(asdict(problem), sort_keys=True))


@lru_cache(maxsize=1)
def _mask_of(problem: str) -> tuple[ColumnMask, dict[str, Any]]:
    raw = json.loads(problem)
    mask = make_mask(Problem(mask=MaskSpec(**raw.pop("mask")), **raw), "cpu")
    densities = {"density": exact_density(mask), "tile_density": tile_density(mask)}
    return mask, {"mask_digest": mask.digest(), "mask_heads": mask.heads, **densities}
