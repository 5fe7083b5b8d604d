"""torch's fused SDPA kernels: FlashAttention 2 and cuDNN. They know no mask but full and causal."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from harness.backends.base import Attend, Availability, Backend, torch_version
from harness.cases import Problem
from masks.column_mask import ColumnMask


class _FusedSDPA(Backend):
    """One of torch's fused kernels, forced: torch raises rather than fall back to another."""

    kernel: ClassVar[SDPBackend]

    def version(self) -> str:
        """What computes."""
        return f"torch {torch_version()}"

    def probe(self, device: str) -> Availability:
        """CUDA only: torch's CPU kernel of the same name is another program."""
        if device != "cuda":
            return Availability(False, reason="needs an NVIDIA GPU", install="run on a machine with one")
        return Availability(True, self.version())

    def unsupported(self, problem: Problem, mask: ColumnMask, pass_: str, device: str) -> str | None:
        """Full and causal masks of square shape, 16-bit inputs."""
        if problem.dtype not in ("bfloat16", "float16"):
            return f"takes bfloat16 and float16, not {problem.dtype}"
        if mask.vectors or mask.block_mask is not None:
            return "expresses full and causal masks only"
        return None

    def prepare(self, problem: Problem, mask: ColumnMask) -> Attend:
        """Nothing to prepare."""
        grouped = problem.heads != problem.kv_heads
        causal = mask.causal

        def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, None]:
            with sdpa_kernel(self.kernel):
                return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=grouped), None

        return attend


class SdpaFlash(_FusedSDPA):
    """FlashAttention 2 as torch ships it."""

    name = "sdpa_flash"
    title = "FlashAttention 2 (torch SDPA)"
    kernel = SDPBackend.FLASH_ATTENTION


class SdpaCudnn(_FusedSDPA):
    """cuDNN's fused attention: the anchor that ratios between machines and runs go through."""

    name = "sdpa_cudnn"
    title = "cuDNN (torch SDPA)"
    kernel = SDPBackend.CUDNN_ATTENTION

    def version(self) -> str:
        """torch's version and cuDNN's."""
        return f"torch {torch_version()}, cuDNN {torch.backends.cudnn.version()}"
