"""Pictures of all mask families in one figure, at a length where every element can be seen. Needs no rows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from matplotlib.figure import Figure

from masks.column_mask import BLOCK, ColumnMask
from masks.documents import paper_documents
from masks.families import FAMILIES, build_mask
from plots import mask
from plots.catalogue import Drawn

TILE = 32
TILES = 16
"""Tiles a side: few enough to see each one."""


def gallery(names: Sequence[str] | None = None) -> Drawn:
    """All families, or those named, in the registry's order."""
    shown = {name: small_mask(name) for name in (names or FAMILIES)}
    text = (
        f"{TILES * TILE} tokens in tiles of {TILE} x {TILE} (block sparse: {TILES * BLOCK} in tiles of {BLOCK}); "
        "document list a scaled down; query rows run downwards, key columns across."
    )
    title = "The masks and their tiles"
    return Drawn("", "masks", "masks", title, text, mask.data(shown, TILE), partial(_paint, shown))


def _paint(shown: dict[str, ColumnMask], heading: str, below: str) -> Figure:
    return mask.draw_gallery(shown, below, tile=TILE, title=heading)


def small_mask(name: str) -> ColumnMask:
    """One family at TILES tiles a side, with document list a where it needs documents."""
    tokens = TILES * (BLOCK if name == "block_sparse" else TILE)
    documents = paper_documents(tokens, "a") if FAMILIES[name].needs_documents else None
    return build_mask(name, tokens, documents=documents, seed=0)
