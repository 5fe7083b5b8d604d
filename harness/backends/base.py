"""What a competitor is: a name, whether it can run here, what it can express, and how it is prepared.

One file a competitor beside this one. Nothing here measures; ``harness.measure`` does, the same way for all.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from harness.cases import Problem
from harness.inputs import Inputs
from harness.provenance import ROOT, hash_files
from masks.column_mask import ColumnMask

Attend = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor | None]]
"""(q, k, v) to (out, LSE or None), in the backend's layout; LSE is float32 [B, H, S], natural log. Differentiable."""


@dataclass(frozen=True)
class Availability:
    """Whether a competitor can run on a device, its version, and if not why and what would help."""

    ok: bool
    version: str | None = None
    reason: str | None = None
    install: str | None = None


class MissingBackend(Exception):
    """A competitor's library does not load, or is another version than the one asked for: no result, and no fault of it."""


class Backend(ABC):
    """One competitor."""

    name: ClassVar[str]
    title: ClassVar[str]
    layout: ClassVar[str] = "bhsd"
    """Memory order of its tensors: ``bshd`` or ``bhsd``. Inputs hold the same values in either."""
    sources: ClassVar[tuple[str, ...]] = ()
    """Files and folders of this repository, beside its own module, that determine what it computes and how fast."""

    @abstractmethod
    def probe(self, device: str) -> Availability:
        """Whether it can run on ``device`` (``cuda`` or ``cpu``). Must not touch the device's memory, nor import a library that
        takes long: what only an import can tell, ``prepare`` tells by :class:`MissingBackend`."""

    @abstractmethod
    def unsupported(self, problem: Problem, mask: ColumnMask, pass_: str, device: str) -> str | None:
        """Why it cannot do this problem and pass, or None."""

    @abstractmethod
    def prepare(self, problem: Problem, mask: ColumnMask) -> Attend:
        """Everything that is made once for a mask (timed apart as ``setup_ms``). ``mask`` lies on the device."""

    def timed(self, attend: Attend, inputs: Inputs) -> tuple[Attend, Inputs]:
        """What is timed, on what: the call that was checked, in this layout."""
        return attend, inputs.in_layout(self.layout)

    def alone(self, inputs: Inputs) -> dict[str, tuple[Attend, Inputs]]:
        """Parts of the timed call that can be timed by themselves, by the names of ``harness.overlap``; as ``timed`` is."""
        return {}

    def facts(self, inputs: Inputs) -> dict[str, Any]:
        """Further fields of its rows, known once it is prepared."""
        return {}

    def sources_of(self, pass_: str) -> Iterable[Path]:
        """Files and folders that determine what it does in a pass and how fast: its own module and ``sources``."""
        return [Path(inspect.getfile(type(self))), *(ROOT / name for name in self.sources)]

    def source_hash(self, device: str, pass_: str) -> str:
        """Hash of what determines this competitor's speed in a pass: its version and the files it is made of here."""
        version = self.probe(device).version
        return hash_files(self.sources_of(pass_), salt=f"{self.name} {version}")


def gib(count: float) -> str:
    """A number of bytes in GiB, for messages."""
    return f"{count / 2**30:.1f} GiB"


def torch_version() -> str:
    """Version of torch, with the build tag."""
    import torch

    return str(torch.__version__)
