"""FlashMask as its first paper describes it: this project's own kernel for Ampere and later, in the FlashAttention 2 way."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from fm3_kernel import ampere, flashmask_attention, prepare_mask
from fm3_kernel.build import BuildError, build, flags, sources
from harness.backends.base import Attend, Availability, Backend, torch_version
from harness.backends.package import deterministic
from harness.cases import Problem
from harness.inputs import DTYPES
from harness.provenance import ROOT, hash_files
from masks.column_mask import ColumnMask


class FlashMask(Backend):
    """``flashmask_attention`` by that kernel, on a prepared mask, as a model with several layers would call it."""

    name = "flashmask"
    title = "FlashMask"
    layout = "bshd"

    def sources_of(self, pass_: str) -> list[Path]:
        """What the kernels of the pass are made of and launched with; nothing of the way to the launch."""
        names = ["prepare", *(f"ampere_forward_d{dim}" for dim in ampere.HEAD_DIMS)]
        python = ["fm3_kernel/ampere.py", "fm3_kernel/hopper.py", "fm3_kernel/hopper_forward.py"]
        if pass_ != "forward":
            names += ["backward_rows", *(f"ampere_backward_d{dim}" for dim in ampere.BACKWARD_HEAD_DIMS)]
        return [path for name in names for path in sources(name)] + [ROOT / name for name in python]

    def source_hash(self, device: str, pass_: str) -> str:
        """Of the sources and of the flags they are compiled with."""
        salt = f"{self.name} {self.probe(device).version} {flags('prepare')} {flags('ampere_forward_d64')}"
        return hash_files(self.sources_of(pass_), salt=salt)

    def probe(self, device: str) -> Availability:
        """A GPU from Ampere on, and the kernels built or a compiler to build them."""
        if device != "cuda":
            return Availability(False, reason="needs an NVIDIA GPU", install="run on a machine with one")
        if not ampere.runs_on(torch.device("cuda", torch.cuda.current_device())):
            reason = f"{torch.cuda.get_device_name()} is older than compute capability 8.0"
            return Availability(False, reason=reason, install="run on an Ampere GPU or a later one")
        try:
            build("prepare")
        except BuildError as error:
            return Availability(False, reason=str(error).splitlines()[0], install="pip install 'flashmask3[build]'")
        return Availability(True, f"sm_80, torch {torch_version()}")

    def unsupported(self, problem: Problem, mask: ColumnMask, pass_: str, device: str) -> str | None:
        """16-bit inputs, three head dims, two of them with gradients."""
        allowed = ampere.HEAD_DIMS if pass_ == "forward" else ampere.BACKWARD_HEAD_DIMS
        if DTYPES[problem.dtype] not in ampere.DTYPES:
            return f"takes bfloat16 and float16, not {problem.dtype}"
        if problem.head_dim not in allowed:
            return f"takes head dims {', '.join(map(str, allowed))} in this pass, not {problem.head_dim}"
        return None

    def prepare(self, problem: Problem, mask: ColumnMask) -> Attend:
        """Bounds and order of the mask."""
        prepared = prepare_mask(mask)

        def attend(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
            exact = deterministic()
            return flashmask_attention(q, k, v, prepared, deterministic=exact, implementation="ampere", return_lse=True)

        return attend
