"""The fields of the configuration and their types, as Hydra checks them.

Plain dataclasses registered in Hydra's ConfigStore. None means "not said": ``harness.config.resolve`` then takes the
value of the sweep or of the hardware. Rules between fields are not here. The YAML files in ``conf/`` carry the values.
"""

from __future__ import annotations

import typing
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore

from plots.folder import RESULTS_DIR

CONF = Path(__file__).resolve().parents[2] / "conf"
"""The folder of the YAML files."""

GROUPS = ("mask", "kernel", "hardware", "timing", "sweep", "experiment")
"""Config groups: one of the files of ``conf/<group>/`` each."""


class Device(Enum):
    """Where it runs. auto: the GPU when there is one."""

    auto = "auto"
    cuda = "cuda"
    cpu = "cpu"


class DType(Enum):
    """Element type of q, k, v; the short names mean the same."""

    bfloat16 = "bfloat16"
    float16 = "float16"
    float32 = "float32"
    bf16 = "bfloat16"
    fp16 = "float16"
    fp32 = "float32"


class Pass(Enum):
    """What one call computes."""

    forward = "forward"
    backward = "backward"
    both = "both"


class Source(Enum):
    """Where rows come from. auto: measured where the ranks exist, else simulated."""

    auto = "auto"
    measured = "measured"
    simulated = "simulated"


class DocumentSource(Enum):
    """Where the documents of a mask come from: the papers' lists, the seeded sampler, a file of lengths."""

    paper = "paper"
    sampled = "sampled"
    file = "file"


class Policy(Enum):
    """Order in which the documents of a file are packed."""

    in_order = "in_order"
    shuffle = "shuffle"


class Variant(Enum):
    """The papers' document lists."""

    a = "a"
    b = "b"
    c = "c"
    d = "d"
    e = "e"


class Protocol(Enum):
    """How warm the device is when it is timed."""

    burst = "burst"
    sustained = "sustained"


class L2(Enum):
    """Whether the last-level cache is flushed before every sample."""

    cold = "cold"
    warm = "warm"


class Strategy(Enum):
    """Context-parallel strategies."""

    fm3 = "fm3"
    ring = "ring"
    ring_skip = "ring_skip"
    all_gather = "all_gather"
    dual_chunk = "dual_chunk"
    magi = "magi"
    all_gather_overlapped = "all_gather_overlapped"
    ulysses = "ulysses"
    flex_cp = "flex_cp"


class Exchange(Enum):
    """How context-parallel ranks exchange data. auto: gloo on a CPU, nccl on GPUs."""

    auto = "auto"
    gloo = "gloo"
    nccl = "nccl"
    symmetric = "symmetric"


@dataclass
class MaskSchema:
    """``mask``: a family and its parameters. ``window`` in rows, ``keep_rate`` in (0, 1]."""

    family: str | None = None
    documents: DocumentSource | None = None
    variant: Variant | None = None
    lengths: str | None = None
    column: str | None = None
    policy: Policy | None = None
    cut: bool | None = None
    window: int | None = None
    global_tokens: int | None = None
    keep_rate: float | None = None


@dataclass
class KernelSchema:
    """``kernel``: competitors by name; None is every one that can run on the device."""

    names: list[str] | None = None


@dataclass
class PeakSchema:
    """Peak TFLOP/s by element type; None when not known."""

    bfloat16: float | None = None
    float16: float | None = None
    float32: float | None = None


@dataclass
class HardwareSchema:
    """``hardware``: the device, its peak, and the shapes that make sense on it.

    ``gpus`` are the full names torch gives the GPU. heads is ``hidden / head_dim`` unless given; batch is
    ``tokens / seqlen``, at least 1, unless given. ``seqlens`` are the lengths of a sweep that names none of its own.
    ``timing`` names the file that ``timing=auto`` means here. ``cluster`` is what is simulated where there are not as many
    such GPUs: a name of ``conf/cluster/`` or the path of a YAML file. ``tokens_a_rank`` is the length a rank of a simulated
    sequence when nobody says one.
    """

    name: str = "auto"
    device: Device = Device.auto
    gpus: list[str] = field(default_factory=list)
    peak_tflops: PeakSchema = field(default_factory=PeakSchema)
    dtype: DType | None = None
    head_dim: int | None = None
    hidden: int | None = None
    heads: int | None = None
    tokens: int | None = None
    batch: int | None = None
    variant: Variant | None = None
    seqlens: list[int] = field(default_factory=list)
    timing: str | None = None
    cluster: str | None = None
    tokens_a_rank: int | None = None


@dataclass
class TimingSchema:
    """``timing``: see ``harness.cases.Timing`` for the meaning of every field."""

    name: str | None = None
    protocol: Protocol | None = None
    l2: L2 | None = None
    rounds: int | None = None
    min_samples: int | None = None
    max_samples: int | None = None
    target_s: float | None = None
    heat_s: float | None = None
    timeout_s: float | None = None


@dataclass
class SweepSchema:
    """``sweep``: the lists that stand in for what is not given singly.

    None for variants: the hardware's list. ``timing`` is what ``timing=auto`` means in this sweep; None: the hardware's.
    ``cp_degrees`` go with ``tokens_a_rank``, the length of a rank's part, in place of ``seqlens``. None for strategies: all.
    """

    name: str = "none"
    masks: list[str] = field(default_factory=list)
    seqlens: list[int] = field(default_factory=list)
    variants: list[Variant] | None = None
    timing: str | None = None
    cp_degrees: list[int] = field(default_factory=list)
    tokens_a_rank: int | None = None
    strategies: list[Strategy] | None = None


@dataclass
class Config:
    """Everything a user may set."""

    mask: MaskSchema = field(default_factory=MaskSchema)
    kernel: KernelSchema = field(default_factory=KernelSchema)
    hardware: HardwareSchema = field(default_factory=HardwareSchema)
    timing: TimingSchema = field(default_factory=TimingSchema)
    sweep: SweepSchema = field(default_factory=SweepSchema)
    seqlen: int | None = None
    batch: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    dtype: DType | None = None
    passes: list[Pass] = field(default_factory=lambda: [Pass.forward, Pass.backward])
    deterministic: bool = False
    seed: int = 0
    device: Device = Device.auto
    cp_degree: int | None = None
    strategy: Strategy | None = None
    exchange: Exchange | None = None
    source: Source = Source.auto
    results_dir: str = RESULTS_DIR
    dry_run: bool = False


def register() -> None:
    """Make the schema known to Hydra under the name ``schema``; calling it again changes nothing."""
    ConfigStore.instance().store(name="schema", node=Config)


@cache
def keys() -> dict[str, Any]:
    """Every settable key by its dotted name, with its type (a union with None where it may stay open)."""

    def walk(cls: type, prefix: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        hints = typing.get_type_hints(cls)
        for item in fields(cls):
            kind = hints[item.name]
            if is_dataclass(kind):
                found.update(walk(typing.cast(type, kind), f"{prefix}{item.name}."))
            else:
                found[prefix + item.name] = kind
        return found

    return walk(Config, "")


def options(group: str) -> list[str]:
    """Names of the files of a config group."""
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))
