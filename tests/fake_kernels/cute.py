"""FlashAttention 4.0.0b36 with a ``mask_mod`` and tile lists, and as much of CuTe DSL as an element function needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fake_kernels.flash_attention import open_ends
from fake_kernels.maths import band, check_inputs, check_int32, dense_attention, record

TILE = 128


class Int32:
    """The type's name."""


class Lanes:
    """A one-element vector of the DSL, for many threads at once: ``[0]`` is its scalar (a tensor, one value a thread)."""

    def __init__(self, values: Tensor) -> None:
        self.values = values

    def __getitem__(self, index: int) -> Tensor:
        assert index == 0, "vectors have one element"
        return self.values

    def _with(self, other: Any, operation: Callable[[Tensor, Tensor], Tensor]) -> Lanes:
        assert isinstance(other, Lanes), f"a vector meets a {type(other).__name__}: make it one with scalar_to_ssa"
        return Lanes(operation(self.values, other.values))

    def __ge__(self, other: Any) -> Lanes:
        return self._with(other, torch.ge)

    def __lt__(self, other: Any) -> Lanes:
        return self._with(other, torch.lt)

    def __and__(self, other: Any) -> Lanes:
        return self._with(other, torch.logical_and)

    def __or__(self, other: Any) -> Lanes:
        return self._with(other, torch.logical_or)

    def __bool__(self) -> bool:
        raise TypeError("the value of a vector is not known while a kernel is compiled")


def scalar_to_ssa(scalar: Any, dtype: type) -> Lanes:
    assert dtype is Int32, f"indices and rows are Int32, not {dtype}"
    assert not isinstance(scalar, Lanes), "a vector already"
    values = torch.as_tensor(scalar)
    assert values.dtype in (torch.int32, torch.int64), f"{values.dtype} is no integer"
    return Lanes(values)


class BlockSparseTensorsTorch(NamedTuple):
    mask_block_cnt: Tensor
    mask_block_idx: Tensor
    full_block_cnt: Tensor | None = None
    full_block_idx: Tensor | None = None
    cu_total_m_blocks: Tensor | None = None
    cu_block_idx_offsets: Tensor | None = None
    block_size: tuple[int, int] | None = None
    dq_write_order: Tensor | None = None
    dq_write_order_full: Tensor | None = None
    spt: bool | None = None


def _listed(counts: Tensor, indices: Tensor, q: Tensor, lines: int, entries: int) -> Tensor:
    """bool ``[B or 1, H or 1, lines, entries]``: the first ``counts`` entries of every line."""
    batch, heads = counts.shape[:2]
    assert batch in (1, q.shape[0]) and heads in (1, q.shape[2]), f"lists are for {batch} items and {heads} heads"
    check_int32("block_cnt", counts, q, batch, heads, lines)
    check_int32("block_idx", indices, q, batch, heads, lines, None)
    assert indices.shape[3] <= entries, f"{indices.shape[3]} entries a line, there are {entries} tiles"
    listed = torch.zeros(batch, heads, lines, entries, dtype=torch.bool)
    for b in range(batch):
        for h in range(heads):
            for line in range(lines):
                named = indices[b, h, line, : int(counts[b, h, line])].tolist()
                assert len(set(named)) == len(named) and all(0 <= tile < entries for tile in named), f"tiles {named}"
                listed[b, h, line, named] = True
    return listed


def _elements(tiles: Tensor, rows: int, columns: int) -> Tensor:
    """A map of tiles as one of elements."""
    wide = tiles.repeat_interleave(TILE, 2).repeat_interleave(TILE, 3)
    return wide[:, :, :rows, :columns]


def _seen(lists: BlockSparseTensorsTorch, q: Tensor, k: Tensor, mask: Tensor, transposed: bool) -> Tensor:
    """What a pass computes: elements of ``mask`` in partial tiles, all elements of full ones, nothing of the others."""
    rows, columns = q.shape[1], k.shape[1]
    assert lists.block_size == (TILE, TILE), f"block_size is {lists.block_size}"
    shape = (-(-rows // TILE), -(-columns // TILE))
    if transposed:
        shape = shape[::-1]
    partial = _listed(lists.mask_block_cnt, lists.mask_block_idx, q, *shape)
    full = torch.zeros_like(partial)
    if lists.full_block_cnt is not None:
        assert lists.full_block_idx is not None
        full = _listed(lists.full_block_cnt, lists.full_block_idx, q, *shape)
    assert not bool((partial & full).any()), "a tile is listed as partial and as full"
    if transposed:
        partial, full = partial.transpose(2, 3), full.transpose(2, 3)
    return (_elements(partial, rows, columns) & mask) | _elements(full, rows, columns)


def _mask_of(mask_mod: Any, aux: list[Tensor] | None, q: Tensor, k: Tensor) -> Tensor:
    """The element function, asked for every element: bool ``[B, H, Sq, Sk]``."""
    shape = (q.shape[0], q.shape[2], q.shape[1], k.shape[1])
    places = torch.meshgrid(*(torch.arange(size, dtype=torch.int32) for size in shape), indexing="ij")
    found = mask_mod(*(Lanes(place.flatten()) for place in places), object(), aux)
    assert isinstance(found, Lanes) and found.values.dtype == torch.bool
    return found.values.view(shape)


def func_4(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    qv: Tensor | None = None,
    gather_kv_indices: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int | None, int | None] = (None, None),
    learnable_sink: Tensor | None = None,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    score_mod: Any = None,
    score_mod_bwd: Any = None,
    mask_mod: Any = None,
    aux_tensors: list[Tensor] | None = None,
    aux_scalars: tuple[int, ...] | None = None,
    block_sparse_tensors: BlockSparseTensorsTorch | None = None,
    block_sparse_tensors_bwd: BlockSparseTensorsTorch | None = None,
    return_lse: bool = False,
    gather_bwd_recompute_p: bool = False,
    gather_bwd_token_chunk: int | None = None,
) -> Any:
    record(
        function="func",
        deterministic=deterministic,
        causal=causal,
        window_size=window_size,
        mask_mod=mask_mod,
        lists=block_sparse_tensors,
        lists_bwd=block_sparse_tensors_bwd,
    )
    assert qv is None and gather_kv_indices is None and softmax_scale is None and learnable_sink is None and softcap == 0
    assert num_splits == 1 and score_mod is None and score_mod_bwd is None and aux_scalars is None
    check_inputs(q, k, v, dims=4)
    if mask_mod is None:
        assert block_sparse_tensors is None and aux_tensors is None
        out, lse = dense_attention(q, k, v, band(q.shape[1], k.shape[1], causal, open_ends(window_size)))
    else:
        assert not causal and window_size == (None, None), "a mask_mod takes the place of causal and window_size"
        for tensor in aux_tensors or []:
            check_int32("aux_tensors", tensor, q, *tensor.shape)
        mask = _mask_of(mask_mod, aux_tensors, q, k)
        seen = mask if block_sparse_tensors is None else _seen(block_sparse_tensors, q, k, mask, False)
        back = mask if block_sparse_tensors_bwd is None else _seen(block_sparse_tensors_bwd, q, k, mask, True)
        assert not (deterministic and block_sparse_tensors_bwd is not None), "needs dq_write_order"
        out, lse = dense_attention(q, k, v, seen, back)
    return out, lse if return_lse or q.requires_grad else None
