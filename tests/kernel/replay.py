"""A step captured as a CUDA graph, and replayed over masks that it was not captured with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from masks.column_mask import ColumnMask


def over_masks(
    step: Callable[[], tuple[Tensor, ...]], live: ColumnMask, masks: Sequence[ColumnMask]
) -> Iterator[tuple[ColumnMask, tuple[Tensor, ...]]]:
    """Each of ``masks`` with what the captured step gives once its content was written into ``live``, which the step reads."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step()
    for mask in masks:
        for name, x in mask.tensors().items():
            live.tensors()[name].copy_(x)
        graph.replay()
        yield mask, found
