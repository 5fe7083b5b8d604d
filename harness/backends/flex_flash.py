"""FlexAttention on FlashAttention 4's kernels, with a ``mask_mod`` that they compile.

Their compiler takes no constant for an index, as in ``lts[0, 0, kv]`` (torch 2.11), and is slow with two indices
(pytorch/torchtitan pull request 2171): here every vector has one. A module of its own, over the class of ``flex.py``: rows of
the default options are known by the hash of that file.
"""

from __future__ import annotations

from pathlib import Path

import torch

from harness.backends import flex
from harness.backends.base import Attend
from harness.backends.flex import MaskMod, closed_form
from harness.cases import Problem
from harness.provenance import ROOT
from masks.column_mask import ColumnMask


class FlexFlash(flex.FlexFlash):
    """FlexAttention on FlashAttention 4's kernels."""

    def sources_of(self, pass_: str) -> list[Path]:
        """Those of the default options as well."""
        return [*super().sources_of(pass_), ROOT / "harness/backends/flex.py"]

    def unsupported(self, problem: Problem, mask: ColumnMask, pass_: str, device: str) -> str | None:
        """Block masks are not written for one index."""
        if mask.block_mask is not None:
            return "block masks are not handed to the FLASH backend"
        return super().unsupported(problem, mask, pass_, device)

    def prepare(self, problem: Problem, mask: ColumnMask) -> Attend:
        """Builds the block mask and the compiled function; the first call compiles."""
        from torch.nn.attention.flex_attention import flex_attention

        from masks.convert import to_flex_block_mask

        block_mask = to_flex_block_mask(mask, problem.heads, closed_form(problem) or mask_mod(mask, problem.heads))
        compiled = torch.compile(flex_attention, dynamic=False, fullgraph=True)
        grouped = problem.heads != problem.kv_heads
        return lambda q, k, v: (
            compiled(q, k, v, block_mask=block_mask, enable_gqa=grouped, kernel_options=self.kernel_options),
            None,
        )


def mask_mod(mask: ColumnMask, heads: int) -> MaskMod:
    """The mask as an element function that reads each vector by one index.

    Args:
        mask: without a block mask; its tensors are captured on their device, of every query head where mask heads differ.
        heads: query heads, a multiple of the mask's.
    """
    batch_step, head_step = mask.seqlen_k * (heads if mask.heads > 1 else 1), mask.seqlen_k
    by_batch, by_head = mask.batch > 1, mask.heads > 1

    def flat(name: str) -> torch.Tensor | None:
        values = getattr(mask, name)
        if values is None:
            return None
        values = values.expand(mask.batch, mask.heads, -1)
        return (values.repeat_interleave(heads // mask.heads, dim=1) if by_head else values).flatten()

    lts, lte, uts, ute = (flat(name) for name in ("lts", "lte", "uts", "ute"))
    causal, diagonal = mask.causal, mask.diagonal

    def visible(b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        at = kv
        if by_head:
            at = h * head_step + at
        if by_batch:
            at = b * batch_step + at
        seen = (q + diagonal >= kv) if causal else (q >= 0)
        if lts is not None:
            seen = seen & ((q < lts[at]) if lte is None else (q < lts[at]) | (q >= lte[at]))
        if ute is not None:
            seen = seen & ((q >= ute[at]) if uts is None else (q < uts[at]) | (q >= ute[at]))
        return seen

    return visible
