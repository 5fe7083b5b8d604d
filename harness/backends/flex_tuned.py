"""FlexAttention with the options that its compiler finds fastest.

A module of its own, with the few lines of ``prepare`` once more: rows of the default options are known by the hash of theirs.
"""

from __future__ import annotations

from pathlib import Path

import torch

from harness.backends.base import Attend, Availability
from harness.backends.flex import Flex, closed_form
from harness.cases import Problem
from harness.provenance import ROOT
from masks.column_mask import ColumnMask


class FlexTuned(Flex):
    """FlexAttention with the fastest of the tile sizes, warps and stages that its compiler tries, each pass by itself."""

    name = "flex_tuned"
    title = "FlexAttention tuned"

    def sources_of(self, pass_: str) -> list[Path]:
        """Those of the default options as well."""
        return [*super().sources_of(pass_), ROOT / "harness/backends/flex.py"]

    def probe(self, device: str) -> Availability:
        """Triton on a GPU; on a CPU nothing is tried."""
        if device != "cuda":
            return Availability(False, reason="needs an NVIDIA GPU", install="run on a machine with one")
        return super().probe(device)

    def prepare(self, problem: Problem, mask: ColumnMask) -> Attend:
        """Builds the block mask and the compiled function; the first call tries what there is."""
        from torch.nn.attention.flex_attention import flex_attention

        from masks.convert import to_flex_block_mask

        block_mask = to_flex_block_mask(mask, problem.heads, closed_form(problem))
        tuned = torch.compile(flex_attention, dynamic=False, fullgraph=True, mode="max-autotune-no-cudagraphs")
        grouped = problem.heads != problem.kv_heads
        return lambda q, k, v: (tuned(q, k, v, block_mask=block_mask, enable_gqa=grouped), None)
