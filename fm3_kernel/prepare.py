"""The prepared mask: what kernels need to know of a mask beside its vectors, made once and used by every layer.

Preparing finds the bounds of the vectors over blocks of columns, and in which order row tiles are best taken: one launch,
O(Sk) memory, on the current stream, nothing waits for the host. Without it every call prepares for itself, which is right
too and costs that launch. A prepared mask holds on to the content it was made from: it refuses use after the vectors were
written in place, and a CUDA graph that is being captured never takes over what was prepared outside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fm3_kernel.ampere import runs_on
from fm3_kernel.checks import FM3Error
from fm3_kernel.hopper import MaskTensors, Preparation, capture_id
from fm3_kernel.hopper import prepare as prepare_on_gpu
from masks.column_mask import ColumnMask


@dataclass(frozen=True, eq=False)
class PreparedMask:
    """A mask and what was made of it; by :func:`prepare_mask`.

    ``tensors`` are the mask's. ``preparation`` is None where there is none to use: the implementation for the mask's device
    needs none, or the vectors are tensors of inference mode, whose writes nobody counts. ``states`` tell whether the tensors
    were written since, as far as that is counted; ``capture`` is the graph capture in which it was made, 0 for none.
    """

    mask: ColumnMask
    tensors: tuple[Tensor, ...]
    preparation: Preparation | None
    states: tuple[tuple[int, int], ...]
    capture: int

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy, deep or pickled, is a copy of the mask, prepared anew."""
        return prepare_mask, (self.mask,)

    def current(self) -> Preparation | None:
        """What was prepared, if it still describes the mask.

        Returns:
            None where the call has to prepare for itself: there is no preparation; or the call is compiled, or captured in
            another graph than this was made in, and replays must see what the vectors hold then.

        Raises:
            FM3Error: the mask was changed in place, or it was prepared inside a graph capture and is used outside.
        """
        if torch.compiler.is_compiling() or not self.states:
            return None
        states = _states(self.tensors)
        if states != self.states:
            names = [n for n, old, new in zip(self.mask.tensors(), self.states, states, strict=True) if old != new]
            raise FM3Error(
                f"{', '.join(names)} was changed in place after prepare_mask(); after a change call prepare_mask again"
            )
        if self.preparation is None:
            return None
        if self.capture or torch.cuda.is_current_stream_capturing():
            now = capture_id(self.tensors[0].device)
            if self.capture and not now:
                raise FM3Error("this mask was prepared while a CUDA graph was captured; outside of it call prepare_mask again")
            if now != self.capture:
                return None
        return self.preparation


def prepare_mask(mask: ColumnMask) -> PreparedMask:
    """Prepare a mask for :func:`fm3_kernel.flashmask_attention`, which takes the result in the mask's place.

    Args:
        mask: on the device where it will be used. Writes to its vectors that torch does not count (through NumPy, DLPack,
            ``.data`` or another library) are not noticed: prepare again after them.

    Raises:
        TypeError: not a ColumnMask.
    """
    if not isinstance(mask, ColumnMask):
        raise TypeError(f"mask is a {type(mask).__name__}; expected a masks.column_mask.ColumnMask")
    tensors = tuple(mask.tensors().values())
    on_gpu = mask.device.type == "cuda"
    counted = not any(x.is_inference() for x in tensors)
    needed = on_gpu and runs_on(mask.device) and mask.lts is not None and mask.seqlen_k > 0 and counted
    preparation = prepare_on_gpu(MaskTensors.of(mask), mask.seqlen_q) if needed else None
    return PreparedMask(
        mask, tensors, preparation, _states(tensors) if counted else (), capture_id(mask.device) if needed else 0
    )


def _states(tensors: tuple[Tensor, ...]) -> tuple[tuple[int, int], ...]:
    """How often each was written in place, and where it lies."""
    return tuple([(x._version, x.data_ptr() if type(x) is Tensor else 0) for x in tensors])
