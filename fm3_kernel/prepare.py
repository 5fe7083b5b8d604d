"""The prepared mask: what kernels need to know of a mask beside its vectors, made once and used by every layer.

Preparing finds the bounds of the vectors over blocks of columns, and in which order row tiles are best taken: one launch,
O(Sk) memory, on the current stream, nothing waits for the host. Without it every call prepares for itself, which is right
too and costs that launch. A prepared mask holds on to the content it was made from: it refuses use after the vectors were
written in place, and a CUDA graph that is being captured never takes over what was prepared outside it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fm3_kernel.checks import FM3Error
from fm3_kernel.hopper import MaskTensors, Preparation, is_hopper
from fm3_kernel.hopper import prepare as prepare_on_hopper
from masks.column_mask import ColumnMask


@dataclass(frozen=True, eq=False)
class PreparedMask:
    """A mask and what was made of it; by :func:`prepare_mask`.

    ``tensors`` are the mask's. ``preparation`` is None where the implementation for the mask's device needs none.
    """

    mask: ColumnMask
    tensors: tuple[Tensor, ...]
    preparation: Preparation | None
    versions: tuple[int, ...]
    captured: bool

    def current(self) -> Preparation | None:
        """What was prepared, if it still describes the mask.

        Returns:
            None where the call has to prepare for itself: no preparation is needed on this device, or a graph is being
            captured, whose replays must see what the vectors hold then.

        Raises:
            FM3Error: the mask was changed in place, or it was prepared inside a graph capture and is used outside.
        """
        if torch.compiler.is_compiling():
            return self.preparation
        if _versions(self.tensors) != self.versions:
            names = [
                n for n, old, new in zip(self.mask.tensors(), self.versions, _versions(self.tensors), strict=True) if old != new
            ]
            raise FM3Error(
                f"{', '.join(names)} was changed in place after prepare_mask(); after a change call prepare_mask again"
            )
        if self.preparation is None:
            return None
        capturing = torch.cuda.is_current_stream_capturing()
        if capturing and not self.captured:
            return None
        if self.captured and not capturing:
            raise FM3Error("this mask was prepared while a CUDA graph was captured; outside of it call prepare_mask again")
        return self.preparation


def prepare_mask(mask: ColumnMask) -> PreparedMask:
    """Prepare a mask for :func:`fm3_kernel.flashmask_attention`, which takes the result in the mask's place.

    Args:
        mask: on the device where it will be used.

    Raises:
        TypeError: not a ColumnMask.
    """
    if not isinstance(mask, ColumnMask):
        raise TypeError(f"mask is a {type(mask).__name__}; expected a masks.column_mask.ColumnMask")
    needed = mask.device.type == "cuda" and is_hopper(mask.device) and mask.lts is not None and mask.seqlen_k > 0
    preparation = prepare_on_hopper(MaskTensors.of(mask), mask.seqlen_q) if needed else None
    captured = mask.device.type == "cuda" and torch.cuda.is_current_stream_capturing()
    tensors = tuple(mask.tensors().values())
    return PreparedMask(mask, tensors, preparation, _versions(tensors), captured)


def _versions(tensors: tuple[Tensor, ...]) -> tuple[int, ...]:
    """How often each was written in place; tensors of inference mode do not count."""
    return tuple([-1 if x.is_inference() else x._version for x in tensors])
