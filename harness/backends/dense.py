"""Dense attention: torch's math SDPA with the whole mask as a tensor. What a user without any mask kernel has."""

from __future__ import annotations

import sys

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from harness.backends.base import Attend, Availability, Backend, gib, torch_version
from harness.cases import Problem
from harness.machine import this_machine
from masks.column_mask import ColumnMask

# Scores, probabilities and their gradients live side by side in the backward pass.
_SCORE_COPIES = 5


class Dense(Backend):
    """Math SDPA with a dense boolean mask."""

    name = "dense"
    title = "dense (math SDPA)"
    sources = ("masks/column_mask.py",)

    def probe(self, device: str) -> Availability:
        """Runs wherever torch does."""
        return Availability(True, torch_version())

    def unsupported(self, problem: Problem, mask: ColumnMask, pass_: str, device: str) -> str | None:
        """Refuses what would not fit: the scores alone are B * H * S * S numbers."""
        size = {"float32": 4}.get(problem.dtype, 2)
        need = problem.batch * problem.heads * problem.seqlen**2 * (size * _SCORE_COPIES + 1)
        free = free_memory(device)
        if need > 0.8 * free:
            return f"the dense scores need about {gib(need)}, {gib(free)} are free"
        return None

    def prepare(self, problem: Problem, mask: ColumnMask) -> Attend:
        """Materialises the mask, bool [B or 1, H or 1, S, S]."""
        rows = torch.arange(problem.seqlen, device=mask.device)
        seen = torch.cat([mask.visible(part, rows) for part in rows.split(1024)], dim=2)
        if seen.shape[1] not in (1, problem.heads):
            seen = seen.repeat_interleave(problem.heads // seen.shape[1], dim=1)
        grouped = problem.heads != problem.kv_heads

        def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, None]:
            with sdpa_kernel(SDPBackend.MATH):
                return F.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=grouped), None

        return attend


def free_memory(device: str) -> int:
    """Bytes free on the device (on a CPU: available to new programs)."""
    if device == "cuda":
        return int(torch.cuda.mem_get_info()[0])
    available = this_machine().memory_available
    return sys.maxsize if available is None else available  # not known: let it try
