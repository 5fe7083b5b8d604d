"""Column masks in other libraries' terms, and back from a dense mask.

Every converter is exact: a mask that the target cannot express is refused by name (:class:`MaskError`), never
approximated. One file a target; nothing here computes attention.
"""

from __future__ import annotations

from masks.convert.flex import to_flex_block_mask, to_mask_mod
from masks.convert.from_dense_mask import from_dense
from masks.convert.slices import AttentionSlice, SliceType, to_slices
from masks.convert.varlen import CuSeqlens, to_cu_seqlens

__all__ = [
    "AttentionSlice",
    "CuSeqlens",
    "SliceType",
    "from_dense",
    "to_cu_seqlens",
    "to_flex_block_mask",
    "to_mask_mod",
    "to_slices",
]
