"""What FlashAttention 2, 3 and 4 have in common: full, causal, a causal window, or documents packed into one sequence.

Documents are handed over as ``cu_seqlens``, as a user who trains on packed sequences does; the batch becomes more
documents of the same sequence, without a copy. No row of such a mask is without a key, so what the versions return as the
LSE of an empty row does not matter here.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from harness.backends.base import Attend, Availability, Backend
from harness.backends.package import Package, deterministic, refused_shape
from harness.cases import Problem
from masks.column_mask import ColumnMask, MaskError
from masks.convert import to_cu_seqlens


class FlashAttention(Backend):
    """One version of FlashAttention, by its functions ``flash_attn_func`` and ``flash_attn_varlen_func``."""

    layout = "bshd"
    sources: ClassVar[tuple[str, ...]] = (
        "harness/backends/flash_attention.py",
        "masks/column_mask.py",
        "masks/convert/varlen.py",
    )
    package: ClassVar[Package]
    asks_lse: ClassVar[str] = "return_attn_probs"
    """The argument that makes it return the LSE (float32, natural log, ``[B, H, S]`` or, packed, ``[H, tokens]``)."""

    def probe(self, device: str) -> Availability:
        """By the package."""
        return self.package.probe(device)

    def unsupported(self, problem: Problem, mask: ColumnMask, pass_: str, device: str) -> str | None:
        """Only what ``cu_seqlens`` and a causal window express."""
        return refused_shape(problem, 256) or not_packed(mask)

    def prepare(self, problem: Problem, mask: ColumnMask) -> Attend:
        """``cu_seqlens`` of the whole batch."""
        packed = to_cu_seqlens(mask)
        options: dict[str, Any] = {"causal": packed.causal, self.asks_lse: True}
        if packed.window is not None:
            options["window_size"] = (packed.window - 1, 0)
        if packed.cu_seqlens.numel() == 2:
            batched = self.package.load("flash_attn_func", "deterministic", *options)

            def attend(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
                out, lse, *_ = batched(q, k, v, deterministic=deterministic(), **options)
                return out, lse

            return attend

        starts, longest = of_batch(packed.cu_seqlens, problem.batch)
        options |= {"cu_seqlens_q": starts, "cu_seqlens_k": starts, "max_seqlen_q": longest, "max_seqlen_k": longest}
        varlen = self.package.load("flash_attn_varlen_func", "deterministic", *options)
        shape = (problem.batch, problem.seqlen)

        def attend_packed(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
            rows = [tensor.flatten(0, 1) for tensor in (q, k, v)]
            out, lse, *_ = varlen(*rows, deterministic=deterministic(), **options)
            return out.unflatten(0, shape), lse.unflatten(1, shape).transpose(0, 1)

        return attend_packed


def not_packed(mask: ColumnMask) -> str | None:
    """Why a mask cannot be handed over as ``cu_seqlens`` and a causal window, or None."""
    try:
        to_cu_seqlens(mask)
    except MaskError as error:
        return str(error)
    return None


def of_batch(cu_seqlens: Tensor, batch: int) -> tuple[Tensor, int]:
    """(int32 ``[batch * documents + 1]``: the documents of all batch items one after the other, longest document)."""
    ends = torch.arange(batch, device=cu_seqlens.device).unsqueeze(1) * cu_seqlens[-1] + cu_seqlens[1:]
    starts = torch.cat([cu_seqlens[:1], ends.flatten().to(torch.int32)])
    return starts, int(cu_seqlens.diff().max())
