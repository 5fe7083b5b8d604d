"""This project's kernel for Hopper GPUs."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from fm3_kernel import flashmask_attention, hopper, prepare_mask
from fm3_kernel.build import FLAGS, BuildError, build, instances, sources
from harness.backends.base import Attend, Availability, Backend, torch_version
from harness.backends.package import deterministic
from harness.cases import Problem
from harness.inputs import DTYPES
from harness.provenance import ROOT, hash_files
from masks.column_mask import ColumnMask


class Fm3(Backend):
    """``flashmask_attention`` by the Hopper kernel, on a prepared mask, as a model with several layers would call it."""

    name = "fm3"
    title = "FM3"
    layout = "bshd"

    def sources_of(self, pass_: str) -> list[Path]:
        """What the kernels of the pass are made of and launched with. Of the way to the launch, this module included, nothing:
        it takes no time on the device, and the forward pass does not change when the backward pass learns something."""
        names = ["prepare", *(f"forward_d{dim}" for dim in hopper.HEAD_DIMS)]
        python = ["fm3_kernel/hopper.py", "fm3_kernel/hopper_forward.py"]
        if pass_ != "forward":
            names += [name for name in instances() if name.startswith("backward")]
            python += ["fm3_kernel/hopper_backward.py"]
        return [path for name in names for path in sources(name)] + [ROOT / name for name in python]

    def source_hash(self, device: str, pass_: str) -> str:
        """Of the sources and of the flags they are compiled with."""
        return hash_files(self.sources_of(pass_), salt=f"{self.name} {self.probe(device).version} {FLAGS}")

    def probe(self, device: str) -> Availability:
        """A Hopper GPU, and the kernels built or a compiler to build them."""
        if device != "cuda":
            return Availability(False, reason="needs an NVIDIA Hopper GPU", install="run on a machine with an H100 or H200")
        if not hopper.is_hopper(torch.device("cuda", torch.cuda.current_device())):
            return Availability(False, reason=f"no kernel for {torch.cuda.get_device_name()}", install="run on an H100 or H200")
        try:
            build("prepare")
        except BuildError as error:
            return Availability(False, reason=str(error).splitlines()[0], install="pip install 'flashmask3[build]'")
        return Availability(True, f"sm_90a, torch {torch_version()}")

    def unsupported(self, problem: Problem, mask: ColumnMask, pass_: str, device: str) -> str | None:
        """16-bit inputs, three head dims."""
        if DTYPES[problem.dtype] not in hopper.DTYPES:
            return f"takes bfloat16 and float16, not {problem.dtype}"
        if problem.head_dim not in hopper.HEAD_DIMS:
            return f"takes head dims {', '.join(map(str, hopper.HEAD_DIMS))}, not {problem.head_dim}"
        return None

    def prepare(self, problem: Problem, mask: ColumnMask) -> Attend:
        """Bounds and order of the mask."""
        prepared = prepare_mask(mask)

        def attend(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
            exact = deterministic()
            return flashmask_attention(q, k, v, prepared, deterministic=exact, implementation="hopper", return_lse=True)

        return attend
