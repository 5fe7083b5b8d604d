"""The cluster that is simulated: GPUs in nodes, the links between them, and whose kernel rates hold on them.

One YAML file a cluster, in ``conf/cluster/`` or anywhere else; read strictly. It says its own name, GPU, topology, ports and
memory, and which fitted rates (``conf/cluster/rates/``) it takes for kernels and, where it says ``measured``, for links. A
cluster of another GPU than those rates are of must say by how much it widens them.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.simulate.rates import FOLDER, NOMINAL, KernelRates, Rate, Rates, Way
from harness.simulate.reading import ClusterError, count, entries, load, mapping, number, text
from harness.simulate.steps import Lane
from masks.spelling import allowed_names

SM, COPY = "sm", "copy"
WAYS = (SM, COPY)
"""Who moves the bytes: NCCL's kernels, or the copy engines (within a node)."""

MEASURED = "measured"


@dataclass(frozen=True)
class Link:
    """A kind of port. wire_gb_per_s: what the wire carries one way. message_us: besides, every message of a rank."""

    wire_gb_per_s: Rate
    message_us: Rate
    ways: dict[str, Way]

    def lane(self, way: str, network: bool, end: int) -> Lane:
        """The way through the ports, at an end of its spreads; never faster than the wire."""
        speed = min(self.ways[way].gb_per_s.as_speed(end), self.wire_gb_per_s.value)
        return Lane(speed * 1e6, min(1.0, self.ways[way].beside.as_speed(end)), network)

    def latency_ms(self, way: str, end: int) -> float:
        """Before the first byte of an exchange."""
        return self.ways[way].latency_us.as_cost(end) / 1e3

    def message_ms(self, end: int) -> float:
        """Of one message."""
        return self.message_us.as_cost(end) / 1e3


@dataclass(frozen=True)
class Cluster:
    """What a file of ``conf/cluster/`` says.

    Args:
        name: the file's.
        gpu: model.
        nodes: at most this many.
        gpus_per_node: GPUs that reach each other without the network.
        sms: streaming multiprocessors of a GPU.
        memory_gb_per_s: of a GPU's memory.
        memory_gib: how much of it there is.
        near: ports within a node. far: ports into the network; None for one node.
        rates: fitted rates. rates_name: their file.
        widen: what is added to every spread of the rates, which are of another GPU; 0 when they are of this one.
        digest: hash of the file and of the rates.
    """

    name: str
    gpu: str
    nodes: int
    gpus_per_node: int
    sms: int
    memory_gb_per_s: Rate
    memory_gib: float
    near: Link
    far: Link | None
    rates: Rates
    rates_name: str
    widen: float
    digest: str

    @property
    def title(self) -> str:
        """The machine as rows and figures name it."""
        return f"{self.name} ({self.gpus_per_node} x {self.gpu} a node)"

    @property
    def borrowed(self) -> bool:
        """Whether the rates were measured on another GPU."""
        return self.rates.gpu != self.gpu

    def ranks_per_node(self, ranks: int) -> int:
        """GPUs that a group of so many ranks takes of every node.

        Raises:
            ClusterError: a degree that the topology cannot hold.
        """
        if 1 <= ranks <= self.gpus_per_node:
            return ranks
        most = self.nodes * self.gpus_per_node
        if ranks < 1 or ranks > most or ranks % self.gpus_per_node:
            several = f" and multiples of {self.gpus_per_node} up to {most}" if self.nodes > 1 else ""
            raise ClusterError(f"cp_degree={ranks}: {self.name} holds 1 to {self.gpus_per_node} ranks{several}")
        return self.gpus_per_node

    def kernel(self, kernel: str, pass_: str, head_dim: int, dtype: str) -> KernelRates:
        """Rates of a kernel.

        Raises:
            ClusterError: none were fitted; names those that were.
        """
        if dtype not in ("bfloat16", "float16"):
            raise ClusterError(f"dtype={dtype}: rates were fitted for 16-bit elements; allowed: bfloat16, float16")
        found = self.rates.kernel(kernel, pass_, head_dim)
        if found is None:
            fitted = ", ".join(f"{one.kernel} {one.pass_} D={one.head_dim}" for one in self.rates.kernels)
            raise ClusterError(f"no rates of {kernel} {pass_} D={head_dim} in {self.rates_name}.yaml; fitted: {fitted}")
        return found

    def kernel_spread(self, rates: KernelRates, extrapolated: bool) -> float:
        """How far a kernel's time may be off: the worst error of the fit, twice that beyond what it has seen."""
        return min(0.9, rates.worst * (2 if extrapolated else 1) + self.widen)

    def memory_ms(self, amount: float, end: int = NOMINAL) -> float:
        """Milliseconds to read or write so many bytes."""
        return amount / (self.memory_gb_per_s.as_speed(end) * 1e6)


def find_cluster(name: str) -> Cluster:
    """A cluster by its name in ``conf/cluster/``, or by the path of a YAML file.

    Raises:
        ClusterError: unknown, or a file that is not right; the message names the entry.
    """
    path = Path(name) if name.endswith((".yaml", ".yml")) else FOLDER / f"{name}.yaml"
    if not path.is_file():
        raise ClusterError(f"hardware.cluster={name}: {allowed_names(name, known_clusters())}, or the path of a YAML file")
    if path.parent.resolve() != FOLDER and path.stem in known_clusters():
        raise ClusterError(f"{path.name}: {path.stem} is a cluster of this project; give the file another name")
    return _read(path)


def known_clusters() -> list[str]:
    """Names of the clusters in ``conf/cluster/``."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def _read(path: Path) -> Cluster:
    where = path.name
    needed = ("gpu", "nodes", "gpus_per_node", "sms", "memory_gb_per_s", "memory_gib", "rates", "near")
    found = entries(load(path), where, needed, ("far", "widen"))
    rates_name = text(found["rates"], f"{where}: rates")
    if not (FOLDER / "rates" / f"{rates_name}.yaml").is_file():
        names = sorted(one.stem for one in (FOLDER / "rates").glob("*.yaml"))
        raise ClusterError(f"{where}: rates is {rates_name!r}; {allowed_names(rates_name, names)}")
    rates = Rates.of(rates_name)
    gpu, nodes = text(found["gpu"], f"{where}: gpu"), count(found["nodes"], f"{where}: nodes")
    widen = number(found.get("widen", 0.0), f"{where}: widen", most=1.0)
    if gpu != rates.gpu and not widen:
        raise ClusterError(f"{where}: rates are of {rates.gpu} and gpu is {gpu}; widen must say by how much, as in widen: 0.1")
    if gpu == rates.gpu and widen:
        raise ClusterError(f"{where}: widen is {widen:g}, but the rates are of {gpu} itself; leave it out")
    if nodes > 1 and "far" not in found:
        raise ClusterError(f"{where} lacks far: with nodes={nodes} it must say how they are linked")
    if nodes == 1 and "far" in found:
        raise ClusterError(f"{where}: far is given, but nodes is 1; leave it out or say how many nodes there are")
    state = hashlib.sha256(path.read_bytes())
    state.update((FOLDER / "rates" / f"{rates_name}.yaml").read_bytes())
    return Cluster(
        name=path.stem,
        gpu=gpu,
        nodes=nodes,
        gpus_per_node=count(found["gpus_per_node"], f"{where}: gpus_per_node"),
        sms=count(found["sms"], f"{where}: sms"),
        memory_gb_per_s=Rate.read(found["memory_gb_per_s"], f"{where}: memory_gb_per_s"),
        memory_gib=number(found["memory_gib"], f"{where}: memory_gib", above=True),
        near=_link(found["near"], f"{where}: near", WAYS, rates.ways.get("nvlink", {}), widen),
        far=_link(found["far"], f"{where}: far", (SM,), {}, widen) if nodes > 1 else None,
        rates=rates,
        rates_name=rates_name,
        widen=widen,
        digest=state.hexdigest()[:16],
    )


def _link(value: Any, where: str, names: tuple[str, ...], measured: dict[str, Way], widen: float) -> Link:
    found = entries(value, where, ("wire_gb_per_s", "message_us", "ways"))
    wire = Rate.read(found["wire_gb_per_s"], f"{where}.wire_gb_per_s")
    said = found["ways"]
    if said == MEASURED:
        if set(measured) != set(names):
            raise ClusterError(f"{where}.ways is measured, but the rates hold {', '.join(measured) or 'no way'} over this link")
        ways = {name: way.widened(widen) for name, way in measured.items()}
    else:
        ways = {
            name: Way.read(one, f"{where}.ways.{name}")
            for name, one in entries(mapping(said, f"{where}.ways"), f"{where}.ways", names).items()
        }
    for name, way in ways.items():
        if way.gb_per_s.value > wire.value:
            raise ClusterError(
                f"{where}.ways.{name}.gb_per_s is {way.gb_per_s.value:g}, above the wire's {wire.value:g}: inconsistent"
            )
    return Link(wire, Rate.read(found["message_us"], f"{where}.message_us", above=False), ways)
