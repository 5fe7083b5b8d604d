"""The emulated device of ``emulated/``: ``csrc/`` compiled for the host, and what the tests of all kernels on it share.

What it shows, and what it cannot, is said by the tests: ``test_ampere_emulated.py`` and ``test_hopper_emulated.py``.
"""

from __future__ import annotations

import contextlib
import ctypes
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from random_masks import random_masks
from torch import Tensor

from fm3_kernel import hopper
from fm3_kernel.build import CSRC, find_nvcc
from masks.column_mask import VECTOR_NAMES, ColumnMask, tile_count
from masks.documents import documents_from_lengths
from masks.families import FAMILIES, build_mask
from masks.tiles import column_block_bounds, row_tile_costs

EMULATED = Path(__file__).resolve().parent / "emulated"

Substitutes = Mapping[str, Sequence[tuple[str, str]]]
"""By file of ``csrc/``: what is an instruction or a launch in it, a regular expression, and what stands in its place."""

EXP2 = (re.escape('asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));'), "y = exp2f(x);")


def build_emulator(folder: Path, source: str, headers: Mapping[str, str], substitutes: Substitutes) -> ctypes.CDLL:
    """``csrc/`` with other headers and lines in the place of those that hold instructions, compiled for the host.

    Args:
        folder: an empty one.
        source: file of ``emulated/`` with the C functions.
        headers: patterns of files in ``emulated/``, and the folder of ``csrc/`` in which they take the place of what is there.
        substitutes: what else has another thing in its place.
    """
    shutil.copytree(CSRC, folder, dirs_exist_ok=True)
    for pattern, place in headers.items():
        found = sorted(EMULATED.glob(pattern))
        assert found, f"no {pattern}"
        for header in found:
            shutil.copy(header, folder / place)
    for name, pairs in substitutes.items():
        text = (folder / name).read_text()
        for pattern, substitute in pairs:
            text, count = re.subn(pattern, substitute, text, flags=re.DOTALL)
            assert count > 0, f"{name} has no {pattern}"
        (folder / name).write_text(text)
    library = folder / "emulated.so"
    # nvcc only because it knows where its headers are: it hands C++ to the host's compiler.
    command = [str(find_nvcc()), "-x", "c++", "-std=c++17", "-O1", "-shared", "-Xcompiler=-fPIC,-w,-U_FORTIFY_SOURCE"]
    subprocess.run([*command, f"-I{folder}", f"-I{EMULATED}", str(EMULATED / source), "-o", str(library)], check=True)
    return ctypes.CDLL(str(library))


def run_here(monkeypatch: pytest.MonkeyPatch, module: ModuleType, function: Callable[..., Callable[..., int]]) -> None:
    """Have a module that calls kernels take tensors of the host, and ``function`` in the place of its libraries."""
    monkeypatch.setattr(module, "function", function)
    monkeypatch.setattr(module, "prepare", prepared)
    monkeypatch.setattr(module, "check_tensors", lambda q, k, v: None)
    monkeypatch.setattr(module, "on_device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(module, "raw_stream", lambda index: 0)


def prepared(mask: hopper.MaskTensors, rows: int) -> hopper.Preparation:
    """What prepare.cu makes, from ``masks.tiles``."""
    assert mask.lts is not None
    batch, heads, columns = mask.lts.shape
    whole = ColumnMask(*mask, seqlen_q=rows, seqlen_k=columns)
    blocks = tile_count(columns)

    def records(tile: int, count: int) -> Tensor:
        found = column_block_bounds(whole, tile)
        each = [bound.expand(batch, heads, -1) for name in VECTOR_NAMES for bound in found[name]]
        return torch.stack([torch.nn.functional.pad(bound, (0, count - bound.shape[2])) for bound in each], -1)

    halves = records(64, 2 * blocks).unflatten(2, (blocks, 2))
    bounds = torch.cat([records(128, blocks).unsqueeze(3), halves], 3).int().contiguous()
    costs = (row_tile_costs(whole) * torch.tensor([2, 3])).sum(-1)
    return hopper.Preparation(bounds, costs.argsort(-1, descending=True).int().contiguous())


def family_mask(family: str) -> ColumnMask:
    """The family's mask of 256 rows and columns for two heads; documents that begin and end within tiles."""
    documents = documents_from_lengths([100, 1, 130, 25]) if FAMILIES[family].needs_documents else None
    return build_mask(family, 256, documents=documents, heads=2)


def random_cases() -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Any mask, head dim and seed, as arguments of a test."""
    return given(
        mask=random_masks(max_rows=300, max_columns=300, heads=(1, 2, 4), block_masks=True),
        head_dim=st.sampled_from([64, 128]),
        seed=st.integers(0, 1000),
    )


def draw_inputs(
    mask: ColumnMask, heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """q, k, v, dout ``[B, S, H, D]`` and, in fp32, the LSE's gradient ``[B, H, S]``."""
    generator = torch.Generator().manual_seed(0)

    def draw(length: int, count: int) -> Tensor:
        return torch.randn((mask.batch, length, count, head_dim), generator=generator).to(dtype)

    q, dout = draw(mask.seqlen_q, heads), draw(mask.seqlen_q, heads)
    k, v = draw(mask.seqlen_k, kv_heads), draw(mask.seqlen_k, kv_heads)
    return q, k, v, dout, torch.randn((mask.batch, heads, mask.seqlen_q), generator=generator)


def check_gradients(found: Sequence[Tensor], expected: Sequence[Tensor | None], lse: Tensor) -> None:
    """dq, dk and dv against the reference's in fp32; dq of a row without keys is 0."""
    for name, mine, right in zip(("dq", "dk", "dv"), found, expected, strict=True):
        assert right is not None
        error, size = float((mine.float() - right).abs().max()), float(right.abs().max())
        assert error <= 2e-2 * max(size, 1e-2), f"{name}: off by {error:.2e} where the largest is {size:.2e}"
    assert bool((found[0][(lse == -torch.inf).transpose(1, 2)] == 0).all())
