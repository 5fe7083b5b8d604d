"""The PTX wrappers on the device: one-tile products by every form of wgmma that the kernels use, against torch."""

from __future__ import annotations

import ctypes

import pytest
import torch

from fm3_kernel.library import check, load


@pytest.mark.hopper
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("mn_major", [False, True])
@pytest.mark.parametrize("registers", [False, True])
@pytest.mark.parametrize("n", [32, 64, 128, 256])
def test_one_tile_product(n: int, registers: bool, mn_major: bool, dtype: torch.dtype) -> None:
    generator = torch.Generator("cuda").manual_seed(n)
    a = torch.randn((64, 128), generator=generator, device="cuda", dtype=dtype)
    b = torch.randn((128, max(n, 64)) if mn_major else (n, 128), generator=generator, device="cuda", dtype=dtype)
    c = torch.full((64, n), torch.nan, device="cuda")
    pointers = [ctypes.c_void_p(t.data_ptr()) for t in (a, b, c)]
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    check(load("gemm_check").fm3_gemm_check(n, *pointers, mn_major, registers, dtype == torch.bfloat16, stream), "gemm_check")
    exact = a.double() @ (b[:, -n:].double() if mn_major else b.double().T)  # n = 32: the right half of 64 columns
    torch.testing.assert_close(c.double(), exact, rtol=1e-5, atol=1e-4)
