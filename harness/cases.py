"""What is measured: a problem, the competitors that solve it, and the identity of every single measurement.

A :class:`Group` is the unit of work of one child process: one problem, several competitors, several passes, measured in
alternating order. A :class:`Case` is one competitor and one pass of it; its id is a hash of everything that identifies
the measurement, so the same question asked twice finds its own rows. Plain data, JSON both ways; nothing is computed.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import PurePath
from typing import Any


@dataclass(frozen=True)
class MaskSpec:
    """A mask by name. ``documents`` are (length, prefix, flag) triples, already resolved, or None."""

    family: str
    variant: str | None = None
    documents: tuple[tuple[int, int, bool], ...] | None = None
    params: dict[str, int | float] = field(default_factory=dict)


@dataclass(frozen=True)
class Problem:
    """One attention problem: a mask, the shapes and the seed of mask and inputs. dtype: bfloat16, float16 or float32."""

    mask: MaskSpec
    seqlen: int
    batch: int
    heads: int
    kv_heads: int
    head_dim: int
    dtype: str
    seed: int = 0


@dataclass(frozen=True)
class Timing:
    """How samples are taken.

    protocol: burst (cool start) or sustained (heated until the clocks are flat). l2: cold or warm.
    Every round takes ``max(min_samples, min(max_samples, target_s / t))`` samples of a call that lasts ``t`` seconds.
    timeout_s: the longest one competitor may take in one phase (prepare, check, one round).
    """

    protocol: str = "sustained"
    l2: str = "cold"
    rounds: int = 5
    min_samples: int = 3
    max_samples: int = 20
    target_s: float = 0.3
    heat_s: float = 3.0
    timeout_s: float = 600.0


@dataclass(frozen=True)
class Sharing:
    """How ranks share a sequence: how many, by which strategy, carried by what."""

    cp_degree: int
    strategy: str
    exchange: str


@dataclass(frozen=True)
class Team:
    """The ranks of a group that share a sequence. Their competitors are named ``kernel/strategy``."""

    cp_degree: int
    exchange: str


def kernel_of(competitor: str) -> str:
    """The kernel of a competitor, which may be named ``kernel/strategy``."""
    return competitor.partition("/")[0]


@dataclass(frozen=True)
class Group:
    """One problem for several competitors on one device (``cuda`` or ``cpu``), or on the ranks that share the sequence.

    ``kernels`` names the competitors: kernels, and with a team ``kernel/strategy``.
    cluster: the cluster that the ranks are simulated on (``harness.simulate.cluster``), or None where they are measured.
    """

    problem: Problem
    kernels: tuple[str, ...]
    passes: tuple[str, ...]
    device: str
    timing: Timing = Timing()
    deterministic: bool = False
    team: Team | None = None
    cluster: str | None = None

    @property
    def title(self) -> str:
        """One line for a progress display."""
        p = self.problem
        variant = f" {p.mask.variant}" if p.mask.variant else ""
        heads = f"H={p.heads}" if p.heads == p.kv_heads else f"H={p.heads}/{p.kv_heads}"
        shared = f" CP={self.team.cp_degree}" if self.team is not None else ""
        return f"{p.mask.family}{variant} S={p.seqlen} B={p.batch} {heads} D={p.head_dim} {p.dtype}{shared}"

    def sharing(self, competitor: str) -> Sharing | None:
        """How a competitor shares the sequence among the group's ranks; None on one device."""
        strategy = competitor.partition("/")[2]
        return None if self.team is None else Sharing(self.team.cp_degree, strategy, self.team.exchange)

    def case(self, competitor: str, pass_: str) -> Case:
        """The case of one competitor and pass."""
        # A file of the user's is known by its name: rows hold no paths of a machine.
        cluster = None if self.cluster is None else PurePath(self.cluster).stem
        how = (self.timing.protocol, self.timing.l2, self.deterministic, self.sharing(competitor), cluster)
        return Case(self.problem, kernel_of(competitor), pass_, self.device, *how)

    def to_json(self) -> str:
        """The group as one line of JSON, for the child process."""
        return json.dumps(asdict(self), sort_keys=True)

    @staticmethod
    def from_json(text: str) -> Group:
        """The inverse of :meth:`to_json`."""
        raw = json.loads(text)
        mask = raw["problem"].pop("mask")
        documents = mask.pop("documents")
        triples = None if documents is None else tuple((int(a), int(b), bool(c)) for a, b, c in documents)
        problem = Problem(mask=MaskSpec(documents=triples, **mask), **raw["problem"])
        return Group(
            problem=problem,
            kernels=tuple(raw["kernels"]),
            passes=tuple(raw["passes"]),
            device=raw["device"],
            timing=Timing(**raw["timing"]),
            deterministic=raw["deterministic"],
            team=None if raw["team"] is None else Team(**raw["team"]),
            cluster=raw["cluster"],
        )


@dataclass(frozen=True)
class Case:
    """One measurement: everything that identifies it and nothing that does not (not the machine, not the code).

    cluster: name of the cluster that it is simulated on, None when measured.
    """

    problem: Problem
    kernel: str
    pass_: str
    device: str
    protocol: str
    l2: str
    deterministic: bool
    sharing: Sharing | None = None
    cluster: str | None = None

    @property
    def id(self) -> str:
        """Hash of the case, 16 hex digits. A field at its default is left out, so a new one leaves old ids alone."""
        identity = asdict(self)
        if self.sharing is None:
            del identity["sharing"]
        if self.cluster is None:
            del identity["cluster"]
        return stable_hash(identity)


def stable_hash(value: Any) -> str:
    """Hash of a JSON value that does not depend on key order, 16 hex digits."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
