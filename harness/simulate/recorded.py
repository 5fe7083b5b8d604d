"""From a recorded row back to its problem, where the row holds enough to build the mask again."""

from __future__ import annotations

from typing import Any

from harness.cases import MaskSpec, Problem
from masks.documents import paper_documents
from masks.families import FAMILIES
from masks.paper_lists import VARIANTS


def problem_of(row: Any) -> Problem | None:
    """The problem of a row or a cell; None where its documents came from a file or a sampler, whose lengths no row holds."""
    documents = None
    if FAMILIES[row["mask"]].needs_documents:
        if row["mask_variant"] not in VARIANTS:
            return None
        found = paper_documents(row["seqlen"], row["mask_variant"])
        documents = tuple((one.length, one.prefix, one.flag) for one in found)
    mask = MaskSpec(row["mask"], row["mask_variant"], documents, dict(row["mask_params"]))
    sizes = {name: row[name] for name in ("seqlen", "batch", "heads", "kv_heads", "head_dim", "dtype", "seed")}
    return Problem(mask=mask, **sizes)
