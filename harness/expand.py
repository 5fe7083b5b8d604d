"""From a run to the groups of cases it means: every mask at every length, documents resolved, competitors chosen.

Everything that can be refused is refused here, before the first measurement: a file of lengths that cannot be read, a
sequence too short for a family, a GPU that is not there, a problem beyond this CPU. Nothing is measured here.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from context_parallel.strategies import STRATEGIES
from harness.backends import BACKENDS, SHARED
from harness.backends.sharded import OWN_KERNEL
from harness.cases import Group, MaskSpec, Problem, Team
from harness.config.errors import ConfigError
from harness.config.run_config import Documents as FileOfLengths
from harness.config.run_config import RunConfig
from harness.lengths import LengthsError, Policy, pack, read_lengths
from harness.limits import too_large, too_long_to_read, too_much
from harness.machine import Machine
from harness.simulate.asked import simulated_kernels, simulated_strategies, simulated_team
from masks.column_mask import ColumnMask, MaskError
from masks.documents import Document, Documents, paper_documents, sampled_documents
from masks.families import FAMILIES, build_mask
from masks.tiles import exact_density

CARRIED = {"cpu": ("gloo",), "cuda": ("nccl", "symmetric")}
"""Exchanges by device, the one that auto means first."""

MOST_RANKS_A_CORE = 8
"""Ranks on a CPU are processes; more of them than this a core measure nothing but each other."""


def expand(config: RunConfig, machine: Machine) -> list[Group]:
    """One group a (length, degree, mask, document list), shortest first, and a strategy where ranks share the sequence.

    Raises:
        ConfigError: what was asked cannot run here; the message says why and what would.
    """
    if not config.dry_run and config.cluster is None:  # a plan can be looked at anywhere, a cluster simulated anywhere
        _check_device(config, machine)
    alone = kernels = choose_kernels(config, machine)
    teams = {degree: _team(config, machine, degree) for degree in config.cp_degrees}
    if max(config.cp_degrees) > 1:
        kernels = _by_strategy(config, kernels)
    timing = config.timing if config.cluster is None else replace(config.timing, rounds=1)
    groups: list[Group] = []
    for spec, seqlen, degree in _masks(config, machine):
        problem = Problem(
            mask=spec,
            seqlen=seqlen,
            batch=config.batch_at(seqlen, degree),
            heads=config.heads,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            dtype=config.dtype,
            seed=config.seed,
        )
        how = (config.passes, config.device, timing, config.deterministic, teams[degree], config.cluster)
        group = Group(problem, kernels if degree > 1 else alone, *how)
        refusal = too_large(problem, machine, FAMILIES[spec.family].per_head, config.device == "cpu" and config.cluster is None)
        if refusal is not None:
            raise ConfigError(refusal)
        mask = _one_head(problem)
        refusal = too_much(group, exact_density(mask), machine) if config.device == "cpu" else None
        if refusal is not None and config.dry_run:
            print(f"note: this machine would refuse {refusal}", file=sys.stderr)
        elif refusal is not None:
            raise ConfigError(refusal)
        groups.append(group)
    return groups


def _team(config: RunConfig, machine: Machine, degree: int) -> Team | None:
    """The ranks that share the sequence, or None.

    Raises:
        ConfigError: an exchange that the device does not have, more ranks than GPUs or cores, or than a simulated cluster
            holds.
    """
    if degree == 1:
        return None
    if config.cluster is not None:
        return simulated_team(config, degree)
    carried = CARRIED[config.device]
    exchange = carried[0] if config.exchange in (None, "auto") else str(config.exchange)
    if exchange not in carried:
        raise ConfigError(
            f"exchange={exchange} does not exist with device={config.device}; allowed: auto, {', '.join(carried)}"
        )
    most, of = (machine.gpus, "GPUs") if config.device == "cuda" else (MOST_RANKS_A_CORE * machine.cores, "ranks at most")
    if degree > most and not config.dry_run:
        hint = "; source=auto without device=cpu simulates more" if most else "; source=auto simulates them"
        raise ConfigError(f"cp_degree={degree}: this machine has {most} {of}; allowed: 1 to {most}{hint}")
    return Team(degree, exchange)


def _by_strategy(config: RunConfig, kernels: tuple[str, ...]) -> tuple[str, ...]:
    """``kernel/strategy`` of every kernel and strategy: those that were named, else all that can be timed here.

    PyTorch's own strategy has a kernel of its own.
    """
    named = config.strategies is not None
    strategies = config.strategies or tuple(STRATEGIES)
    if config.cluster is not None:
        return tuple(f"{kernel}/{strategy}" for kernel in kernels for strategy in simulated_strategies(config))
    ours = [name for name in strategies if name not in OWN_KERNEL]
    names = [f"{kernel}/{strategy}" for kernel in kernels for strategy in ours]
    for strategy, kernel in OWN_KERNEL.items():
        if strategy in strategies and (named or config.device == "cuda"):
            names.append(f"{kernel}/{strategy}")
    return tuple(names)


def choose_kernels(config: RunConfig, machine: Machine) -> tuple[str, ...]:
    """The competitors: those named, as named (one that is missing gets a row that says so); else all that can run, or all that
    there are where a plan for a GPU is only looked at."""
    if config.cluster is not None:
        return simulated_kernels(config)
    if max(config.cp_degrees) > 1:
        other = [name for name in config.kernels or () if name not in SHARED]
        if other:
            raise ConfigError(f"kernel.names={','.join(other)}: ranks that share a sequence run one of {', '.join(SHARED)}")
    if config.kernels is not None:
        return config.kernels
    elsewhere = config.device == "cuda" and machine.gpu is None
    possible = [name for name, backend in BACKENDS.items() if elsewhere or backend.probe(config.device).ok]
    return next((name,) for name in SHARED if name in possible) if max(config.cp_degrees) > 1 else tuple(possible)


def _check_device(config: RunConfig, machine: Machine) -> None:
    if config.device != "cuda":
        return
    if machine.gpu is None:
        raise ConfigError(f"hardware={config.hardware} runs on a GPU and torch sees none here; use device=cpu")
    if config.gpus and machine.gpu not in config.gpus:
        raise ConfigError(
            f"hardware={config.hardware} is for {', '.join(config.gpus)} and this GPU is {machine.gpu}; use hardware=auto"
        )


def _masks(config: RunConfig, machine: Machine) -> Iterator[tuple[MaskSpec, int, int]]:
    """Every mask with its length and degree, documents resolved; a family without documents comes once of each."""
    for seqlen, degree in config.points():
        lists = None
        for name in config.families:
            family = FAMILIES[name]
            params = {key: value for key, value in family.params.items() if value is not None}
            params |= {key: value for key, value in config.params.items() if key in family.params}
            if not family.needs_documents:
                yield MaskSpec(name, params=params), seqlen, degree
                continue
            if lists is None:
                lists = _resolve_documents(config, seqlen, machine)
            for variant, documents in lists.items():
                triples = tuple((item.length, item.prefix, item.flag) for item in documents)
                yield MaskSpec(name, variant, triples, params), seqlen, degree


def _resolve_documents(config: RunConfig, seqlen: int, machine: Machine) -> dict[str, Documents]:
    """Document lists for one length, by the name that rows record.

    The name of a file is recorded without its folder: rows hold no paths of a machine.
    """
    source = config.documents
    try:
        if source.source == "paper":
            return {variant: paper_documents(seqlen, variant) for variant in source.variants}
        if source.source == "sampled":
            return {"sampled_cut" if source.cut else "sampled": sampled_documents(seqlen, config.seed, source.cut)}
        return {Path(str(source.lengths)).name: _documents_of_file(source, seqlen, config.seed, machine)}
    except (ValueError, OSError) as error:
        where = f"mask.lengths={source.lengths}" if source.lengths is not None else f"seqlen={seqlen}"
        raise ConfigError(f"{where}: {error}") from error


def _documents_of_file(source: FileOfLengths, seqlen: int, seed: int, machine: Machine) -> Documents:
    path = Path(str(source.lengths))
    refusal = too_long_to_read(path, machine)
    if refusal is not None:
        raise LengthsError(refusal)
    policy = source.policy or Policy.IN_ORDER
    rows = read_lengths(path, source.column)
    documents = pack(rows, seqlen, policy, seed, cut=source.cut, name=path.name)
    total = sum(row.length for row in rows)
    if total > seqlen:
        print(f"note: {path.name}: {len(documents)} of {len(rows)} documents, {seqlen} of {total} tokens", file=sys.stderr)
    return documents


def _one_head(problem: Problem) -> ColumnMask:
    """The problem's mask for one batch item and head: shows that it can be built, and how dense it is."""
    spec = problem.mask
    documents = None if spec.documents is None else tuple(Document(*triple) for triple in spec.documents)
    params: dict[str, Any] = dict(spec.params)
    try:
        return build_mask(spec.family, problem.seqlen, documents=documents, seed=problem.seed, **params)
    except MaskError as error:
        raise ConfigError(f"mask={spec.family} seqlen={problem.seqlen}: {error}") from error
