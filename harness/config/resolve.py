"""From the filled schema to a :class:`RunConfig`: what was left open is taken from the sweep, then from the hardware.

What is said singly wins over the sweep's list; nothing that is said is dropped in silence. Rules between fields that
need to know who said what are checked here, ranges in ``run_config``.
"""

from __future__ import annotations

import dataclasses
from enum import Enum
from typing import Any, TypeVar

from omegaconf import OmegaConf

from harness import cases
from harness.config.errors import ConfigError, refusal
from harness.config.run_config import Documents, RunConfig
from harness.config.schema import (
    CONF,
    Config,
    Device,
    DocumentSource,
    HardwareSchema,
    MaskSchema,
    Source,
    TimingSchema,
    options,
)

S = TypeVar("S", HardwareSchema, TimingSchema)

# Keys of the mask group and the sources of documents that they belong to.
_SOURCES_OF = {
    "variant": (DocumentSource.paper,),
    "cut": (DocumentSource.sampled, DocumentSource.file),
    "lengths": (DocumentSource.file,),
    "column": (DocumentSource.file,),
    "policy": (DocumentSource.file,),
}
_PARAMS = ("window", "global_tokens", "keep_rate")


NO_GPU_CLUSTER = "h200_8"
"""Simulated where nothing says on what: the cluster whose kernel rates were measured."""


def resolve(config: Config, gpu: str | None, gpus: int | None = None) -> RunConfig:
    """The checked run.

    Args:
        config: what Hydra composed.
        gpu: name of the GPU at hand, or None; it decides what ``auto`` means.
        gpus: how many there are; None: one, or none without a name. Fewer than the ranks that share a sequence: simulated.

    Raises:
        ConfigError: says what was given and what is allowed.
    """
    degrees = (config.cp_degree,) if config.cp_degree is not None else tuple(config.sweep.cp_degrees or (1,))
    simulated = _simulated(config, degrees, gpus if gpus is not None else int(gpu is not None))
    hardware = _hardware(config, gpu, simulated)
    timing = _timing(config, hardware)
    families = (config.mask.family,) if config.mask.family is not None else tuple(config.sweep.masks)
    documents, params = _mask(config, hardware, families)
    head_dim = _first("head_dim", config.head_dim, hardware.head_dim)
    if head_dim < 1:
        raise ConfigError(f"head_dim={head_dim} is not allowed; it is an integer, at least 1.")
    heads = _first("heads", config.heads, hardware.heads, max(1, hardware.hidden // head_dim) if hardware.hidden else None)
    batch = config.batch if config.batch is not None else hardware.batch
    tokens_a_rank = None
    if config.seqlen is None:
        unasked = hardware.tokens_a_rank if simulated and config.sweep.name == "none" else None
        tokens_a_rank = config.sweep.tokens_a_rank or unasked
    peaks = {name: peak for name, peak in dataclasses.asdict(hardware.peak_tflops).items() if peak is not None}
    return RunConfig(
        families=families,
        seqlens=(config.seqlen,) if config.seqlen is not None else tuple(config.sweep.seqlens or hardware.seqlens),
        device=hardware.device.value,
        dtype=_first("dtype", config.dtype, hardware.dtype).value,
        head_dim=head_dim,
        heads=heads,
        kv_heads=_first("kv_heads", config.kv_heads, heads),
        batch=batch,
        tokens=hardware.tokens if hardware.tokens is not None else 1,
        documents=documents,
        params=params,
        kernels=_kernels(config),
        passes=tuple(item.value for item in config.passes),
        deterministic=config.deterministic,
        timing=timing,
        seed=config.seed,
        hardware=hardware.name,
        gpus=tuple(hardware.gpus),
        peak_tflops=peaks,
        cp_degrees=degrees,
        tokens_a_rank=tokens_a_rank,
        cluster=hardware.cluster if simulated else None,
        strategies=_strategies(config),
        exchange=config.exchange.value if config.exchange is not None else None,
        source=config.source.value,
        results_dir=config.results_dir,
        dry_run=config.dry_run,
    )


def _strategies(config: Config) -> tuple[str, ...] | None:
    """The one that was said, else the sweep's; None: all."""
    if config.strategy is not None:
        return (config.strategy.value,)
    listed = config.sweep.strategies
    return tuple(one.value for one in listed) if listed is not None else None


def _simulated(config: Config, degrees: tuple[int, ...], gpus: int) -> bool:
    """Whether the ranks are simulated: asked for, or nothing else is asked for and they have no GPUs."""
    on_cpu = Device.cpu in (config.device, config.hardware.device)
    if config.source is Source.simulated:
        if min(degrees) == 1:
            raise ConfigError("source=simulated needs ranks that share a sequence, as in cp_degree=16; one GPU is measured")
        if on_cpu:
            raise ConfigError("source=simulated and device=cpu contradict each other: what is simulated are GPUs")
        return True
    return config.source is Source.auto and not on_cpu and max(degrees) > max(1, gpus)


def _hardware(config: Config, gpu: str | None, simulated: bool) -> HardwareSchema:
    said, device = config.hardware, config.device
    if said.name != "auto":
        if simulated and said.cluster is None:
            raise ConfigError(
                f"hardware={said.name} has no cluster to simulate; allowed: {', '.join(_clusters())}, or hardware.cluster=FILE"
            )
        if said.device is Device.auto:
            raise ConfigError(f"hardware={said.name} does not say its device; allowed in its file: cuda, cpu.")
        if device not in (Device.auto, said.device):
            raise ConfigError(
                f"device={device.value} and hardware={said.name} contradict each other: {said.name} is a "
                f"{said.device.value} device. Leave one of them out."
            )
        return said
    if simulated:
        name = next((name for name, item in _clusters().items() if gpu in item.gpus), NO_GPU_CLUSTER)
    elif device is Device.cpu or (device is Device.auto and gpu is None):
        name = "cpu"
    else:
        files = {name: _file(HardwareSchema, "hardware", name) for name in options("hardware")}
        name = next((name for name, item in files.items() if gpu in item.gpus and item.cluster is None), "gpu")
    return _overlay(_file(HardwareSchema, "hardware", name), said)


def _clusters() -> dict[str, HardwareSchema]:
    """Files of hardware that name a cluster."""
    files = {name: _file(HardwareSchema, "hardware", name) for name in options("hardware")}
    return {name: item for name, item in files.items() if item.cluster is not None}


def _timing(config: Config, hardware: HardwareSchema) -> cases.Timing:
    said = config.timing
    if said.name == "auto":
        name = _first("timing", config.sweep.timing, hardware.timing)
        if name not in options("timing"):
            raise ConfigError(refusal("timing", name, options("timing")))
        said = _overlay(_file(TimingSchema, "timing", name), said)
    values = {item.name: getattr(said, item.name) for item in dataclasses.fields(cases.Timing)}
    return cases.Timing(**{name: _plain(_first(f"timing.{name}", value)) for name, value in values.items()})


def _mask(config: Config, hardware: HardwareSchema, families: tuple[str, ...]) -> tuple[Documents, dict[str, int | float]]:
    from masks.families import FAMILIES

    mask = config.mask
    for name in families:
        if name not in FAMILIES:
            raise ConfigError(refusal("mask", name, FAMILIES))
    asked = "mask=" + ",".join(families)
    params = {name: getattr(mask, name) for name in _PARAMS if getattr(mask, name) is not None}
    for name, value in params.items():
        if not any(name in FAMILIES[family].params for family in families):
            takers = [family for family, item in FAMILIES.items() if name in item.params]
            raise ConfigError(f"mask.{name}={value} does not apply to {asked}. Masks that take it: {', '.join(takers)}.")
    source = _source(mask)
    given = [name for name in (*_SOURCES_OF, "documents") if getattr(mask, name) is not None]
    if given and not any(FAMILIES[family].needs_documents for family in families):
        takers = [family for family, item in FAMILIES.items() if item.needs_documents]
        value = _plain(getattr(mask, given[0]))
        raise ConfigError(
            f"mask.{given[0]}={value} does not apply to {asked}, which has no documents. Masks with documents: "
            f"{', '.join(takers)}."
        )
    variants: tuple[Any, ...] = ()
    if source is DocumentSource.paper:
        chosen = [mask.variant] if mask.variant is not None else config.sweep.variants
        variants = tuple(chosen) if chosen is not None else (_first("mask.variant", hardware.variant),)
    documents = Documents(
        source=source.value,
        variants=tuple(item.value for item in variants),
        lengths=mask.lengths,
        column=mask.column,
        policy=mask.policy.value if mask.policy is not None else None,
        cut=bool(mask.cut),
    )
    return documents, params


def _source(mask: MaskSchema) -> DocumentSource:
    """The source said or implied, with every key that belongs to another one refused."""
    source = mask.documents
    if source is None:
        source = DocumentSource.file if mask.lengths is not None else DocumentSource.paper
    for name, owners in _SOURCES_OF.items():
        value = getattr(mask, name)
        if value is not None and source not in owners:
            allowed = " or ".join(f"mask.documents={owner.value}" for owner in owners)
            raise ConfigError(f"mask.{name}={_plain(value)} belongs to {allowed}; the documents here are {source.value}")
    if source is DocumentSource.file and not (mask.lengths or "").strip():
        raise ConfigError("mask.documents=file needs a file: mask.lengths=my.csv")
    return source


def _kernels(config: Config) -> tuple[str, ...] | None:
    from harness.backends import BACKENDS

    names = config.kernel.names
    for name in names or []:
        if name not in BACKENDS:
            raise ConfigError(refusal("kernel", name, BACKENDS))
    return None if names is None else tuple(names)


def _file(schema: type[S], group: str, name: str) -> S:
    """One file of a config group on its own, typed."""
    merged = OmegaConf.merge(OmegaConf.structured(schema), OmegaConf.load(CONF / group / f"{name}.yaml"))
    return OmegaConf.to_object(merged)  # type: ignore[return-value]


def _overlay(base: S, said: S) -> S:
    """``base`` with every field of ``said`` that holds something, the name and the device apart."""
    changes: dict[str, Any] = {}
    for item in dataclasses.fields(said):
        value = getattr(said, item.name)
        if item.name in ("name", "device") or value is None or value == []:
            continue
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            value = _overlay(getattr(base, item.name), value)
        changes[item.name] = value
    return dataclasses.replace(base, **changes)


def _first(name: str, *values: Any) -> Any:
    """The first value that was said."""
    for value in values:
        if value is not None:
            return value
    raise ConfigError(f"{name} is not set, and neither the sweep nor the hardware says it. Give {name}=...")


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    return str(value).lower() if isinstance(value, bool) else value
