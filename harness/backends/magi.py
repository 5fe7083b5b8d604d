"""MagiAttention's flexible attention kernel (FFA) on one GPU: the mask as attention slices.

Interface of magi_attention 1.1: ranges and types by name, and a record with the LSE ``[tokens, H]`` as second result.
The slices are this project's (``masks/convert/slices.py``), in row order and without overlap. The batch becomes one
sequence, its slices shifted. Where no two slices share a row, the kernel is told so, which saves it atomic sums.
"""

from __future__ import annotations

import os
from itertools import pairwise

import torch
from torch import Tensor

from harness.backends.base import Attend, Availability, Backend
from harness.backends.package import Package, deterministic, refused_shape
from harness.cases import Problem
from masks.column_mask import ColumnMask, MaskError
from masks.convert import AttentionSlice, to_slices

INSTALL = "build from https://github.com/SandAI-org/MagiAttention, tag v1.1.0 or later"
HEAD_DIMS = (64, 128)
_OTHER_KERNELS = {
    "MAGI_ATTENTION_KERNEL_BACKEND": ("", "ffa"),
    "MAGI_ATTENTION_FA4_BACKEND": ("", "0"),
    "MAGI_ATTENTION_SDPA_BACKEND": ("", "0"),
}
"""Variables that put another kernel in FFA's place, and the values that do not."""


class Magi(Backend):
    """``flex_flash_attn_func``."""

    name = "magi"
    title = "MagiAttention FFA"
    layout = "bshd"
    sources = ("masks/column_mask.py", "masks/convert/slices.py")
    package = Package("magi_attention", "magi_attention.functional", "1.1", INSTALL, (9,))

    def probe(self, device: str) -> Availability:
        """By the package, and only while nothing replaces its kernel."""
        for variable, harmless in _OTHER_KERNELS.items():
            value = os.environ.get(variable, "")
            if value not in harmless:
                reason = f"{variable}={value} puts another kernel in FFA's place"
                return Availability(False, reason=reason, install=f"unset {variable}")
        return self.package.probe(device)

    def unsupported(self, problem: Problem, mask: ColumnMask, pass_: str, device: str) -> str | None:
        """One set of slices for all heads, head dims 64 and 128."""
        if problem.head_dim not in HEAD_DIMS:
            return f"takes head dims {', '.join(map(str, HEAD_DIMS))}, not {problem.head_dim}"
        if mask.heads > 1:
            return f"attention slices are the same for every head; the mask has {mask.heads} heads of its own"
        try:
            to_slices(mask)
        except MaskError as error:
            return str(error)
        return refused_shape(problem, max(HEAD_DIMS))

    def prepare(self, problem: Problem, mask: ColumnMask) -> Attend:
        """Slices of the whole batch, on the device."""
        per_item = [heads[0] for heads in to_slices(mask)]
        items = [per_item[item if len(per_item) > 1 else 0] for item in range(problem.batch)]
        options = ranges(items, problem.seqlen, mask.device) | {"disable_fwd_atomic_reduction": not shares_rows(items)}
        function = self.package.load("flex_flash_attn_func", "deterministic", "return_max_logits", *options)
        shape = (problem.batch, problem.seqlen)

        def attend(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
            rows = [tensor.flatten(0, 1) for tensor in (q, k, v)]
            out, told = function(*rows, deterministic=deterministic(), **options)
            return out.unflatten(0, shape), told.lse.unflatten(0, shape).transpose(1, 2)

        return attend


def ranges(items: list[list[AttentionSlice]], seqlen: int, device: torch.device) -> dict[str, Tensor]:
    """``q_ranges`` and ``k_ranges`` int32 ``[slices, 2]``, ``attn_type_map`` int32 ``[slices]``; an item's slices shifted."""
    found = [(item * seqlen, slice_) for item, slices in enumerate(items) for slice_ in slices]
    q_ranges = [[shift + row for row in slice_.q_range] for shift, slice_ in found]
    k_ranges = [[shift + column for column in slice_.k_range] for shift, slice_ in found]
    types = [int(slice_.type) for _, slice_ in found]
    named = {"q_ranges": q_ranges, "k_ranges": k_ranges, "attn_type_map": types}
    return {name: torch.tensor(values, dtype=torch.int32, device=device) for name, values in named.items()}


def shares_rows(items: list[list[AttentionSlice]]) -> bool:
    """Whether any two slices of an item have a row in common."""
    for slices in items:
        rows = sorted(slice_.q_range for slice_ in slices)
        if any(upper[1] > lower[0] for upper, lower in pairwise(rows)):
            return True
    return False
