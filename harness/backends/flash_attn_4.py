"""FlashAttention 4: pure Python kernels in CuTe DSL. Interface of flash-attn-4 4.0.0b36.

What ``cu_seqlens`` and a causal window express is handed over that way, as to FlashAttention 2 and 3. Every other mask is
a ``mask_mod`` compiled into the kernel, the column vectors as its ``aux_tensors``, and lists of 128x128 tiles: of column
tiles a row tile for the forward pass, of row tiles a column tile for the backward pass. Without the second kind the
gradients would be right, but every tile would be computed.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor

from harness.backends.base import Attend, MissingBackend
from harness.backends.flash_attention import FlashAttention, not_packed
from harness.backends.package import Package, deterministic, refused_shape
from harness.cases import Problem
from masks.column_mask import BLOCK, ColumnMask
from masks.convert import to_flex_block_mask

LARGEST_LISTED = 128
"""Larger head dims have key tiles that do not divide a block of 128."""


class FlashAttn4(FlashAttention):
    """``flash_attn.cute``."""

    name = "flash_attn_4"
    title = "FlashAttention 4"
    sources = (
        *FlashAttention.sources,
        "harness/backends/cute_masks.py",
        "masks/convert/flex.py",
        "masks/tiles.py",
    )
    # Only on Hopper do tiles of 128x128 fit both passes; other GPUs take other sizes.
    package = Package("flash-attn-4", "flash_attn.cute", "4.0.0b36", "pip install 'flash-attn-4[cu13]'", (9,))
    asks_lse = "return_lse"

    def unsupported(self, problem: Problem, mask: ColumnMask, pass_: str, device: str) -> str | None:
        """Any mask up to head dim 128; per-head vectors where a family has them."""
        if not_packed(mask) is None:
            return refused_shape(problem, 256)
        if _of_heads(mask) and (mask.vectors, mask.causal) != (("lts",), True):
            return f"vectors of every head's own are handed to it for causal LTS masks only, not for {', '.join(mask.vectors)}"
        if deterministic() and pass_ != "forward":
            return "its deterministic backward pass over tile lists needs a write order that is not made here"
        return refused_shape(problem, LARGEST_LISTED)

    def prepare(self, problem: Problem, mask: ColumnMask) -> Attend:
        """``cu_seqlens``, or the tile lists of both passes and the vectors that the ``mask_mod`` reads."""
        if not_packed(mask) is None:
            return super().prepare(problem, mask)
        blocks = to_flex_block_mask(mask, problem.heads)
        assert blocks is not None  # a mask that hides nothing by form is packed
        lists = self._lists_type()
        forward = lists(
            mask_block_cnt=blocks.kv_num_blocks,
            mask_block_idx=blocks.kv_indices,
            full_block_cnt=blocks.full_kv_num_blocks,
            full_block_idx=blocks.full_kv_indices,
            block_size=(BLOCK, BLOCK),
        )
        backward = lists(
            mask_block_cnt=blocks.q_num_blocks,
            mask_block_idx=blocks.q_indices,
            full_block_cnt=blocks.full_q_num_blocks,
            full_block_idx=blocks.full_q_indices,
            block_size=(BLOCK, BLOCK),
        )
        options: dict[str, Any] = {
            "mask_mod": _mask_mod(mask),
            "aux_tensors": vectors_of(mask, problem) or None,
            "block_sparse_tensors": forward,
            "block_sparse_tensors_bwd": backward,
            "return_lse": True,
        }
        function = self.package.load("flash_attn_func", "deterministic", *options)

        def attend(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
            out, lse, *_ = function(q, k, v, deterministic=deterministic(), **options)
            return out, lse

        return attend

    def _lists_type(self) -> Any:
        """The tuple type of tile lists."""
        self.package.load("flash_attn_func")  # first: a package that does not load is told apart there
        return importlib.import_module("flash_attn.cute.block_sparsity").BlockSparseTensorsTorch


def _mask_mod(mask: ColumnMask) -> Any:
    """The element function for the form of the mask, from the module that needs CuTe DSL to be imported at all."""
    try:
        from harness.backends import cute_masks
    except Exception as error:
        raise MissingBackend(f"CuTe DSL does not load: {type(error).__name__}: {error}") from error
    if _of_heads(mask):
        return cute_masks.causal_below_of_head
    return {
        (True, ()): cute_masks.causal,
        (True, ("lts",)): cute_masks.causal_below,
        (True, ("lts", "lte")): cute_masks.causal_between,
        (False, ("lts", "ute")): cute_masks.below_and_above,
        (False, ("lts", "lte", "uts", "ute")): cute_masks.both_between,
        (False, ()): cute_masks.everything,
    }[mask.causal, mask.vectors]


def _of_heads(mask: ColumnMask) -> bool:
    """Whether batch items or heads have vectors of their own."""
    return mask.lts is not None and mask.lts.shape[0] * mask.lts.shape[1] > 1


def vectors_of(mask: ColumnMask, problem: Problem) -> list[Tensor]:
    """The vectors, int32 ``[S]`` when all share them, else ``[B, H, S]`` for every query head."""
    found = [getattr(mask, name) for name in mask.vectors]
    if not _of_heads(mask):
        return [vector[0, 0].contiguous() for vector in found]
    group = problem.heads // found[0].shape[1]
    return [torch.repeat_interleave(vector, group, dim=1).expand(problem.batch, -1, -1).contiguous() for vector in found]
