"""The column mask: for every key column, which query rows are hidden.

Two half-open row intervals per key column ``j``, ``[LTS_j, LTE_j)`` in the lower triangle and ``[UTS_j, UTE_j)`` in the
upper one, plus an optional diagonal (causal, aligned bottom-right) and an optional keep bit per 128x128 tile.
This module holds the representation and the one definition of visibility. It does not build masks (``masks.families``),
does not cut them into tiles (``masks.tiles``) and never allocates anything of size ``seqlen_q * seqlen_k`` by itself.

Source of the representation: FlashMask (arXiv 2410.01359), section 4.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

BLOCK = 128
"""Rows and columns of one tile of a block mask; the granularity fixed by the papers."""

LONGEST = 2**31 - 1
"""Rows and columns at most: boundaries are int32."""

VECTOR_NAMES = ("lts", "lte", "uts", "ute")

# Which vectors may be present together, by the causal flag, in the order of the interchange form.
_FORMS: dict[bool, tuple[tuple[str, ...], ...]] = {
    True: ((), ("lts",), ("lts", "lte")),
    False: ((), ("lts", "ute"), ("lts", "lte", "uts", "ute")),
}


class MaskError(ValueError):
    """A mask that cannot mean anything: the message says what was given and what is allowed."""


class Intervals(NamedTuple):
    """The two hidden intervals per column, clipped to ``[0, seqlen_q]``, int32 ``[B, Hm, Sk]`` each.

    An empty interval is stored as ``(seqlen_q, 0)``: a start that no row reaches and an end that every row has passed,
    so minima and maxima over many columns need no special case for it.
    """

    lts: Tensor
    lte: Tensor
    uts: Tensor
    ute: Tensor


@dataclass(frozen=True, eq=False)
class ColumnMask:
    """A mask of ``seqlen_q`` query rows by ``seqlen_k`` key columns in O(seqlen_k) memory.

    Args:
        lts, lte, uts, ute: int32 ``[B, Hm, Sk]`` or None. Row indices, kept exactly as given; a value outside
            ``[0, seqlen_q]`` means the same as the clipped one, and start >= end is an empty interval.
            Allowed together: none; ``lts``; ``lts, lte`` (causal) - none; ``lts, ute``; all four (not causal).
        block_mask: uint8 ``[B, Hm, ceil(Sq/128), ceil(ceil(Sk/128)/8)]``, one bit per 128x128 tile, lowest bit first,
            1 = keep; or None. Build it with :func:`pack_block_mask`.
        causal: row ``i`` sees column ``j`` only when ``j <= i + seqlen_k - seqlen_q``.
        seqlen_q, seqlen_k: rows and columns.
        placed: the device of a mask that carries no tensor; :meth:`to` sets it. Ignored otherwise.

    ``B`` is 1 or the batch size; ``Hm`` is 1, the number of KV heads or the number of query heads: query head ``h`` of
    ``Hq`` uses mask head ``h // (Hq / Hm)``.

    Raises:
        MaskError: wrong dtype, shape, device or combination of vectors, before anything is computed.
    """

    lts: Tensor | None = None
    lte: Tensor | None = None
    uts: Tensor | None = None
    ute: Tensor | None = None
    block_mask: Tensor | None = None
    causal: bool = False
    seqlen_q: int = 0
    seqlen_k: int = 0
    placed: torch.device | None = None

    def __post_init__(self) -> None:
        for name in ("seqlen_q", "seqlen_k"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise MaskError(f"{name} is {value!r}; it must be an integer >= 0")
            if value > LONGEST:
                raise MaskError(f"{name} is {value}; rows and columns are int32, at most {LONGEST}")
        if not isinstance(self.causal, bool):
            raise MaskError(f"causal is {self.causal!r}; it must be True or False")
        for name in (*VECTOR_NAMES, "block_mask"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, Tensor):
                raise MaskError(f"{name} is a {type(value).__name__}; it must be a torch.Tensor or None")
        present = tuple(name for name in VECTOR_NAMES if getattr(self, name) is not None)
        allowed = _FORMS[self.causal]
        if present not in allowed:
            shown = "; ".join(", ".join(form) or "none" for form in allowed)
            given = ", ".join(present) or "none"
            raise MaskError(f"vectors given: {given}, with causal={self.causal}; allowed then: {shown}")
        for name in present:
            vector: Tensor = getattr(self, name)
            if vector.dtype != torch.int32:
                raise MaskError(f"{name} has dtype {vector.dtype}; the mask vectors are torch.int32")
            if vector.dim() != 3 or vector.shape[2] != self.seqlen_k:
                raise MaskError(
                    f"{name} has shape {tuple(vector.shape)}; expected [batch or 1, mask heads, seqlen_k={self.seqlen_k}]"
                )
            first: Tensor = getattr(self, present[0])
            # Compared and not collected in a set: under torch.compile a length is a symbol, and hashing fixes it.
            if vector.shape != first.shape or vector.device != first.device:
                raise MaskError(
                    f"the vectors differ in shape or device: {present[0]} {tuple(first.shape)} on {first.device}, "
                    f"{name} {tuple(vector.shape)} on {vector.device}"
                )
        if self.block_mask is not None:
            self._check_block_mask(self.block_mask)

    def _check_block_mask(self, packed: Tensor) -> None:
        row_tiles, column_tiles = tile_count(self.seqlen_q), tile_count(self.seqlen_k)
        expected = (row_tiles, (column_tiles + 7) // 8)
        if packed.dtype != torch.uint8:
            raise MaskError(f"block_mask has dtype {packed.dtype}; packed bits are torch.uint8 (see pack_block_mask)")
        if packed.dim() != 4 or tuple(packed.shape[2:]) != expected:
            raise MaskError(
                f"block_mask has shape {tuple(packed.shape)}; expected [batch or 1, mask heads, {expected[0]}, {expected[1]}]"
            )
        first = self.lts
        if first is None:
            return
        if packed.device != first.device:
            raise MaskError(f"block_mask is on {packed.device}, the vectors are on {first.device}")
        for axis, name in ((0, "batch"), (1, "mask heads")):
            a, b = packed.shape[axis], first.shape[axis]
            if a != b and 1 not in (a, b):
                raise MaskError(f"block_mask has {a} {name}, the vectors have {b}; they must be equal, or one of them 1")

    # -- shape ---------------------------------------------------------------------------------------------------

    @property
    def batch(self) -> int:
        """Batch items with a mask of their own (1: shared by the whole batch)."""
        return self._axis(0)

    @property
    def heads(self) -> int:
        """Mask heads ``Hm`` (1: shared by all heads)."""
        return self._axis(1)

    def _axis(self, axis: int) -> int:
        sizes = [t.shape[axis] for t in (self.lts, self.block_mask) if t is not None]
        if 0 in sizes:
            return 0
        return max(sizes, default=1)

    @property
    def vectors(self) -> tuple[str, ...]:
        """Names of the vectors present, in interchange order."""
        return tuple(name for name in VECTOR_NAMES if getattr(self, name) is not None)

    @property
    def diagonal(self) -> int:
        """``seqlen_k - seqlen_q``: causal row ``i`` sees columns up to ``i + diagonal``."""
        return self.seqlen_k - self.seqlen_q

    @property
    def device(self) -> torch.device:
        """Device of the tensors, or where a mask that carries none was put (``cpu`` at first)."""
        for tensor in (self.lts, self.block_mask):
            if tensor is not None:
                return tensor.device
        return self.placed or torch.device("cpu")

    def tensors(self) -> dict[str, Tensor]:
        """The tensors present, by name."""
        named = {name: getattr(self, name) for name in (*VECTOR_NAMES, "block_mask")}
        return {name: tensor for name, tensor in named.items() if tensor is not None}

    def to(self, device: torch.device | str) -> ColumnMask:
        """The same mask with its tensors on ``device``."""
        moved: dict[str, Any] = {name: tensor.to(device) for name, tensor in self.tensors().items()}
        return replace(self, **moved, placed=torch.device(device))

    def __repr__(self) -> str:
        parts = [", ".join(self.vectors) or "no vectors"]
        if self.block_mask is not None:
            parts.append("block mask")
        return (
            f"ColumnMask({' + '.join(parts)}, causal={self.causal}, batch={self.batch}, heads={self.heads}, "
            f"seqlen_q={self.seqlen_q}, seqlen_k={self.seqlen_k}, device={self.device})"
        )

    # -- interchange ---------------------------------------------------------------------------------------------

    @staticmethod
    def from_startend_row_indices(
        indices: Tensor | None, *, causal: bool, seqlen_q: int | None = None, seqlen_k: int | None = None
    ) -> ColumnMask:
        """The mask that FlashMask's users already hold.

        Args:
            indices: int32 ``[B, Hm, Sk, n]``; n = 1 (LTS) or 2 (LTS, LTE) when causal, 2 (LTS, UTE) or 4
                (LTS, LTE, UTS, UTE) when not. None: no vectors, then ``seqlen_k`` is needed.
            causal: whether the diagonal applies too.
            seqlen_q: rows; default: as many as columns.
            seqlen_k: columns, if ``indices`` is None.

        Raises:
            MaskError: wrong dtype, rank or n.
        """
        if indices is not None and not isinstance(indices, Tensor):
            raise MaskError(f"startend_row_indices is a {type(indices).__name__}; expected a torch.Tensor or None")
        if not isinstance(causal, bool):
            raise MaskError(f"causal is {causal!r}; it must be True or False")
        if indices is None:
            if seqlen_k is None:
                raise MaskError("startend_row_indices is None: give seqlen_k")
            return ColumnMask(causal=causal, seqlen_q=seqlen_k if seqlen_q is None else seqlen_q, seqlen_k=seqlen_k)
        if indices.dim() != 4:
            raise MaskError(f"startend_row_indices has shape {tuple(indices.shape)}; expected [batch, mask heads, seqlen_k, n]")
        if indices.dtype != torch.int32:
            raise MaskError(f"startend_row_indices has dtype {indices.dtype}; expected torch.int32")
        columns, count = indices.shape[2], indices.shape[3]
        if seqlen_k is not None and seqlen_k != columns:
            raise MaskError(f"startend_row_indices has {columns} columns, seqlen_k is {seqlen_k}")
        forms = {len(form): form for form in _FORMS[causal] if form}
        if count not in forms:
            raise MaskError(f"startend_row_indices has {count} vectors with causal={causal}; allowed then: {sorted(forms)}")
        named: dict[str, Any] = {name: indices[..., i] for i, name in enumerate(forms[count])}
        return ColumnMask(**named, causal=causal, seqlen_q=columns if seqlen_q is None else seqlen_q, seqlen_k=columns)

    def to_startend_row_indices(self) -> Tensor | None:
        """int32 ``[B, Hm, Sk, n]`` with the very values given; None when the mask has no vectors.

        Raises:
            MaskError: the mask has a block mask, which the interchange form cannot carry.
        """
        if self.block_mask is not None:
            raise MaskError("startend_row_indices cannot carry a block mask; pass block_mask beside it")
        if not self.vectors:
            return None
        return torch.stack([getattr(self, name) for name in self.vectors], dim=-1)

    # -- meaning -------------------------------------------------------------------------------------------------

    def intervals(self) -> Intervals:
        """The hidden intervals of every column with absent vectors filled in (the diagonal is not folded in)."""
        shape = (1, 1, self.seqlen_k) if self.lts is None else tuple(self.lts.shape)

        def bound(vector: Tensor | None, absent: int) -> Tensor:
            if vector is None:
                return torch.full(shape, absent, dtype=torch.int32, device=self.device)
            return vector.clamp(0, self.seqlen_q)

        def pair(start: Tensor, end: Tensor) -> tuple[Tensor, Tensor]:
            empty = start >= end
            return start.masked_fill(empty, self.seqlen_q), end.masked_fill(empty, 0)

        has_lower, has_upper = self.lts is not None, self.ute is not None
        lower = pair(bound(self.lts, 0), bound(self.lte, self.seqlen_q if has_lower else 0))
        upper = pair(bound(self.uts, 0), bound(self.ute, 0)) if has_upper else pair(bound(None, 0), bound(None, 0))
        return Intervals(*lower, *upper)

    def visible(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Which of the given query rows see which of the given key columns: the one definition of visibility.

        Args:
            rows: integer ``[R]``, each in ``[0, seqlen_q)``.
            columns: integer ``[C]``, each in ``[0, seqlen_k)``.

        Returns:
            bool ``[B, Hm, R, C]``, True = visible.
        """
        rows = rows.to(self.device)
        columns = columns.to(self.device)
        row = rows.view(1, 1, -1, 1)
        hidden = torch.zeros((1, 1, rows.numel(), columns.numel()), dtype=torch.bool, device=self.device)
        if self.lts is not None:
            lts, lte, uts, ute = (t[..., columns].unsqueeze(2) for t in self.intervals())
            hidden = ((row >= lts) & (row < lte)) | ((row >= uts) & (row < ute))
        if self.causal:
            hidden = hidden | (columns.view(1, 1, 1, -1) > row + self.diagonal)
        if self.block_mask is not None:
            keep = self.block_keep()
            hidden = hidden | ~keep[:, :, rows // BLOCK][:, :, :, columns // BLOCK]
        return ~hidden

    def block_keep(self) -> Tensor:
        """The block mask unpacked: bool ``[B, Hm, ceil(Sq/128), ceil(Sk/128)]``, True = keep."""
        if self.block_mask is None:
            raise MaskError("this mask has no block mask")
        shifts = torch.arange(8, device=self.block_mask.device, dtype=torch.uint8)
        bits = (self.block_mask.unsqueeze(-1) >> shifts) & 1
        return bits.flatten(-2)[..., : tile_count(self.seqlen_k)].bool()

    def with_block_mask(self, keep: Tensor) -> ColumnMask:
        """This mask and a keep bit per tile: an element is hidden when either hides it.

        Args:
            keep: bool ``[B, Hm, ceil(Sq/128), ceil(Sk/128)]``, True = keep.
        """
        expected = (tile_count(self.seqlen_q), tile_count(self.seqlen_k))
        if keep.dtype != torch.bool or keep.dim() != 4 or tuple(keep.shape[2:]) != expected:
            raise MaskError(
                f"block mask is {keep.dtype} {tuple(keep.shape)}; "
                f"expected torch.bool [batch, mask heads, {expected[0]}, {expected[1]}]"
            )
        return replace(self, block_mask=pack_block_mask(keep))

    def without_causal_flag(self) -> ColumnMask:
        """The same mask with the diagonal written as an upper interval: needed once rows are permuted.

        Causal becomes ``UTE_j = j - (Sk - Sq)`` (may be negative): causal gives (LTS = Sq, UTE), causal with LTS gives
        (LTS, UTE), causal with LTS and LTE gives all four with UTS = 0.
        """
        if not self.causal:
            return self
        shape = (1, 1, self.seqlen_k) if self.lts is None else tuple(self.lts.shape)
        columns = torch.arange(self.seqlen_k, dtype=torch.int32, device=self.device)
        ute = (columns - self.diagonal).expand(shape)
        if self.lts is None:
            lts = torch.full(shape, self.seqlen_q, dtype=torch.int32, device=self.device)
            return replace(self, lts=lts, ute=ute, causal=False)
        uts = None if self.lte is None else torch.zeros_like(ute)
        return replace(self, uts=uts, ute=ute, causal=False)

    def digest(self) -> str:
        """Hash of the mask's content (hex, 16 digits). Copies to the host: for the harness, never on the hot path."""
        state = hashlib.sha256(f"{self.causal} {self.seqlen_q} {self.seqlen_k}".encode())
        for name, tensor in self.tensors().items():
            state.update(f"{name} {tuple(tensor.shape)}".encode())
            state.update(tensor.contiguous().cpu().numpy().tobytes())
        return state.hexdigest()[:16]


def tile_count(length: int, tile: int = BLOCK) -> int:
    """Tiles of ``tile`` rows or columns that cover ``length``."""
    return (length + tile - 1) // tile


def pack_block_mask(keep: Tensor) -> Tensor:
    """bool ``[..., R, C]`` to packed bits uint8 ``[..., R, ceil(C/8)]``, lowest bit first."""
    padded = torch.nn.functional.pad(keep.to(torch.uint8), (0, -keep.shape[-1] % 8))
    bits = padded.unflatten(-1, (-1, 8))
    weights = 1 << torch.arange(8, device=keep.device, dtype=torch.uint8)
    return (bits * weights).sum(-1, dtype=torch.uint8)
