"""FlashMask-3 as published: the PyTorch build of PaddlePaddle's flash-attention, column masks on Hopper.

Interface of the distribution flashmask 3.0.0b1 (``flashmask_interface``), revision 9985af5 or later. It refuses to run
without vectors, so full and causal masks get vectors that hide nothing, as its own benchmark does. It is steered by two
environment variables, which are set for every call: the version of its kernels and whether to be deterministic.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor

from harness.backends.base import Attend, Availability, Backend
from harness.backends.package import Package, deterministic, refused_shape
from harness.cases import Problem
from masks.column_mask import ColumnMask

INSTALL = (
    "git clone https://github.com/PaddlePaddle/flash-attention; in its flashmask/flash_mask/flashmask_attention_v3: "
    "python setup_torch.py install"
)
VERSION_FLAG, DETERMINISTIC_FLAG = "FLAGS_flash_attn_version", "FLAGS_cudnn_deterministic"
LARGEST_DETERMINISTIC = 128
BLOCK_MASK_HEAD_DIM = 128


class FlashMask3(Backend):
    """``flashmask_attention``."""

    name = "flashmask_3"
    title = "FlashMask-3 (published)"
    layout = "bshd"
    sources = ("masks/column_mask.py",)
    package = Package("flashmask", "flashmask_interface", "3.0.0b1", INSTALL, (9,))

    def probe(self, device: str) -> Availability:
        """By the package."""
        return self.package.probe(device)

    def unsupported(self, problem: Problem, mask: ColumnMask, pass_: str, device: str) -> str | None:
        """Its own representation: everything but heads that it does not document and a few shapes."""
        if mask.heads not in (1, problem.kv_heads):
            return f"takes 1 mask head or one a KV head ({problem.kv_heads}), not {mask.heads}"
        if mask.block_mask is not None and problem.head_dim != BLOCK_MASK_HEAD_DIM:
            return f"takes a block mask with head dim {BLOCK_MASK_HEAD_DIM} only, not {problem.head_dim}"
        if deterministic() and mask.block_mask is not None:
            return "has no deterministic mode with a block mask"
        if deterministic() and problem.head_dim > LARGEST_DETERMINISTIC:
            return f"is deterministic up to head dim {LARGEST_DETERMINISTIC} only, not {problem.head_dim}"
        return refused_shape(problem, 256)

    def prepare(self, problem: Problem, mask: ColumnMask) -> Attend:
        """``startend_row_indices`` of every batch item, and the block mask where there is one."""
        options: dict[str, Any] = {
            "startend_row_indices": indices_of(mask, problem.batch),
            "causal": mask.causal,
            "return_softmax_lse": True,
        }
        if mask.block_mask is not None:
            options["block_mask"] = mask.block_keep().to(torch.int32).expand(problem.batch, mask.heads, -1, -1).contiguous()
        function = self.package.load("flashmask_attention", *options)

        def attend(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
            os.environ[VERSION_FLAG] = "3"
            if deterministic():
                os.environ[DETERMINISTIC_FLAG] = "1"
            else:  # revisions differ in what they take for "no": only an absent variable is no for all
                os.environ.pop(DETERMINISTIC_FLAG, None)
            out, lse = function(q, k, v, **options)
            return out, lse

        return attend


def indices_of(mask: ColumnMask, batch: int) -> Tensor:
    """int32 ``[batch, mask heads, S, n]``, rows within ``[0, S]``. Without vectors: n = 1 (causal) or 2, hiding nothing."""
    rows = mask.seqlen_q
    if mask.vectors:
        found = torch.stack([getattr(mask, name) for name in mask.vectors], dim=-1).clamp(0, rows)
    else:
        nothing = [rows] if mask.causal else [rows, 0]
        found = torch.tensor(nothing, dtype=torch.int32, device=mask.device).expand(1, 1, mask.seqlen_k, -1)
    return found.expand(batch, mask.heads, -1, -1).contiguous()
