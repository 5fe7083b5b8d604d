"""A competitor that lives in a package of its own: is it installed, new enough, for this GPU, and does it load?

Installed is not the same as loadable: an extension that was compiled for another torch fails when it is imported. Imports
of this kind take seconds, so ``probe`` reads the package's metadata only, and ``load`` is called when it is needed.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from packaging.version import InvalidVersion, Version

from harness.backends.base import Availability, MissingBackend, torch_version
from harness.cases import Problem
from harness.provenance import package_version

GPU_NAMES = {8: "Ampere or Ada", 9: "Hopper", 10: "Blackwell", 12: "Blackwell (consumer)"}
"""NVIDIA's generations by the first number of the compute capability."""


@dataclass(frozen=True)
class Package:
    """Where a competitor's functions are found.

    Args:
        distribution: name of the installed distribution.
        module: what is imported.
        least: the oldest version with the interface that the adapter speaks.
        install: how a user gets it.
        gpus: first numbers of the compute capabilities that its kernels are for.
    """

    distribution: str
    module: str
    least: str
    install: str
    gpus: tuple[int, ...]

    def probe(self, device: str) -> Availability:
        """Availability by metadata and compute capability; imports nothing."""
        if device != "cuda":
            return Availability(False, reason="needs an NVIDIA GPU", install="run on a machine with one")
        version = package_version(self.distribution)
        if version is None:
            return Availability(False, reason=f"{self.distribution} is not installed", install=self.install)
        if not _reaches(version, self.least):
            reason = f"{self.distribution} {version} is installed, {self.least} or newer is needed"
            return Availability(False, reason=reason, install=self.install)
        major, minor = torch.cuda.get_device_capability()
        if major not in self.gpus:
            wanted = ", ".join(GPU_NAMES[gpu] for gpu in self.gpus)
            reason = f"its kernels are for {wanted}; this GPU has compute capability {major}.{minor}"
            return Availability(False, reason=reason, install=f"run on a GPU of that kind: {wanted}")
        return Availability(True, f"torch {torch_version()}, {self.distribution} {version}")

    def load(self, name: str, *arguments: str) -> Callable[..., Any]:
        """The function ``name`` of the module.

        Args:
            arguments: names that it must take, so that a version with another interface is told apart before a call.

        Raises:
            MissingBackend: the module does not import, has no such function, or the function takes other arguments.
        """
        try:
            function: Callable[..., Any] = getattr(importlib.import_module(self.module), name)
        except Exception as error:  # a broken extension raises whatever its loader says
            first = (str(error).splitlines() or [""])[0]
            raise MissingBackend(f"{self.module}.{name} does not load: {type(error).__name__}: {first}") from error
        taken = inspect.signature(function).parameters
        lacking = [argument for argument in arguments if argument not in taken]
        if lacking:
            version = package_version(self.distribution) or "of unknown version"
            raise MissingBackend(
                f"{self.module}.{name} ({self.distribution} {version}) takes no {', '.join(lacking)}: "
                f"another interface than that of {self.least}"
            )
        return function


def _reaches(version: str, least: str) -> bool:
    """Whether a version is at least another; one that cannot be read (a build of one's own) is left to ``load``."""
    try:
        return Version(version) >= Version(least)
    except InvalidVersion:
        return True


def deterministic() -> bool:
    """Whether the user asked torch for deterministic algorithms: how every competitor here is asked for them."""
    return torch.are_deterministic_algorithms_enabled()


def refused_shape(problem: Problem, largest: int) -> str | None:
    """Why kernels of 16-bit inputs and head dims that are multiples of 8 up to ``largest`` cannot do it, or None."""
    if problem.dtype not in ("bfloat16", "float16"):
        return f"takes bfloat16 and float16, not {problem.dtype}"
    if problem.head_dim > largest or problem.head_dim % 8:
        return f"takes head dims up to {largest} that are multiples of 8, not {problem.head_dim}"
    return None
