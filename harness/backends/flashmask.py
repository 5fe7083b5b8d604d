"""FlashMask as its first paper describes it: this project's own kernel for Ampere and later, in the FlashAttention 2 way."""

from __future__ import annotations

from pathlib import Path

import torch

from fm3_kernel import ampere
from fm3_kernel.build import flags, sources
from harness.backends.base import Availability
from harness.backends.own_kernel import OwnKernel
from harness.provenance import ROOT, hash_files


class FlashMask(OwnKernel):
    """The FlashMask kernel."""

    name = "flashmask"
    title = "FlashMask"
    implementation = "ampere"

    def sources_of(self, pass_: str) -> list[Path]:
        """What the kernels of the pass are made of and launched with; nothing of the way to the launch."""
        names = ["prepare"]
        python = ["fm3_kernel/ampere.py", "fm3_kernel/hopper.py", "fm3_kernel/hopper_forward.py"]
        if pass_ in ("forward", "both"):
            names += [f"ampere_forward_d{dim}" for dim in ampere.HEAD_DIMS]
        if pass_ in ("backward", "both"):
            names += ["backward_rows", *(f"ampere_backward_d{dim}" for dim in ampere.BACKWARD_HEAD_DIMS)]
        return [path for name in names for path in sources(name)] + [ROOT / name for name in python]

    def source_hash(self, device: str, pass_: str) -> str:
        """Of the sources and of the flags they are compiled with."""
        salt = f"{self.name} {self.probe(device).version} {flags('prepare')} {flags('ampere_forward_d64')}"
        return hash_files(self.sources_of(pass_), salt=salt)

    def probe(self, device: str) -> Availability:
        """A GPU from Ampere on, and the kernels built or a compiler to build them."""
        if device != "cuda" or not torch.cuda.is_available():
            return Availability(False, reason="needs an NVIDIA GPU", install="run on a machine with one")
        if not ampere.runs_on(torch.device("cuda", torch.cuda.current_device())):
            reason = f"{torch.cuda.get_device_name()} is older than compute capability 8.0"
            return Availability(False, reason=reason, install="run on an Ampere GPU or a later one")
        return self.built("sm_80")

    def head_dims(self, pass_: str) -> tuple[int, ...]:
        """Three, two of them with gradients."""
        return ampere.HEAD_DIMS if pass_ == "forward" else ampere.BACKWARD_HEAD_DIMS
