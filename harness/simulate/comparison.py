"""Predictions beside measured cells of several GPUs: errors, halves, orders, and the limits that they are held to."""

from __future__ import annotations

import hashlib
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

import pandas as pd

from context_parallel.grid import PlanError
from harness.simulate.cluster import Cluster, find_cluster, known_clusters
from harness.simulate.exchange import WAYS, modelled
from harness.simulate.model import KERNEL, Prediction, one_after_another, simulate
from harness.simulate.plans import Ask
from harness.simulate.reading import ClusterError
from harness.simulate.recorded import problem_of
from harness.simulate.run import mask_and_facts
from plots.cells import Cell, mask_rank

SEED = "fm3 unseen half, 1"
"""Of the choice of the unseen half. Another one would be another validation."""

ALL = "all"
"""The line of a table that holds every family."""

MEDIAN_LIMIT, FAMILY_LIMIT, CLEAR = 0.08, 0.20, 0.05
"""The median absolute error, the worst family's, and the difference from which the order of strategies must be right."""


@dataclass(frozen=True)
class Comparison:
    """One measured cell and its prediction."""

    cell: Cell
    prediction: Prediction

    @property
    def unseen(self) -> bool:
        """Whether it belongs to the unseen half."""
        return is_unseen(self.cell["mask"], self.cell["seqlen"])

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.prediction.full / self.cell.median_ms - 1

    @property
    def inside(self) -> bool:
        """Whether the measured time lies in the predicted interval."""
        return self.prediction.low <= self.cell.median_ms <= self.prediction.high

    @property
    def place(self) -> tuple[object, ...]:
        """What strategies are compared on."""
        fields = (
            "mask",
            "mask_variant",
            "mask_digest",
            "seqlen",
            "batch",
            "heads",
            "kv_heads",
            "pass",
            "cp_degree",
            "exchange",
        )
        return tuple(self.cell[name] for name in fields)


def is_unseen(family: str, seqlen: int) -> bool:
    """Whether a (family, length) pair is in the unseen half; does not depend on which rows there are."""
    return hashlib.sha256(f"{SEED} {family} {seqlen}".encode()).digest()[0] % 2 == 1


def compare(cells: Iterable[Cell], cluster: Cluster | None = None) -> tuple[list[Comparison], list[str]]:
    """Comparisons of all measured cells with several GPUs, and why others have none.

    Args:
        cells: any.
        cluster: what they ran on; None: the cluster of their GPU that holds them.
    """
    found, left_out = [], []
    for cell in cells:
        if cell["source"] != "measured" or cell["cp_degree"] == 1 or cell["device"] != "cuda" or not cell.ok:
            continue
        try:
            prediction = _predicted(cell, cluster)
        except (ClusterError, PlanError) as error:
            left_out.append(f"{cell['mask']} {cell['seqlen']} {cell['strategy']} {cell['exchange']}: {error}")
            continue
        found.append(Comparison(cell, prediction))
    return found, left_out


def _predicted(cell: Cell, cluster: Cluster | None) -> Prediction:
    problem = problem_of(cell)
    if problem is None:
        raise ClusterError("its documents are not in the rows")
    if cell["kernel"] != KERNEL or cell["strategy"] not in modelled() or cell["exchange"] not in WAYS:
        raise ClusterError("there is no model of it")
    ask = Ask(cell["cp_degree"], cell["strategy"], cell["exchange"])
    where = cluster or _cluster_of(cell["gpu"], cell["cp_degree"])
    mask, _ = mask_and_facts(problem)
    passes = ("forward", "backward") if cell["pass"] == "both" else (cell["pass"],)
    return one_after_another([simulate(problem, mask, ask, pass_, where).prediction for pass_ in passes])


def _cluster_of(gpu: str, ranks: int) -> Cluster:
    """The smallest cluster of that GPU that holds so many ranks."""
    fitting = []
    for one in map(find_cluster, known_clusters()):
        if one.gpu == gpu and ranks <= one.nodes * one.gpus_per_node:
            fitting.append(one)
    if not fitting:
        raise ClusterError(f"no cluster of {gpu} holds {ranks} ranks; name one with --cluster")
    return min(fitting, key=lambda one: (one.nodes, one.name))


def table(found: Sequence[Comparison]) -> pd.DataFrame:
    """One line a family and half, then one a half for all: cells, median, worst and mean error, share inside the interval."""
    groups: dict[tuple[str, str], list[Comparison]] = defaultdict(list)
    for one in found:
        half = "unseen" if one.unseen else "seen"
        groups[half, one.cell["mask"]].append(one)
        groups[half, ALL].append(one)
    lines = []
    for half, family in sorted(groups, key=lambda key: (key[0] != "unseen", key[1] == ALL, mask_rank(key[1]))):
        errors = [one.error for one in groups[half, family]]
        lines.append(
            {
                "half": half,
                "mask": family,
                "cells": len(errors),
                "median_error": statistics.median(map(abs, errors)),
                "worst_error": max(map(abs, errors)),
                "mean_error": statistics.fmean(errors),
                "inside": statistics.fmean(one.inside for one in groups[half, family]),
            }
        )
    return pd.DataFrame(lines)


def wrong_orders(found: Sequence[Comparison]) -> tuple[int, list[str]]:
    """Pairs of strategies that clearly differ in measured time, and those of them that are predicted the other way round."""
    places: dict[tuple[object, ...], list[Comparison]] = defaultdict(list)
    for one in found:
        places[one.place].append(one)
    clear, wrong = 0, []
    for members in places.values():
        for one, other in combinations(sorted(members, key=lambda each: each.cell.median_ms), 2):
            if other.cell.median_ms <= one.cell.median_ms * (1 + CLEAR):
                continue
            clear += 1
            if one.prediction.full >= other.prediction.full:
                names = f"{one.cell['strategy']} before {other.cell['strategy']}"
                wrong.append(f"{one.cell['mask']} {one.cell['seqlen']} {one.cell['pass']}: measured {names}")
    return clear, wrong


def misses(found: Sequence[Comparison]) -> list[str]:
    """Which limits the unseen half misses; without an unseen cell nothing can be said, which is a miss too."""
    unseen = [one for one in found if one.unseen]
    if not unseen:
        return ["no cell of the unseen half was measured"]
    lines = table(unseen)
    told = []
    median = float(lines.loc[lines["mask"] == ALL, "median_error"].iloc[0])
    if median > MEDIAN_LIMIT:
        told.append(f"median error {median:.1%}, allowed {MEDIAN_LIMIT:.0%}")
    for line in lines[lines["mask"] != ALL].to_dict("records"):
        if line["median_error"] > FAMILY_LIMIT:
            told.append(f"{line['mask']}: median error {line['median_error']:.1%}, allowed {FAMILY_LIMIT:.0%}")
    _, wrong = wrong_orders(unseen)
    return told + [f"order of strategies: {one}" for one in wrong]
