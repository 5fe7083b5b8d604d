"""The mask as one rank of a context-parallel group sees it: a pure function of the mask and of what the rank holds.

A rank owns chunks of query rows, and attends to runs of key columns in the order in which it holds or receives them. Every
rank has the O(N) mask of the whole sequence, so it cuts its own part and asks nobody.

A row boundary ``v`` of the whole becomes the number of owned rows below it,
``loc(v) = sum_k clip(v - start_k, 0, length_k)``; for chunks of equal length C that is the paper's clip, shift and maximum,
``max_k clip(v - start_k, 0, C) + k C`` over the chunks that start below ``v``. As long as the chunks ascend, the owned rows
of a run ``[a, b)`` lie next to each other in local order and are exactly ``[loc(a), loc(b))``: two hidden runs stay two runs
however many chunks there are. In another order they would fall apart, so another order is refused. The diagonal is written
as an upper interval first: where it starts means nothing once rows are cut.

Source: FlashMask-3, context parallelism (clip-shift-max).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from masks.column_mask import BLOCK, ColumnMask, MaskError, pack_block_mask, tile_count

Range = tuple[int, int]
"""A half-open range of rows or columns of the whole sequence."""

Slots = list[tuple[Range, int]]
"""Ranges in local order, each with the padding behind it."""


def localize(
    mask: ColumnMask,
    rows: Sequence[Range],
    columns: Sequence[Range] | None = None,
    *,
    slot: int | None = None,
    pad_rows: int = 0,
) -> ColumnMask:
    """The mask of the given rows by the given columns: its dense form is that cut of the whole mask's dense form.

    Args:
        mask: of the whole sequence, any form.
        rows: the rank's chunks in its local order, which must ascend; may be empty.
        columns: runs of key columns in the rank's local order, any order, none twice; None: all columns.
        slot: every run takes that many local columns, a shorter one is padded behind; None: runs without gaps.
        pad_rows: rows added behind the rank's own.

    Returns:
        A mask without the causal flag, on the device of ``mask``, of (owned rows + ``pad_rows``) by (columns, or runs times
        ``slot``). Padding rows see nothing and padding columns are seen by no row. A mask without vectors stays without
        them unless padding needs them.

    Raises:
        MaskError: a range that is empty or leaves the sequence, rows that do not ascend, runs that overlap or exceed
            ``slot``. With a block mask: a range that does not start at a multiple of 128 in the whole and locally. With
            ``pad_rows``: a column with two separate hidden runs that both end before the padding, which would be a third
            run (leave the padding out then, and give the kernel the real rows only).
    """
    _check("rows", rows, mask.seqlen_q)
    for (_, end), (start, _) in pairwise(rows):
        if start < end:
            raise MaskError(f"rows are {_shown(rows)}; chunks must ascend and not overlap")
    runs = _runs([(0, mask.seqlen_k)][: mask.seqlen_k] if columns is None else columns, mask.seqlen_k, slot)
    if isinstance(pad_rows, bool) or not isinstance(pad_rows, int) or pad_rows < 0:
        raise MaskError(f"pad_rows is {pad_rows!r}; it must be an integer >= 0")
    local_q = sum(end - start for start, end in rows)
    local_k = sum(end - start + padding for (start, end), padding in runs)

    flat = mask.without_causal_flag()
    below = _owned_below(rows, mask.seqlen_q, mask.device)
    vectors = {name: _local(_take(getattr(flat, name), runs), below) for name in flat.vectors}
    if not vectors and (pad_rows or any(padding for _, padding in runs)):
        nothing = torch.zeros((1, 1, local_k), dtype=torch.int32, device=mask.device)
        vectors = {"lts": nothing + local_q, "ute": nothing}
    _hide_padding_columns(vectors, runs, local_q)
    if pad_rows and "lte" in vectors:
        # Two vectors need nothing: their lower run is open at the end and takes the padding in.
        vectors = _hide_padding_rows(vectors, local_q, pad_rows)
    block_mask = None if mask.block_mask is None else _local_block_mask(mask, rows, runs, local_q + pad_rows)
    tensors: dict[str, Any] = {**vectors, "block_mask": block_mask}
    return ColumnMask(**tensors, seqlen_q=local_q + pad_rows, seqlen_k=local_k, placed=mask.device)


def _owned_below(rows: Sequence[Range], seqlen_q: int, device: torch.device) -> Tensor:
    """``loc`` of every boundary from 0 to ``seqlen_q``, int32: the sum of the docstring above as a table."""
    below = torch.zeros(seqlen_q + 1, dtype=torch.int32, device=device)
    for start, end in _joined(rows):
        below[start + 1 : end + 1] = 1
    return below.cumsum(0, dtype=torch.int32)


def _local(bounds: Tensor, below: Tensor) -> Tensor:
    """``loc`` of every boundary, int32 like the boundaries. Clipped first: INT_MAX is a legal boundary."""
    return below.index_select(0, bounds.clamp(0, len(below) - 1).flatten()).view(bounds.shape)


def _joined(rows: Sequence[Range]) -> Iterator[Range]:
    """The same rows with neighbours as one range."""
    pending: Range | None = None
    for start, end in rows:
        if pending is not None and pending[1] == start:
            pending = (pending[0], end)
            continue
        if pending is not None:
            yield pending
        pending = (start, end)
    if pending is not None:
        yield pending


def _take(vector: Tensor, runs: Slots) -> Tensor:
    """The columns of the runs, padding filled with zeros for now."""
    parts = [vector[..., :0]]
    for (start, end), padding in runs:
        parts += [vector[..., start:end], *([vector.new_zeros((*vector.shape[:2], padding))] if padding else [])]
    return torch.cat(parts, dim=-1)


def _hide_padding_columns(vectors: dict[str, Tensor], runs: Slots, local_q: int) -> None:
    """In place: a padding column is hidden from row 0 to the end by its lower run, and its upper run is empty."""
    first = 0
    for (start, end), padding in runs:
        first += end - start
        for name, vector in vectors.items() if padding else ():
            vector[..., first : first + padding] = local_q if name == "lte" else 0
        first += padding


def _hide_padding_rows(vectors: dict[str, Tensor], local_q: int, pad_rows: int) -> dict[str, Tensor]:
    """All four vectors with the run ``[local_q, local_q + pad_rows)`` hidden as well, in one of the two runs."""
    tensors: dict[str, Any] = {**vectors}
    lts, lte, uts, ute = ColumnMask(**tensors, seqlen_q=local_q, seqlen_k=vectors["lts"].shape[-1]).intervals()
    last = local_q + pad_rows
    lower_empty, upper_empty = lts >= lte, uts >= ute
    lower_reaches, upper_reaches = ~lower_empty & (lte == local_q), ~upper_empty & (ute == local_q)
    one_run = (torch.maximum(lts, uts) <= torch.minimum(lte, ute)) & ~lower_empty & ~upper_empty
    merge = one_run & ~lower_reaches & ~upper_reaches
    uts, ute = torch.where(merge, torch.minimum(lts, uts), uts), torch.where(merge, torch.maximum(lte, ute), ute)
    extend_upper = upper_reaches & ~lower_reaches
    lower_is_free = lower_empty | merge
    fill_upper = upper_empty & ~lower_reaches & ~lower_is_free
    stuck = ~(lower_reaches | extend_upper | lower_is_free | fill_upper)
    if bool(stuck.any()):
        raise MaskError(
            f"pad_rows is {pad_rows}: {int(stuck.sum())} columns have two separate hidden runs that end before the padding, "
            "and a third run cannot be expressed; allowed then: pad_rows=0, with the kernel given the real rows only"
        )
    fill_lower = lower_is_free & ~extend_upper
    lts = torch.where(fill_lower, local_q, lts)
    lte = torch.where(fill_lower | lower_reaches, last, lte)
    uts = torch.where(fill_upper, local_q, uts)
    ute = torch.where(fill_upper | extend_upper, last, ute)
    # An empty interval is (local_q, 0) here and stays empty among more rows.
    return {"lts": lts, "lte": lte, "uts": uts, "ute": ute}


def _local_block_mask(mask: ColumnMask, rows: Sequence[Range], runs: Slots, local_rows: int) -> Tensor:
    """Packed bits of the local tiles. Tiles of padding rows and columns are dropped."""
    row_tiles = _tiles("rows", [(run, 0) for run in _joined(rows)])
    row_tiles += [-1] * (tile_count(local_rows) - len(row_tiles))
    column_tiles = _tiles("columns", runs)
    at_rows, at_columns = (torch.tensor(t, dtype=torch.long, device=mask.device) for t in (row_tiles, column_tiles))
    # Tile -1 is the last one: a real bit is read and then dropped.
    keep = torch.nn.functional.pad(mask.block_keep(), (0, 1, 0, 1))
    return pack_block_mask(keep[:, :, at_rows][..., at_columns])


def _tiles(axis: str, runs: Slots) -> list[int]:
    """Global tile of every local tile, -1 for padding."""
    tiles: list[int] = []
    local = 0
    for (start, end), padding in runs:
        if start % BLOCK or local % BLOCK:
            raise MaskError(
                f"{axis} {start} to {end} lie at local {axis} {local}; with a block mask both starts must be multiples "
                f"of {BLOCK}"
            )
        own, taken = tile_count(end - start), tile_count(end - start + padding)
        tiles += [start // BLOCK + i for i in range(own)] + [-1] * (taken - own)
        local += end - start + padding
    return tiles


def _runs(columns: Sequence[Range], seqlen_k: int, slot: int | None) -> Slots:
    """The checked runs of columns, each with its padding; without slots neighbours are joined."""
    _check("columns", columns, seqlen_k)
    ordered = sorted(columns)
    for (_, end), (start, _) in pairwise(ordered):
        if start < end:
            raise MaskError(f"columns are {_shown(columns)}; runs must not overlap: column {start} would count twice")
    if slot is None:
        return [(run, 0) for run in _joined(columns)]
    if isinstance(slot, bool) or not isinstance(slot, int) or slot < 1:
        raise MaskError(f"slot is {slot!r}; it must be an integer >= 1, or None")
    longest = max((end - start for start, end in columns), default=0)
    if longest > slot:
        raise MaskError(f"slot is {slot}; the longest run of columns has {longest}, and a slot must hold it")
    padded: Slots = []
    for start, end in columns:
        if padded and padded[-1][1] == 0 and padded[-1][0][1] == start:
            start = padded.pop()[0][0]  # neighbours without padding between them are one run
        padded.append(((start, end), -(end - start) % slot))
    return padded


def _check(axis: str, ranges: Sequence[Range], length: int) -> None:
    for start, end in ranges:
        if not 0 <= start < end <= length:
            raise MaskError(f"{axis} {start} to {end} given; a range must hold something and lie within 0 to {length}")


def _shown(ranges: Sequence[Range]) -> str:
    shown = ", ".join(f"{start} to {end}" for start, end in ranges[:8])
    return shown + (", ..." if len(ranges) > 8 else "")
