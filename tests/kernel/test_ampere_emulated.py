"""The FlashMask kernels' own code on the CPU: every thread a fiber, every instruction as documented (``emulated/``).

It shows that fragments, swizzles, lists, words, barriers and copies fit together, by the door of all calls.
What it cannot show is what the compiler makes of it: that is for the tests on a GPU.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pytest
import torch
from emulator import EXP2, build_emulator, check_gradients, draw_inputs, family_mask, random_cases, run_here
from hypothesis import HealthCheck, settings
from test_build import NO_NVCC

from fm3_kernel import ampere, hopper, reference
from masks.column_mask import ColumnMask
from masks.families import FAMILIES

pytestmark = pytest.mark.skipif(bool(NO_NVCC), reason=f"needs the headers of a CUDA toolkit: {NO_NVCC}")

HEADERS = {"ptx/*.cuh": "sm90/ptx", "ampere/*.cuh": "sm90/ptx", "ptx.cuh": "sm80"}


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
    return build_emulator(tmp_path_factory.mktemp("emulated"), "kernels.cpp", HEADERS, {"sm90/softmax.cuh": [EXP2]})


@pytest.fixture
def device(library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> Device:
    found = Device(library)
    run_here(monkeypatch, ampere, found.function)
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
    factor = head_dim**-0.5 if scale is None else scale
    q, k, v, dout, dlse = draw_inputs(mask, heads, kv_heads, head_dim, dtype)
    tensors = hopper.MaskTensors.of(mask)
    out, lse = ampere.forward(q, k, v, tensors, factor)
    exact, exact_lse = reference.forward(q.float(), k.float(), v.float(), mask, factor)
    torch.testing.assert_close(lse, exact_lse, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(out.float(), exact, rtol=0, atol=2e-2 if dtype == torch.bfloat16 else 4e-3)
    dead = (exact_lse == -torch.inf).transpose(1, 2)
    assert bool((out[dead] == 0).all())
    if head_dim not in ampere.BACKWARD_HEAD_DIMS:
        return
    found = ampere.backward(dout, dlse, q, k, v, out, lse, tensors, factor, deterministic=deterministic)
    floats = (x.float() for x in (q, k, v))
    expected = reference.backward(dout.float(), dlse, *floats, exact, exact_lse, mask, factor)
    check_gradients(found, expected, exact_lse)


@pytest.mark.parametrize("family", list(FAMILIES))
def test_families(family: str, device: Device) -> None:
    """Head dims, small tiles, late copies, integer sums and dtypes in turn."""
    number = list(FAMILIES).index(family)
    device.small, device.late, device.seed = number % 2 == 1, number % 4 > 1, number
    dtype = (torch.float16, torch.bfloat16)[number % 3 > 0]
    compare(family_mask(family), (128, 64, 128, 256)[number % 4], dtype, heads=2, kv_heads=1, deterministic=number % 3 > 1)


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
@random_cases()
def test_random_masks(mask: ColumnMask, head_dim: int, seed: int, device: Device) -> None:
    device.seed, device.late, device.small = seed, seed % 2 == 0, seed % 3 == 0
    if 0 not in (mask.seqlen_q, mask.seqlen_k):
        compare(mask, head_dim, deterministic=seed % 5 == 0)
