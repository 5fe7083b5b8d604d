"""What the tokens of one forward pass of a model see, as a model says it: sizes, positions, padding, windows, documents.

One column mask is made of it for each kind of layer, on the layer's device and without looking at a tensor's content.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fm3_kernel.prepare import PreparedMask, prepare_mask
from masks.column_mask import ColumnMask


@dataclass(frozen=True)
class Packing:
    """Where the documents of a packed sequence begin, as the model told it: one of the three forms, or none.

    ``documents``: integer ``[B or 1, Sq]``, a new document where the value changes. ``positions``: integer ``[B or 1, Sq]``,
    a new document where the value does not grow by 1. ``cu_q, cu_k``: integer ``[documents + 1]``, cumulative lengths.
    """

    documents: Tensor | None = None
    positions: Tensor | None = None
    cu_q: Tensor | None = None
    cu_k: Tensor | None = None

    def key(self) -> tuple[int, ...]:
        """The tensors by identity: all layers of a forward pass get the same ones."""
        return tuple(id(x) for x in (self.documents, self.positions, self.cu_q, self.cu_k))

    def given(self) -> bool:
        """Whether any form is there."""
        return any(x is not None for x in (self.documents, self.positions, self.cu_q, self.cu_k))


NO_PACKING = Packing()


@dataclass(frozen=True, eq=False)
class ModelMask:
    """What the tokens of one forward pass see, in the place of a dense mask.

    Args:
        batch, rows, columns: sizes of the dense mask ``[batch, 1, rows, columns]`` that this stands for.
        causal: a row sees no column after its own.
        shift: the row at column j's position is ``j + shift``: the first key's position less the first query's. An integer,
            or a 0-dim integer tensor where only the GPU knows how full the cache is.
        window: with ``causal`` a row sees its own column and ``window - 1`` before; without, ``window`` on either side.
        kept: bool ``[B, columns]``, False for padding; or None.
        packing: the documents that Transformers itself has found.
    """

    batch: int
    rows: int
    columns: int
    causal: bool
    shift: int | Tensor
    window: int | None = None
    kept: Tensor | None = None
    packing: Packing = NO_PACKING
    _made: dict[Any, tuple[PreparedMask, Packing]] = field(default_factory=dict, repr=False)

    # generate() with a static cache makes the mask first and then hands it to the model, which looks at these two.
    ndim = 4

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Of the dense mask."""
        return (self.batch, 1, self.rows, self.columns)

    def prepared(self, device: torch.device, window: int | None = None, packing: Packing = NO_PACKING) -> PreparedMask:
        """The column mask for one layer, made once for all layers that ask for the same.

        Args:
            device: of the layer.
            window: of a layer that has one of its own, meant as in ``window`` of this class.
            packing: documents that only the layers were told about, in place of this mask's own.
        """
        narrowest = window if self.window is None or window is None else min(window, self.window)
        narrowest = self.window if narrowest is None else narrowest
        documents = packing if packing.given() else self.packing
        key = (device, narrowest, documents.key())
        if key not in self._made:
            # The packing is kept beside the mask, so that no other tensor gets the identity that is in the key.
            self._made[key] = (prepare_mask(self._column_mask(device, narrowest, documents)), documents)
        return self._made[key][0]

    def _column_mask(self, device: torch.device, window: int | None, packing: Packing) -> ColumnMask:
        """Every rule says of a column: it is seen from row ``first`` on, and up to row ``end``. All must hold."""
        rows, columns = self.rows, self.columns
        column = torch.arange(columns, dtype=torch.int32, device=device).unsqueeze(0)
        shift = self.shift.to(device, torch.int32) if isinstance(self.shift, Tensor) else self.shift
        own: Tensor = column + shift
        # The column mask has its diagonal bottom-right. Elsewhere, as in a static cache, it is written into the vectors.
        aligned = isinstance(self.shift, int) and self.shift == rows - columns
        firsts: list[Tensor] = []
        ends: list[Tensor] = []
        if packing.cu_q is not None and packing.cu_k is not None:
            cu_q, cu_k = packing.cu_q.to(device, torch.int32), packing.cu_k.to(device, torch.int32)
            document = torch.searchsorted(cu_k, column, right=True) - 1
            # A column behind the last document is in an empty one, and nobody sees it.
            start = cu_q[document]
            following = (document + 1).clamp(max=cu_q.numel() - 1)
            end = cu_q[following]
            firsts += [] if self.causal and packing.cu_q is packing.cu_k else [start]
            ends.append(end)
            if packing.cu_q is not packing.cu_k:
                # The lengths of queries and keys may differ, and only their contents could say: each has its diagonal.
                own, aligned = column + end - cu_k[following], False
        elif packing.given():
            of_rows = _document_ends(packing, rows, device)
            # What a cache holds already is taken to belong to the document that the first row continues.
            at = own.clamp(0, rows - 1).expand(of_rows.shape[0], -1)
            ends.append(of_rows.gather(1, at.long()))
        if self.causal and not aligned:
            firsts.append(own)
        if window is not None:
            ends.append(own + window + (0 if self.causal else 1))
            firsts += [] if self.causal else [own - window]
        if self.kept is not None:
            ends.append(self.kept.to(device).int() * rows)
        sizes: dict[str, Any] = {"seqlen_q": rows, "seqlen_k": columns}
        if not firsts and not ends:
            return ColumnMask(causal=self.causal, placed=device, **sizes)
        end = _combined(torch.minimum, ends, own, rows)
        if self.causal and not firsts:
            return ColumnMask(lts=end, causal=True, **sizes)
        first = _combined(torch.maximum, firsts, own, 0)
        lts, ute = torch.broadcast_tensors(end, first)
        return ColumnMask(lts=lts, ute=ute, **sizes)


def _document_ends(packing: Packing, rows: int, device: torch.device) -> Tensor:
    """For every row the first row of the next document, int32 ``[B or 1, Sq]``."""
    if packing.documents is not None:
        begins = torch.diff(packing.documents.to(device), dim=-1) != 0
    else:
        assert packing.positions is not None
        begins = torch.diff(packing.positions.to(device), dim=-1) != 1
    row = torch.arange(1, rows + 1, dtype=torch.int32, device=device)
    behind = torch.cat([begins, begins.new_ones((begins.shape[0], 1))], dim=-1)
    return torch.where(behind, row, rows).flip(-1).cummin(-1).values.flip(-1)


def _combined(join: Callable[[Tensor, Tensor], Tensor], bounds: list[Tensor], like: Tensor, otherwise: int) -> Tensor:
    """One bound of all, int32 ``[B or 1, 1, Sk]``."""
    joined = bounds[0] if bounds else torch.full_like(like, otherwise)
    for bound in bounds[1:]:
        joined = join(joined, bound)
    return joined.to(torch.int32).unsqueeze(1)
