"""Column masks as element functions in CuTe DSL, for FlashAttention 4. Importing this needs CuTe DSL.

Each function gets batch item, query head, row and column as one-element vectors and the mask's vectors as ``aux``; True =
visible. One for every form, each whole in itself: FlashAttention caches a compiled kernel under the text of its function
alone, so a change to a helper elsewhere would go unnoticed. A block mask needs none: a dropped tile is not listed.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from flash_attn.cute import utils


@cute.jit
def everything(batch: Any, head: Any, row: Any, column: Any, lengths: Any, aux: Any) -> Any:
    """No vectors: all that is listed."""
    return column >= utils.scalar_to_ssa(0, cutlass.Int32)


@cute.jit
def causal(batch: Any, head: Any, row: Any, column: Any, lengths: Any, aux: Any) -> Any:
    """No vectors: up to the diagonal."""
    return row >= column


@cute.jit
def causal_below(batch: Any, head: Any, row: Any, column: Any, lengths: Any, aux: Any) -> Any:
    """LTS int32 ``[S]``: hidden from that row on."""
    start = utils.scalar_to_ssa(aux[0][column[0]], cutlass.Int32)
    return (row >= column) & (row < start)


@cute.jit
def causal_below_of_head(batch: Any, head: Any, row: Any, column: Any, lengths: Any, aux: Any) -> Any:
    """LTS int32 ``[B, H, S]``."""
    start = utils.scalar_to_ssa(aux[0][batch[0], head[0], column[0]], cutlass.Int32)
    return (row >= column) & (row < start)


@cute.jit
def causal_between(batch: Any, head: Any, row: Any, column: Any, lengths: Any, aux: Any) -> Any:
    """LTS and LTE int32 ``[S]``: hidden from one row to the other."""
    start = utils.scalar_to_ssa(aux[0][column[0]], cutlass.Int32)
    end = utils.scalar_to_ssa(aux[1][column[0]], cutlass.Int32)
    return (row >= column) & ((row < start) | (row >= end))


@cute.jit
def below_and_above(batch: Any, head: Any, row: Any, column: Any, lengths: Any, aux: Any) -> Any:
    """LTS and UTE int32 ``[S]``: hidden from the one on, and up to the other."""
    start = utils.scalar_to_ssa(aux[0][column[0]], cutlass.Int32)
    end = utils.scalar_to_ssa(aux[1][column[0]], cutlass.Int32)
    return (row < start) & (row >= end)


@cute.jit
def both_between(batch: Any, head: Any, row: Any, column: Any, lengths: Any, aux: Any) -> Any:
    """All four, int32 ``[S]``."""
    lower_start = utils.scalar_to_ssa(aux[0][column[0]], cutlass.Int32)
    lower_end = utils.scalar_to_ssa(aux[1][column[0]], cutlass.Int32)
    upper_start = utils.scalar_to_ssa(aux[2][column[0]], cutlass.Int32)
    upper_end = utils.scalar_to_ssa(aux[3][column[0]], cutlass.Int32)
    return ((row < lower_start) | (row >= lower_end)) & ((row < upper_start) | (row >= upper_end))
