"""A column mask for FlexAttention: the element function ``mask_mod`` and the block lists.

Both read the column vectors in place; nothing of size ``Sq * Sk`` is built. Compiling and running FlexAttention is not
done here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import reduce
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from masks.column_mask import BLOCK, ColumnMask, MaskError, tile_count
from masks.tiles import FULL, PARTIAL, class_of_tiles

MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""(batch, query head, row, column), int scalars or index tensors, to bool: True = visible."""

_SORTED_AT_ONCE = 1 << 22
"""Tiles whose lists are sorted in one call: the sort takes 9 bytes a tile of scratch."""


def to_mask_mod(mask: ColumnMask, heads_q: int | None = None) -> MaskMod:
    """The mask as an element function, with only the comparisons that its form needs.

    Args:
        mask: any column mask. Its tensors are captured on their device (contiguous copies where they are not).
        heads_q: query heads of the attention call; None: as many as mask heads. Head ``h`` reads mask head
            ``h // (heads_q / Hm)``.

    Raises:
        MaskError: ``heads_q`` is not a multiple of the mask heads.
    """
    group = _group(mask, heads_q)
    diagonal = mask.diagonal
    visible = [mod for mod in (_vectors_mod(mask, group), _keep_mod(mask, group)) if mod is not None]

    def causal(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        return q >= kv if diagonal == 0 else q + diagonal >= kv

    if mask.causal:
        visible.insert(0, causal)

    def everything(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        return (q >= 0) & (kv >= 0)

    return reduce(_both, visible) if visible else everything


def _both(first: MaskMod, second: MaskMod) -> MaskMod:
    def both(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        return first(b, h, q, kv) & second(b, h, q, kv)

    return both


def to_flex_block_mask(mask: ColumnMask, heads_q: int | None = None, mask_mod: MaskMod | None = None) -> BlockMask | None:
    """The mask as FlexAttention's ``BlockMask`` with 128x128 blocks, or None for a mask that hides nothing by form.

    None (no vectors, not causal, no block mask) is what ``flex_attention(..., block_mask=None)`` takes for unmasked
    attention. Otherwise the batch axis is the mask's (1: shared), and the head axis 1 for a shared mask, else
    ``heads_q``. Short blocks at the edge of a length that is not a multiple of 128 are listed as partial, as
    FlexAttention's own builder does. A row without a visible key is legal.

    Args:
        mask: any column mask with at least one row and column.
        heads_q: as in :func:`to_mask_mod`.
        mask_mod: an element function to use in place of that of :func:`to_mask_mod`. It must say the same: a family
            with a closed form is cheaper that way.

    Raises:
        MaskError: ``heads_q`` is not a multiple of the mask heads, or the mask has no rows or no columns.
    """
    mask_mod = mask_mod or to_mask_mod(mask, heads_q)
    if 0 in (mask.seqlen_q, mask.seqlen_k, mask.batch, mask.heads):
        raise MaskError(f"FlexAttention needs at least one row, column, batch item and head; the mask is {mask!r}")
    if not mask.vectors and not mask.causal and mask.block_mask is None:
        return None
    lists: dict[int, list[tuple[Tensor, Tensor]]] = {PARTIAL: [], FULL: []}
    for classes in _class_maps(mask):
        for wanted, found in lists.items():
            found.append(_block_lists(classes == wanted))
    group = _group(mask, heads_q)

    def joined(found: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
        whole = [torch.cat(parts).unflatten(0, (mask.batch, mask.heads)) for parts in zip(*found, strict=True)]
        return [t.repeat_interleave(group, dim=1) if mask.heads > 1 else t for t in whole]

    kv_num_blocks, kv_indices = joined(lists[PARTIAL])
    full_kv_num_blocks, full_kv_indices = joined(lists[FULL])
    return BlockMask.from_kv_blocks(
        kv_num_blocks,
        kv_indices,
        full_kv_num_blocks,
        full_kv_indices,
        BLOCK_SIZE=BLOCK,
        mask_mod=mask_mod,
        seq_lengths=(mask.seqlen_q, mask.seqlen_k),
    )


def _group(mask: ColumnMask, heads_q: int | None) -> int:
    """Query heads that share a mask head."""
    heads = mask.heads if heads_q is None else heads_q
    if mask.heads and heads % mask.heads:
        raise MaskError(f"heads_q is {heads}; it must be a multiple of the {mask.heads} mask heads")
    return heads // max(1, mask.heads)


def _reader(values: Tensor, group: int) -> Callable[[Tensor, Tensor], tuple[Tensor | int, Tensor | int]]:
    """(batch, query head) to the first two indices of ``values``; an axis of size 1 is never indexed by a variable."""
    shared_batch, shared_head = values.shape[0] == 1, values.shape[1] == 1

    def place(b: Tensor, h: Tensor) -> tuple[Tensor | int, Tensor | int]:
        return (0 if shared_batch else b), (0 if shared_head else h if group == 1 else h // group)

    return place


def _vectors_mod(mask: ColumnMask, group: int) -> MaskMod | None:
    """What the vectors alone leave visible; a start at or after its end hides nothing by these comparisons."""
    if mask.lts is None:
        return None
    place = _reader(mask.lts, group)
    vectors = [getattr(mask, name).contiguous() for name in mask.vectors]

    if mask.vectors == ("lts",):
        (lts,) = vectors

        def lower_open(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
            return q < lts[(*place(b, h), kv)]

        return lower_open

    if mask.vectors == ("lts", "lte"):
        lts, lte = vectors

        def lower(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
            at = (*place(b, h), kv)
            return (q < lts[at]) | (q >= lte[at])

        return lower

    if mask.vectors == ("lts", "ute"):
        lts, ute = vectors

        def lower_and_upper(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
            at = (*place(b, h), kv)
            return (q < lts[at]) & (q >= ute[at])

        return lower_and_upper

    lts, lte, uts, ute = vectors

    def all_four(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        at = (*place(b, h), kv)
        return ((q < lts[at]) | (q >= lte[at])) & ((q < uts[at]) | (q >= ute[at]))

    return all_four


def _keep_mod(mask: ColumnMask, group: int) -> MaskMod | None:
    """The keep bit of the element's tile, read from the packed bits."""
    if mask.block_mask is None:
        return None
    packed = mask.block_mask.contiguous()
    place = _reader(packed, group)

    def keep(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        tile = kv // BLOCK
        byte = packed[(*place(b, h), q // BLOCK, tile // 8)].to(torch.int32)
        return ((byte >> (tile % 8)) & 1) != 0

    return keep


def _class_maps(mask: ColumnMask) -> Iterator[Tensor]:
    """Class maps uint8 ``[maps, R, C]`` of all (batch item, mask head) pairs in order, a bounded number at a time."""
    tiles = tile_count(mask.seqlen_q) * tile_count(mask.seqlen_k)
    together = mask.batch * mask.heads * tiles <= _SORTED_AT_ONCE
    for b in range(1 if together else mask.batch):
        for h in range(1 if together else mask.heads):
            part = mask
            if not together:
                parts: dict[str, Any] = {name: _part(tensor, b, h) for name, tensor in mask.tensors().items()}
                part = replace(mask, **parts)
            classes = class_of_tiles(part)
            if mask.seqlen_q % BLOCK:
                classes[:, :, -1].clamp_(max=PARTIAL)
            if mask.seqlen_k % BLOCK:
                classes[..., -1].clamp_(max=PARTIAL)
            yield classes.flatten(0, 1)


def _part(tensor: Tensor, b: int, h: int) -> Tensor:
    """One batch item and head of a tensor that may be shared by all of them."""
    b, h = min(b, tensor.shape[0] - 1), min(h, tensor.shape[1] - 1)
    return tensor[b : b + 1, h : h + 1]


def _block_lists(wanted: Tensor) -> tuple[Tensor, Tensor]:
    """bool ``[maps, R, C]`` to counts int32 ``[maps, R]`` and column tiles int32 ``[maps, R, C]``, wanted ones first."""
    counts = wanted.sum(-1, dtype=torch.int32)
    order = wanted.byte().argsort(dim=-1, descending=True, stable=True)
    return counts, order.to(torch.int32)
