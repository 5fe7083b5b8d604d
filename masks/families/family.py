"""What a mask family is to the registry, and the few helpers that the families share.

A family is a function from a length (and documents, a seed, heads) to a :class:`ColumnMask`. The functions live one a
file beside this one; the list of them is in the package's ``__init__``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from masks.column_mask import ColumnMask, MaskError
from masks.documents import Documents


@dataclass(frozen=True)
class Family:
    """One entry of the registry.

    Args:
        name: as typed on the command line.
        title: for figures and tables.
        build: the function; called with ``seqlen`` and, by the flags below, ``documents``, ``seed``, ``batch, heads``.
        needs_documents: takes the documents of the pack.
        per_head: every batch item and mask head gets a mask of its own.
        seeded: the mask depends on a seed.
        params: parameters of its own and their defaults (None: derived from the length).
    """

    name: str
    title: str
    build: Callable[..., ColumnMask]
    needs_documents: bool = False
    per_head: bool = False
    seeded: bool = False
    params: Mapping[str, int | float | None] = field(default_factory=dict)


def at_least(name: str, value: object, least: int, why: str = "") -> None:
    """Refuses a value that is not an integer >= ``least``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise MaskError(f"{name} is {value!r}; it must be an integer >= {least}{f' ({why})' if why else ''}")


def positions(seqlen: int) -> Tensor:
    """int32 ``[seqlen]``: 0, 1, 2, ..."""
    return torch.arange(seqlen, dtype=torch.int32)


def vector(values: Tensor) -> Tensor:
    """``[S]`` as the int32 ``[1, 1, S]`` of a mask shared by the batch and all heads."""
    return values.to(torch.int32).view(1, 1, -1)


def lengths_of(documents: Documents) -> Tensor:
    """int64 ``[documents]``: tokens of every document."""
    return torch.tensor([document.length for document in documents], dtype=torch.int64)


def bounds_of(documents: Documents) -> tuple[Tensor, Tensor]:
    """For every column the first row of its document and the row after the last; int32 ``[S]`` each."""
    lengths = lengths_of(documents)
    ends = lengths.cumsum(0)
    starts = ends - lengths
    return spread(starts, lengths), spread(ends, lengths)


def spread(values: Tensor, lengths: Tensor) -> Tensor:
    """One value a document to one a column, int32 ``[S]``."""
    return torch.repeat_interleave(values.to(torch.int32), lengths)
