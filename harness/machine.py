"""The machine at hand, as far as it decides what can be asked of it: GPU or not, cores, memory.

Facts recorded beside measurements are ``harness.provenance`` and ``harness.device``; nothing here is recorded.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import torch

from harness.provenance import cpu_model


@dataclass(frozen=True)
class Machine:
    """``gpu`` is the name torch gives the first GPU, None without one. Memory in bytes, None when not known."""

    gpu: str | None
    gpu_memory: int | None
    cpu: str
    cores: int
    memory: int | None
    memory_available: int | None
    gpus: int = 0

    @property
    def device(self) -> str:
        """The device that ``auto`` means: cuda or cpu."""
        return "cpu" if self.gpu is None else "cuda"


def this_machine() -> Machine:
    """Ask torch and the operating system. Available memory respects the limit of a container (cgroup v2)."""
    present = torch.cuda.is_available()
    properties = torch.cuda.get_device_properties(0) if present else None
    total, free = _memory()
    return Machine(
        gpu=properties.name if properties is not None else None,
        gpu_memory=properties.total_memory if properties is not None else None,
        cpu=cpu_model(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory=total,
        memory_available=free,
        gpus=torch.cuda.device_count() if present else 0,
    )


def _memory() -> tuple[int | None, int | None]:
    """(total, available) bytes."""
    found: dict[str, int] = {}
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            name, _, rest = line.partition(":")
            found[name] = int(rest.split()[0]) * 1024
    except (OSError, ValueError, IndexError):
        return None, None
    total, free = found.get("MemTotal"), found.get("MemAvailable")
    limit, used = _cgroup("memory.max"), _cgroup("memory.current")
    if limit is not None and total is not None and limit < total:
        total = limit
        free = min(free, max(0, limit - used)) if free is not None and used is not None else free
    return total, free


def _cgroup(name: str) -> int | None:
    try:
        return int((Path("/sys/fs/cgroup") / name).read_text())
    except (OSError, ValueError):  # no such file, or "max"
        return None
