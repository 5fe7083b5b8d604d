"""The project's reference attention: plain PyTorch, tile by tile, any device."""

from __future__ import annotations

from fm3_kernel import flashmask_attention
from harness.backends.base import Attend, Availability, Backend, torch_version
from harness.cases import Problem
from masks.column_mask import ColumnMask


class Reference(Backend):
    """``flashmask_attention`` by its reference implementation."""

    name = "reference"
    title = "reference (PyTorch, tile by tile)"
    layout = "bshd"
    sources = (
        *(f"fm3_kernel/{name}.py" for name in ("attention", "operators", "reference", "row_tiles", "element_mask", "layout")),
        "masks/column_mask.py",
        "masks/tiles.py",
    )

    def probe(self, device: str) -> Availability:
        """Runs wherever torch does."""
        return Availability(True, torch_version())

    def unsupported(self, problem: Problem, mask: ColumnMask, pass_: str, device: str) -> str | None:
        """Takes everything."""
        return None

    def prepare(self, problem: Problem, mask: ColumnMask) -> Attend:
        """Nothing to prepare: the class map is part of the call."""
        return lambda q, k, v: flashmask_attention(q, k, v, mask, implementation="reference", return_lse=True)
