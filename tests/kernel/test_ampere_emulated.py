"""The FlashMask kernels' own code on the CPU: every thread a fiber, every instruction as documented (``emulated/``).

It shows that fragments, swizzles, lists, words, barriers and copies fit together, by the door of all calls.
What it cannot show is what the compiler makes of it: that is for the tests on a GPU.
"""

from __future__ import annotations

import contextlib
import ctypes
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_masks import random_masks
from test_build import NO_NVCC

from fm3_kernel import ampere, hopper, reference
from fm3_kernel.build import CSRC, find_nvcc
from masks.column_mask import VECTOR_NAMES, ColumnMask, tile_count
from masks.documents import documents_from_lengths
from masks.families import FAMILIES, build_mask
from masks.tiles import column_block_bounds, row_tile_costs

pytestmark = pytest.mark.skipif(bool(NO_NVCC), reason=f"needs the headers of a CUDA toolkit: {NO_NVCC}")

EMULATED = Path(__file__).resolve().parent / "emulated"
EXP2 = 'asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));'


def build_emulator(folder: Path) -> ctypes.CDLL:
    """csrc/ with other headers in the place of those that hold instructions."""
    shutil.copytree(CSRC, folder, dirs_exist_ok=True)
    for header in EMULATED.glob("ptx/*.cuh"):
        shutil.copy(header, folder / "sm90" / "ptx")
    shutil.copy(EMULATED / "ptx.cuh", folder / "sm80")
    softmax = folder / "sm90" / "softmax.cuh"
    text = softmax.read_text()
    assert EXP2 in text
    softmax.write_text(text.replace(EXP2, "y = exp2f(x);"))
    library = folder / "emulated.so"
    # nvcc only because it knows where its headers are: it hands C++ to the host's compiler.
    command = [str(find_nvcc()), "-x", "c++", "-std=c++17", "-O1", "-shared", "-Xcompiler=-fPIC,-w,-U_FORTIFY_SOURCE"]
    subprocess.run([*command, f"-I{folder}", str(EMULATED / "kernels.cpp"), "-o", str(library)], check=True)
    return ctypes.CDLL(str(library))


def prepared(mask: hopper.MaskTensors, rows: int) -> hopper.Preparation:
    """What prepare.cu makes, from ``masks.tiles``."""
    assert mask.lts is not None
    batch, heads, columns = mask.lts.shape
    whole = ColumnMask(*mask, seqlen_q=rows, seqlen_k=columns)
    blocks = tile_count(columns)

    def records(tile: int, count: int) -> torch.Tensor:
        found = column_block_bounds(whole, tile)
        each = [bound.expand(batch, heads, -1) for name in VECTOR_NAMES for bound in found[name]]
        return torch.stack([torch.nn.functional.pad(bound, (0, count - bound.shape[2])) for bound in each], -1)

    halves = records(64, 2 * blocks).unflatten(2, (blocks, 2))
    bounds = torch.cat([records(128, blocks).unsqueeze(3), halves], 3).int().contiguous()
    costs = (row_tile_costs(whole) * torch.tensor([2, 3])).sum(-1)
    return hopper.Preparation(bounds, costs.argsort(-1, descending=True).int().contiguous())


class Device:
    """How the emulated device behaves: small tiles as on Ada, copies that land late, which order warps take."""

    small, late, seed = False, False, 0

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library

    def function(self, library: str, name: str, signature: str) -> Callable[..., int]:
        """In the place of :func:`fm3_kernel.hopper.function`."""

        def call(args: Any, stream: int) -> int:
            if library == "backward_rows":
                self.library.emulate_rows(args)
            elif name == "fm3_forward":
                self.library.emulate_forward(args, int(library.split("_d")[1]), self.late, self.seed)
            else:
                self.library.emulate_backward(args, int(library.split("_d")[1]), self.small, self.late, self.seed)
            return 0

        return call


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return build_emulator(tmp_path_factory.mktemp("emulated"))


@pytest.fixture
def device(library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> Device:
    found = Device(library)
    monkeypatch.setattr(ampere, "function", found.function)
    monkeypatch.setattr(ampere, "prepare", prepared)
    monkeypatch.setattr(ampere, "check_tensors", lambda q, k, v: None)
    monkeypatch.setattr(ampere, "on_device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(ampere, "raw_stream", lambda index: 0)
    return found


def compare(
    mask: ColumnMask,
    head_dim: int,
    dtype: torch.dtype = torch.bfloat16,
    heads: int = 4,
    kv_heads: int = 2,
    scale: float | None = None,
    deterministic: bool = False,
) -> None:
    """Output, LSE and, where there are any, gradients, one of the LSE's among them, against the reference in fp32."""
    generator = torch.Generator().manual_seed(0)
    factor = head_dim**-0.5 if scale is None else scale

    def draw(length: int, count: int) -> torch.Tensor:
        return torch.randn((mask.batch, length, count, head_dim), generator=generator).to(dtype)

    q, dout = draw(mask.seqlen_q, heads), draw(mask.seqlen_q, heads)
    k, v = draw(mask.seqlen_k, kv_heads), draw(mask.seqlen_k, kv_heads)
    tensors = hopper.MaskTensors.of(mask)
    out, lse = ampere.forward(q, k, v, tensors, factor)
    exact, exact_lse = reference.forward(q.float(), k.float(), v.float(), mask, factor)
    torch.testing.assert_close(lse, exact_lse, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(out.float(), exact, rtol=0, atol=2e-2 if dtype == torch.bfloat16 else 4e-3)
    dead = (exact_lse == -torch.inf).transpose(1, 2)
    assert bool((out[dead] == 0).all())
    if head_dim not in ampere.BACKWARD_HEAD_DIMS:
        return
    dlse = torch.randn(lse.shape, generator=generator)
    found = ampere.backward(dout, dlse, q, k, v, out, lse, tensors, factor, deterministic=deterministic)
    floats = (x.float() for x in (q, k, v))
    expected = reference.backward(dout.float(), dlse, *floats, exact, exact_lse, mask, factor)
    for name, mine, right in zip(("dq", "dk", "dv"), found, expected, strict=True):
        assert right is not None
        error, size = float((mine.float() - right).abs().max()), float(right.abs().max())
        assert error <= 2e-2 * max(size, 1e-2), f"{name}: off by {error:.2e} where the largest is {size:.2e}"
    assert bool((found[0][dead] == 0).all())


@pytest.mark.parametrize("family", list(FAMILIES))
def test_families(family: str, device: Device) -> None:
    """Head dims, small tiles, late copies, integer sums and dtypes in turn."""
    number = list(FAMILIES).index(family)
    device.small, device.late, device.seed = number % 2 == 1, number % 4 > 1, number
    documents = documents_from_lengths([100, 1, 130, 25]) if FAMILIES[family].needs_documents else None
    mask = build_mask(family, 256, documents=documents, heads=2)
    dtype = (torch.float16, torch.bfloat16)[number % 3 > 0]
    compare(mask, (128, 64, 128, 256)[number % 4], dtype, heads=2, kv_heads=1, deterministic=number % 3 > 1)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (63, 65), (129, 64), (70, 200), (200, 129)])
def test_lengths(rows: int, columns: int, late: bool, device: Device) -> None:
    device.late, device.small, device.seed = late, late == (rows < 100), rows
    for head_dim in ampere.HEAD_DIMS:
        compare(ColumnMask(causal=rows != 63, seqlen_q=rows, seqlen_k=columns), head_dim, heads=2, kv_heads=2)


@pytest.mark.parametrize("scale", [0.0, -0.1, 3.0])
def test_scales(scale: float, device: Device) -> None:
    """A large one makes bases move."""
    compare(ColumnMask(causal=True, seqlen_q=200, seqlen_k=200), 64, scale=scale, heads=2, kv_heads=1)


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    mask=random_masks(max_rows=300, max_columns=300, heads=(1, 2, 4), block_masks=True),
    head_dim=st.sampled_from([64, 128]),
    seed=st.integers(0, 1000),
)
def test_random_masks(mask: ColumnMask, head_dim: int, seed: int, device: Device) -> None:
    device.seed, device.late, device.small = seed, seed % 2 == 0, seed % 3 == 0
    if 0 not in (mask.seqlen_q, mask.seqlen_k):
        compare(mask, head_dim, deterministic=seed % 5 == 0)
