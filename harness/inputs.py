"""The tensors of a problem: the same mask and the same random values for every competitor.

Random and not constant on purpose: constant bits draw less power, so a GPU runs them 10% faster than real data.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from harness.cases import Problem
from masks.column_mask import ColumnMask
from masks.documents import Document
from masks.families import FAMILIES, build_mask

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


@dataclass
class Inputs:
    """q and dout ``[B, S, H, D]``, k and v ``[B, S, Hkv, D]``, in the problem's dtype, on the device."""

    q: Tensor
    k: Tensor
    v: Tensor
    dout: Tensor

    def in_layout(self, layout: str) -> Inputs:
        """The same values, contiguous in ``bshd`` or ``bhsd`` order."""
        if layout == "bshd":
            return self
        return Inputs(*(t.transpose(1, 2).contiguous() for t in (self.q, self.k, self.v, self.dout)))


def to_bshd(tensor: Tensor, layout: str) -> Tensor:
    """A view of a backend's tensor as ``[B, S, H, D]``."""
    return tensor if layout == "bshd" else tensor.transpose(1, 2)


def make_mask(problem: Problem, device: str) -> ColumnMask:
    """The problem's mask on the device."""
    spec = problem.mask
    documents = None if spec.documents is None else tuple(Document(*triple) for triple in spec.documents)
    per_head = FAMILIES[spec.family].per_head
    mask = build_mask(
        spec.family,
        problem.seqlen,
        documents=documents,
        seed=problem.seed,
        batch=problem.batch if per_head else 1,
        heads=problem.heads if per_head else 1,
        **spec.params,
    )
    return mask.to(device)


def make_inputs(problem: Problem, device: str) -> Inputs:
    """Standard normal tensors from the problem's seed."""
    generator = torch.Generator(device=device).manual_seed(problem.seed)
    dtype = DTYPES[problem.dtype]

    def draw(heads: int) -> Tensor:
        shape = (problem.batch, problem.seqlen, heads, problem.head_dim)
        return torch.randn(shape, generator=generator, device=device, dtype=dtype)

    return Inputs(q=draw(problem.heads), k=draw(problem.kv_heads), v=draw(problem.kv_heads), dout=draw(problem.heads))
