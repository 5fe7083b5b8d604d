"""How fast things are, each with how far it may be off and where it is from: single rates, ways over a link, kernels.

A *spread* is the relative half width of the interval that the rate is believed to lie in. The model is run three times, at
the rates as they are and at both ends of all spreads: that is the interval of a prediction.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from harness.provenance import ROOT
from harness.simulate.reading import ClusterError, count, entries, load, mapping, number, text

FOLDER = ROOT / "conf" / "cluster"
"""Clusters by name; ``rates/`` in it holds what ``harness.simulate.fit`` writes."""

NOMINAL, SLOW, FAST = 0, 1, -1
"""Ends of the spreads: as they are, everything slower, everything faster."""


@dataclass(frozen=True)
class Rate:
    """One number. ``spread``: relative half width of its interval. ``source``: a measured line, a data sheet, an assumption."""

    value: float
    spread: float
    source: str

    @staticmethod
    def read(value: Any, where: str, *, most: float = float("inf"), above: bool = True) -> Rate:
        """From ``{value, spread, source}``.

        Raises:
            ClusterError: a missing, negative or unknown entry.
        """
        found = entries(value, where, ("value", "spread", "source"))
        spread = number(found["spread"], f"{where}.spread", most=1.0)
        amount = number(found["value"], f"{where}.value", above=above, most=most)
        return Rate(amount, spread, text(found["source"], f"{where}.source"))

    def as_cost(self, end: int) -> float:
        """At an end of its spread, where more is slower."""
        return self.value * (1 + end * self.spread)

    def as_speed(self, end: int) -> float:
        """At an end of its spread, where more is faster; never zero, so that everything ends."""
        return max(self.value * (1 - end * self.spread), self.value / 100)

    def widened(self, by: float) -> Rate:
        """The same, known less well: of another GPU."""
        return replace(self, spread=min(1.0, self.spread + by))


@dataclass(frozen=True)
class Way:
    """One way of sending over a link.

    gb_per_s: of a single transfer, GB/s. latency_us: before the first byte, and until the receiver knows of the last.
    beside: share of its speed at which a GPU computes while it sends or receives, 0 to 1.
    """

    gb_per_s: Rate
    latency_us: Rate
    beside: Rate

    @staticmethod
    def read(value: Any, where: str) -> Way:
        """From a mapping of the three."""
        found = entries(value, where, ("gb_per_s", "latency_us", "beside"))
        return Way(
            Rate.read(found["gb_per_s"], f"{where}.gb_per_s"),
            Rate.read(found["latency_us"], f"{where}.latency_us", above=False),
            Rate.read(found["beside"], f"{where}.beside", above=False, most=1.0),
        )

    def widened(self, by: float) -> Way:
        """The same, of another GPU."""
        return Way(self.gb_per_s.widened(by), self.latency_us.widened(by), self.beside.widened(by))


Range = tuple[float, float]


@dataclass(frozen=True)
class KernelRates:
    """What a launch of a kernel costs on a whole GPU, for one pass and head dim.

    full_ps, partial_ps: a 128x128 tile of one head, picoseconds. outer_ps: besides, every tile of 128 rows (forward) or 128
    columns (backward) that the kernel works through. launch_us: besides, every launch. worst, median: relative errors
    of the fit, over ``rows`` lines. outer_tiles, tiles_an_outer: what the fit has seen, per launch over all heads, and on
    average per outer tile. borrowed: why these are not the kernel's own rates, or None.
    """

    kernel: str
    pass_: str
    head_dim: int
    full_ps: float
    partial_ps: float
    outer_ps: float
    launch_us: float
    worst: float
    median: float
    rows: int
    outer_tiles: Range
    tiles_an_outer: Range
    source: str
    borrowed: str | None = None

    @staticmethod
    def read(value: Any, where: str) -> KernelRates:
        """From an entry of ``kernels``.

        Raises:
            ClusterError: a missing, negative or inconsistent rate.
        """
        costs = ("full_ps", "partial_ps", "outer_ps", "launch_us", "worst", "median")
        ranges = ("outer_tiles", "tiles_an_outer")
        names = ("kernel", "pass", "head_dim", *costs, "rows", *ranges, "source")
        found = entries(value, where, names, ("borrowed",))
        numbers = {name: number(found[name], f"{where}.{name}") for name in costs}
        if not numbers["full_ps"]:
            raise ClusterError(f"{where}.full_ps is 0; a tile takes time")
        if found["pass"] not in ("forward", "backward"):
            raise ClusterError(f"{where}.pass is {found['pass']!r}; allowed: forward, backward")
        if numbers["median"] > numbers["worst"]:
            raise ClusterError(f"{where}: the median error {numbers['median']:g} is above the worst, {numbers['worst']:g}")
        return KernelRates(
            kernel=text(found["kernel"], f"{where}.kernel"),
            pass_=found["pass"],
            head_dim=count(found["head_dim"], f"{where}.head_dim"),
            rows=count(found["rows"], f"{where}.rows"),
            outer_tiles=_range(found["outer_tiles"], f"{where}.outer_tiles"),
            tiles_an_outer=_range(found["tiles_an_outer"], f"{where}.tiles_an_outer"),
            source=text(found["source"], f"{where}.source"),
            borrowed=None if found.get("borrowed") is None else text(found["borrowed"], f"{where}.borrowed"),
            **numbers,
        )


@dataclass(frozen=True)
class Rates:
    """One file of fitted rates: of a GPU's kernels, and of its links by (link, way)."""

    gpu: str
    kernels: tuple[KernelRates, ...]
    ways: dict[str, dict[str, Way]]

    @staticmethod
    def of(name: str) -> Rates:
        """The file of that name in ``conf/cluster/rates/``.

        Raises:
            ClusterError: no such file, or one that does not follow the form.
        """
        path = FOLDER / "rates" / f"{name}.yaml"
        found = entries(load(path), path.name, ("gpu", "kernels", "links"))
        if not isinstance(found["kernels"], list) or not found["kernels"]:
            raise ClusterError(f"{path.name}: kernels must be a list of at least one")
        kernels = tuple(KernelRates.read(one, f"{path.name}: kernels[{i}]") for i, one in enumerate(found["kernels"]))
        links = mapping(found["links"], f"{path.name}: links")
        ways = {
            link: {way: Way.read(one, f"{path.name}: links.{link}.{way}") for way, one in mapping(ways, link).items()}
            for link, ways in links.items()
        }
        return Rates(text(found["gpu"], f"{path.name}: gpu"), kernels, ways)

    def kernel(self, kernel: str, pass_: str, head_dim: int) -> KernelRates | None:
        """The rates of a kernel, or None."""
        wanted = (kernel, pass_, head_dim)
        return next((one for one in self.kernels if (one.kernel, one.pass_, one.head_dim) == wanted), None)


def _range(value: Any, where: str) -> Range:
    if not isinstance(value, list) or len(value) != 2:
        raise ClusterError(f"{where} is {value!r}; it must be a list of two numbers")
    low, high = (number(one, where) for one in value)
    if low > high:
        raise ClusterError(f"{where} is {value!r}; the first must not be above the second")
    return low, high
