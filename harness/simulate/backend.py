"""This project's kernel on ranks that do not exist: a competitor whose rows come from the model."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from context_parallel.grid import PlanError
from harness.backends.base import Attend, Availability, Backend
from harness.cases import Problem, Sharing
from harness.provenance import ROOT, hash_files
from harness.simulate.cluster import Cluster, find_cluster
from harness.simulate.model import KERNEL
from harness.simulate.plans import Ask
from harness.simulate.reading import ClusterError
from masks.column_mask import ColumnMask


class Simulated(Backend):
    """The kernel of the rates under a strategy, on a cluster."""

    def __init__(self, sharing: Sharing, cluster: str) -> None:
        self.name, self.title = KERNEL, KERNEL  # type: ignore[misc]
        self.ask = Ask(sharing.cp_degree, sharing.strategy, sharing.exchange)
        self.cluster: Cluster = find_cluster(cluster)

    def probe(self, device: str) -> Availability:
        """Always there; the version is where the rates are from."""
        return Availability(True, f"simulated at rates of {self.cluster.rates_name}")

    def unsupported(self, problem: Problem, mask: ColumnMask, pass_: str, device: str) -> str | None:
        """What the cluster or the rates do not cover."""
        try:
            self.cluster.ranks_per_node(self.ask.ranks)
            for name in ("forward", "backward") if pass_ == "both" else (pass_,):
                self.cluster.kernel(KERNEL, name, problem.head_dim, problem.dtype)
        except (ClusterError, PlanError) as error:
            return str(error)
        return None

    def prepare(self, problem: Problem, mask: ColumnMask) -> Attend:
        """Nothing runs here."""
        raise NotImplementedError("a simulated competitor is not called; harness.simulate.run makes its rows")

    def sources_of(self, pass_: str) -> Iterable[Path]:
        """The model and the planner."""
        names = ("harness/simulate", "context_parallel", "csrc/planner", "masks/families", "masks/localize.py")
        return [ROOT / name for name in names]

    def source_hash(self, device: str, pass_: str) -> str:
        """Of the sources, the cluster and its rates: other rates are another simulator."""
        return hash_files(self.sources_of(pass_), salt=f"{self.name} {self.cluster.digest}")

    def environment(self) -> dict[str, Any]:
        """What stands in for the machine of a run: a model of one. Nothing of the machine that computes it matters."""
        cluster = self.cluster
        return {
            "device": "cuda",
            "gpu": cluster.title,
            "gpu_hash": None,
            "power_limit": None,
            "simulated": True,
            "cluster": cluster.name,
            "cluster_digest": cluster.digest,
            "rates": cluster.rates_name,
            "rates_of": cluster.rates.gpu,
        }
