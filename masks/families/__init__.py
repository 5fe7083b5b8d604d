"""The mask families by name: the twelve of the FlashMask papers and block-sparse.

``build_mask`` checks the names and numbers once; the families themselves are one short file each. Documents come from
``masks.documents``. Everything is built on the CPU; ``mask.to(device)`` moves it.
"""

from __future__ import annotations

from typing import Any

from masks.column_mask import ColumnMask, MaskError
from masks.documents import Documents
from masks.families import (
    block_sparse,
    causal,
    causal_blockwise,
    causal_document,
    document,
    full,
    global_sliding_window,
    prefix_lm_causal,
    prefix_lm_document,
    qk_sparse,
    random_eviction,
    share_question,
    sliding_window,
)
from masks.families.family import Family, at_least
from masks.spelling import allowed_names

__all__ = ["FAMILIES", "Family", "build_mask", "find_family"]

FAMILIES: dict[str, Family] = {
    module.FAMILY.name: module.FAMILY
    for module in (
        full,
        causal,
        sliding_window,
        causal_document,
        document,
        share_question,
        global_sliding_window,
        causal_blockwise,
        prefix_lm_document,
        prefix_lm_causal,
        qk_sparse,
        random_eviction,
        block_sparse,
    )
}
"""In the order of the papers' tables."""


def find_family(name: str) -> Family:
    """The family of that name.

    Raises:
        MaskError: unknown; names the allowed ones and the nearest spelling.
    """
    if name not in FAMILIES:
        raise MaskError(f"unknown mask family {name!r}; {allowed_names(name, FAMILIES)}")
    return FAMILIES[name]


def build_mask(
    family: str,
    seqlen: int,
    *,
    documents: Documents | None = None,
    seed: int = 0,
    batch: int = 1,
    heads: int = 1,
    **params: Any,
) -> ColumnMask:
    """The mask of a family for ``seqlen`` rows and columns, on the CPU.

    Args:
        family: a key of ``FAMILIES``.
        seqlen: tokens, at least 1.
        documents: for the families that need them, and only those; their lengths sum to ``seqlen``.
        seed: integer >= 0; without effect on a family that draws nothing.
        batch, heads: batch items and mask heads of a per-head family (random_eviction, block_sparse); without effect on
            the others, whose mask is shared.
        params: parameters of the family (``FAMILIES[family].params``); None means the default.

    Raises:
        MaskError: an unknown family or parameter (with the nearest spelling), missing or surplus documents, documents
            that do not fill the sequence, or a sequence shorter than the family needs.
    """
    entry = find_family(family)
    at_least("seqlen", seqlen, 1)
    at_least("seed", seed, 0)
    at_least("batch", batch, 0)
    at_least("heads", heads, 0)
    for name in params:
        if name not in entry.params:
            raise MaskError(f"{family} has no parameter {name!r}; {allowed_names(name, entry.params)}")
    arguments = {name: value for name, value in params.items() if value is not None}
    if entry.needs_documents:
        arguments["documents"] = _checked(family, documents, seqlen)
    elif documents is not None:
        raise MaskError(f"{family} takes no documents; those that do: {', '.join(_document_families())}")
    if entry.seeded:
        arguments["seed"] = seed
    if entry.per_head:
        arguments |= {"batch": batch, "heads": heads}
    return entry.build(seqlen, **arguments)


def _checked(family: str, documents: Documents | None, seqlen: int) -> Documents:
    if not documents:
        raise MaskError(f"{family} needs documents: see paper_documents, sampled_documents and documents_from_lengths")
    total = sum(document.length for document in documents)
    if total != seqlen:
        raise MaskError(f"the {len(documents)} documents hold {total} tokens; seqlen is {seqlen}")
    return documents


def _document_families() -> list[str]:
    return [name for name, family in FAMILIES.items() if family.needs_documents]
