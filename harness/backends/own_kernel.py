"""What this project's own kernels share as competitors: how they are built, what they refuse, how they are called."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from torch import Tensor

from fm3_kernel import flashmask_attention, hopper, prepare_mask
from fm3_kernel.attention import Implementation
from fm3_kernel.build import INSTALL_NVCC, BuildError, build
from harness.backends.base import Attend, Availability, Backend, torch_version
from harness.backends.package import deterministic
from harness.cases import Problem
from harness.inputs import DTYPES
from masks.column_mask import ColumnMask


class OwnKernel(Backend):
    """``flashmask_attention`` by one kernel, on a prepared mask, as a model with several layers would call it."""

    layout = "bshd"
    implementation: ClassVar[Implementation]

    @abstractmethod
    def head_dims(self, pass_: str) -> tuple[int, ...]:
        """The head dims it takes in a pass."""

    def built(self, target: str) -> Availability:
        """Available if the kernels are built or there is a compiler to build them. ``target``: what they are compiled for."""
        try:
            build("prepare")
        except BuildError as error:
            return Availability(False, reason=str(error).splitlines()[0], install=INSTALL_NVCC)
        return Availability(True, f"{target}, torch {torch_version()}")

    def unsupported(self, problem: Problem, mask: ColumnMask, pass_: str, device: str) -> str | None:
        """16-bit inputs, and the head dims of the pass."""
        allowed = self.head_dims(pass_)
        if DTYPES[problem.dtype] not in hopper.DTYPES:
            return f"takes bfloat16 and float16, not {problem.dtype}"
        if problem.head_dim not in allowed:
            here = "" if self.head_dims("forward") == self.head_dims("backward") else " in this pass"
            return f"takes head dims {', '.join(map(str, allowed))}{here}, not {problem.head_dim}"
        return None

    def prepare(self, problem: Problem, mask: ColumnMask) -> Attend:
        """Bounds and order of the mask."""
        prepared = prepare_mask(mask)

        def attend(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
            exact, kernel = deterministic(), self.implementation
            return flashmask_attention(q, k, v, prepared, deterministic=exact, implementation=kernel, return_lse=True)

        return attend
