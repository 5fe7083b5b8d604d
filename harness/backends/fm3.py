"""This project's kernel for Hopper GPUs."""

from __future__ import annotations

from pathlib import Path

import torch

from fm3_kernel import hopper
from fm3_kernel.build import FLAGS, instances, sources
from harness.backends.base import Availability
from harness.backends.own_kernel import OwnKernel
from harness.provenance import ROOT, hash_files


class Fm3(OwnKernel):
    """The Hopper kernel."""

    name = "fm3"
    title = "FM3"
    implementation = "hopper"

    def sources_of(self, pass_: str) -> list[Path]:
        """What the kernels of the pass are made of and launched with. Of the way to the launch, this module included, nothing:
        it takes no time on the device, and neither pass changes when the other one learns something."""
        names, python = ["prepare"], ["fm3_kernel/hopper.py"]
        for one in ("forward", "backward"):
            if pass_ in (one, "both"):
                names += [name for name in instances() if name.startswith(one)]
                python += [f"fm3_kernel/hopper_{one}.py"]
        return [path for name in names for path in sources(name)] + [ROOT / name for name in python]

    def source_hash(self, device: str, pass_: str) -> str:
        """Of the sources and of the flags they are compiled with."""
        return hash_files(self.sources_of(pass_), salt=f"{self.name} {self.probe(device).version} {FLAGS}")

    def probe(self, device: str) -> Availability:
        """A Hopper GPU, and the kernels built or a compiler to build them."""
        if device != "cuda" or not torch.cuda.is_available():
            return Availability(False, reason="needs an NVIDIA Hopper GPU", install="run on a machine with an H100 or H200")
        if not hopper.is_hopper(torch.device("cuda", torch.cuda.current_device())):
            return Availability(False, reason=f"no kernel for {torch.cuda.get_device_name()}", install="run on an H100 or H200")
        return self.built("sm_90a")

    def head_dims(self, pass_: str) -> tuple[int, ...]:
        """Three, in every pass."""
        return hopper.HEAD_DIMS
