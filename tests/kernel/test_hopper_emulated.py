"""The Hopper kernels' own code on the CPU: every thread a fiber, every instruction as documented (``emulated/``).

It shows that fragments, swizzles, descriptors, barriers and sums fit together: copies and products happen at any time that
their barriers and waits allow. What it cannot show is what the compiler makes of it, and blocks beside each other but for
the two of a cluster: that is for the tests on a GPU.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from emulator import EXP2, build_emulator, check_gradients, draw_inputs, family_mask, prepared, random_cases, run_here
from hypothesis import HealthCheck, given, settings
from random_masks import random_masks
from test_build import NO_NVCC

from fm3_kernel import hopper, hopper_backward, hopper_forward, reference
from masks.column_mask import ColumnMask, pack_block_mask
from masks.families import FAMILIES
from masks.tiles import SKIPPED, class_of_tiles

pytestmark = pytest.mark.skipif(bool(NO_NVCC), reason=f"needs the headers of a CUDA toolkit: {NO_NVCC}")

MATRICES = (
    r'asm volatile\("stmatrix\.sync\.aligned\.m8n8\.x4{}\.shared\.b16 .*?'
    r'ptx::shared_address\((.*?)\)\),\s*"r"\((.*?)\[0\]\).*?"memory"\);'
)
HEADERS = {"ptx/*.cuh": "sm90/ptx", "hopper/*.cuh": "sm90/ptx"}
SUBSTITUTES = {
    "sm90/softmax.cuh": [EXP2],
    "sm90/tensor_map.h": [
        (r"using EncodeTiled.*?(?=// Axes)", "cudaError_t emulated_map(CUtensorMap*, const TensorView&, int, int);\n\n"),
        (r"const EncodeTiled encode_tiled.*?cudaErrorInvalidValue;", "return emulated_map(map, x, box_rows, box_chunks);"),
    ],
    "sm90/hidden_bits.cuh": [(r"asm\(\"bmsk.*?;\n", "mask = x >= 32 ? ~0u : (1u << max(x, 0)) - 1;\n")],
    "sm90/forward.cuh": [(r"extern __shared__ uint8_t memory\[\];", "uint8_t* memory = device::memory_of_block();")],
    "sm90/launch_forward.cuh": [
        (r"cudaGetDevice\(&device\);", "(device = 0, cudaSuccess);"),
        (r"cudaFuncSetAttribute\(.*?\);", "cudaSuccess;"),
        (
            r"cudaLaunchAttribute clusters.*?return cudaLaunchKernelEx\(.*?\);",
            "return device::run(cluster, kernel, F::kThreads, args, maps, sharing);",
        ),
    ],
    "sm90/backward.cuh": [(r"extern __shared__ uint8_t memory\[\];", "")],
    "sm90/backward_sums.cuh": [
        (r"asm volatile\(\"ld\..*?\n", "found = *at;\n"),
        (r"asm volatile\(\"st\..*?\n", "*at = number;\n"),
    ],
    "sm90/backward_multiply.cuh": [
        (MATRICES.format(r"\.trans"), r"ptx::store_matrices(\1, \2, true);"),
        (
            r"asm volatile\(\"\{\.reg \.pred there.*?\"memory\"\);",
            "if (row + 8 * h < args.mask.columns) reinterpret_cast<uint4&>(to[8 * h * strides[1] + 8 * i]) = eight;",
        ),
    ],
    "sm90/backward_wide.cuh": [
        (MATRICES.format(""), r"ptx::store_matrices(\1, \2, false);"),
        (MATRICES.format(r"\.trans"), r"ptx::store_matrices(\1, \2, true);"),
        (r"asm volatile\(\"red\..*?\"memory\"\);", "for (int e = 0; e < 4; ++e) to[i * 128 + lane * 4 + e] += dq[4 * i + e];"),
    ],
    "sm90/fragments.cuh": [(MATRICES.format(""), r"ptx::store_matrices(\1, \2, false);")],
    "sm90/launch_backward.cuh": [
        (r"cudaFuncSetAttribute\(.*?\);", "cudaSuccess;"),
        (r"kernel<<<.*?return cudaGetLastError\(\);", "return device::run(1, kernel, F::kThreads, args, maps);"),
        ("40 << 20", "1 << 18"),  # heads of some hundred rows are long already
    ],
}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return build_emulator(tmp_path_factory.mktemp("emulated"), "hopper_kernels.cpp", HEADERS, SUBSTITUTES)


class Device:
    """What the emulated device is given: the seed that decides who comes first, how many KV heads have room for their sums, who
    loads for whom in the forward pass, and which of its warps is slow (-1: none)."""

    seed, slots, sharing, slow = 0, 4, hopper_forward.ALONE, -1

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
        self.counters = torch.zeros(2, dtype=torch.int32)

    def function(self, library: str, name: str, signature: str) -> Callable[..., int]:
        """In the place of :func:`fm3_kernel.hopper.function`."""

        def call(args: Any, *rest: int) -> int:
            if library == "backward_rows":
                self.library.emulate_rows(args)
                return 0
            head_dim = int(library.split("_d")[1])
            if name == "fm3_forward":
                return int(self.library.emulate_forward(args, rest[0], head_dim, self.seed, self.slow))
            return int(self.library.emulate_backward(args, head_dim, self.seed))

        return call


@pytest.fixture
def device(library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> Device:
    found = Device(library)
    for module in (hopper_forward, hopper_backward):
        run_here(monkeypatch, module, found.function)
        monkeypatch.setattr(module, "counters", lambda device, stream, count: (found.counters.data_ptr(), None))
    monkeypatch.setattr(hopper_forward, "_plans", {})
    monkeypatch.setattr(hopper_forward, "_empty_strided", None)
    monkeypatch.setattr(hopper_forward, "_sharing", lambda plan, mask: found.sharing)
    monkeypatch.setattr(hopper_backward, "sums_in_turn", lambda sums, kv_heads: min(found.slots, kv_heads))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(multi_processor_count=1))
    return found


def compare(
    device: Device,
    mask: ColumnMask,
    head_dim: int,
    dtype: torch.dtype = torch.bfloat16,
    heads: int = 4,
    kv_heads: int = 2,
    deterministic: bool = False,
) -> None:
    """Gradients, with one of the LSE, against the reference in fp32."""
    scale = head_dim**-0.5
    q, k, v, dout, dlse = draw_inputs(mask, heads, kv_heads, head_dim, dtype)
    exact, lse = reference.forward(q.float(), k.float(), v.float(), mask, scale)
    tensors = hopper.MaskTensors.of(mask)
    found = hopper_backward.backward(dout, dlse, q, k, v, exact.to(dtype), lse, tensors, scale, deterministic=deterministic)
    expected = reference.backward(dout.float(), dlse, q.float(), k.float(), v.float(), exact, lse, mask, scale)
    check_gradients(found, expected, lse)
    assert not bool(device.counters.any())


@pytest.mark.parametrize("family", list(FAMILIES))
def test_families(family: str, device: Device) -> None:
    """Head dims, dtypes, integer sums and slots in turn."""
    number = list(FAMILIES).index(family)
    device.seed, device.slots = number, 1 + number % 2
    dtype = (torch.float16, torch.bfloat16)[number % 3 > 0]
    compare(
        device, family_mask(family), (128, 64, 128, 256)[number % 4], dtype, heads=4, kv_heads=2, deterministic=number % 3 > 1
    )


@pytest.mark.parametrize("head_dim", hopper.HEAD_DIMS)
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (63, 65), (129, 64), (81, 200), (241, 129)])
def test_lengths(rows: int, columns: int, head_dim: int, device: Device) -> None:
    device.seed = rows
    compare(device, ColumnMask(causal=rows != 63, seqlen_q=rows, seqlen_k=columns), head_dim, heads=2)


@pytest.mark.parametrize("head_dim", hopper.HEAD_DIMS)
def test_long_items_that_begin_in_the_middle(head_dim: int, device: Device) -> None:
    compare(device, ColumnMask(seqlen_q=600, seqlen_k=500), head_dim, heads=3, kv_heads=1)


@pytest.mark.parametrize("seed", range(8))
def test_items_without_rows_one_after_the_other(seed: int, device: Device) -> None:
    """Nothing but barriers keeps the warps of a warpgroup together there."""
    generator = torch.Generator().manual_seed(seed)
    lts = torch.randint(0, 256, (2, 2, 265), generator=generator, dtype=torch.int32)
    blocks = pack_block_mask(torch.rand((2, 2, 2, 3), generator=generator) < 0.4)
    device.seed, device.slots = seed, 1 + seed % 3
    compare(device, ColumnMask(lts, None, None, None, blocks, True, 255, 265), (64, 128)[seed % 2])


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@random_cases()
def test_random_masks(mask: ColumnMask, head_dim: int, seed: int, device: Device) -> None:
    device.seed, device.slots = seed, 1 + seed % 3
    if 0 not in (mask.seqlen_q, mask.seqlen_k):
        compare(device, mask, head_dim, deterministic=seed % 5 == 0)


def compare_forward(
    device: Device, mask: ColumnMask, head_dim: int, dtype: torch.dtype = torch.bfloat16, heads: int = 4, kv_heads: int = 2
) -> None:
    """Output and LSE of blocks alone, in pairs, and as the mask has it, against the reference; the same bits from all."""
    scale = head_dim**-0.5
    q, k, v, _, _ = draw_inputs(mask, heads, kv_heads, head_dim, dtype)
    exact, exact_lse = reference.forward(q.float(), k.float(), v.float(), mask, scale)
    tensors = hopper.MaskTensors.of(mask)
    found = []
    ways = [hopper_forward.ALONE, hopper_forward.PAIRS] + [hopper_forward.EITHER] * (mask.lts is not None)
    for device.sharing in ways:
        out, lse = hopper_forward.forward(q, k, v, tensors, scale)
        torch.testing.assert_close(lse, exact_lse, rtol=1e-4, atol=1e-3)
        torch.testing.assert_close(out.float(), exact, rtol=0, atol=2e-2 if dtype == torch.bfloat16 else 4e-3)
        assert bool((out[(exact_lse == -torch.inf).transpose(1, 2)] == 0).all())
        assert not bool(device.counters.any())
        found.append((out, lse))
    assert all(torch.equal(x, y) for other in found[1:] for x, y in zip(found[0], other, strict=True))


@pytest.mark.parametrize("family", list(FAMILIES))
def test_forward_of_families(family: str, device: Device) -> None:
    number = list(FAMILIES).index(family)
    device.seed = number
    compare_forward(
        device, family_mask(family), (128, 64, 128, 256)[number % 4], (torch.float16, torch.bfloat16)[number % 3 > 0]
    )


@pytest.mark.parametrize("head_dim", hopper.HEAD_DIMS)
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (63, 65), (129, 64), (300, 500), (641, 129)])
def test_forward_of_lengths(rows: int, columns: int, head_dim: int, device: Device) -> None:
    """One row tile, an odd number of them, one block with nothing to do."""
    device.seed = rows
    compare_forward(device, ColumnMask(causal=rows != 63, seqlen_q=rows, seqlen_k=columns), head_dim, heads=2)


@pytest.mark.parametrize("seed", range(8))
def test_forward_where_neighbours_need_different_tiles(seed: int, device: Device) -> None:
    """Tiles kept by chance: passed over at the beginning, in the middle and at the end of row tiles, or all of one."""
    generator = torch.Generator().manual_seed(seed)
    lts = torch.randint(0, 700, (2, 2, 640), generator=generator, dtype=torch.int32)
    blocks = pack_block_mask(torch.rand((2, 2, 5, 5), generator=generator) < (0.3, 0.6)[seed % 2])
    device.seed = seed
    compare_forward(device, ColumnMask(lts, None, None, None, blocks, True, 577, 640), hopper.HEAD_DIMS[seed % 3], heads=2)


@pytest.mark.parametrize("columns", [128, 256])
@pytest.mark.parametrize("slow", [*range(4, 12), *range(16, 24)])
def test_forward_with_a_slow_warp(slow: int, columns: int, device: Device) -> None:
    """A warp that multiplies, of either block, far behind the others of its warpgroup. The last row tile has no neighbour, so
    one block passes over whole row tiles."""
    device.seed = device.slow = slow
    compare_forward(device, ColumnMask(seqlen_q=300, seqlen_k=columns), 256, heads=3, kv_heads=1)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@random_cases()
def test_forward_of_random_masks(mask: ColumnMask, head_dim: int, seed: int, device: Device) -> None:
    device.seed = seed
    compare_forward(device, mask, 256 if seed % 3 == 0 else head_dim)


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(mask=random_masks(max_rows=1500, max_columns=700, heads=(1, 2)))
def test_what_pairs_would_pass_over_is_counted_right(mask: ColumnMask, library: ctypes.CDLL) -> None:
    """Against the classes of all tiles."""
    tensors = hopper.MaskTensors.of(mask)
    if tensors.lts is None or 0 in (mask.seqlen_q, mask.seqlen_k):
        return
    preparation = prepared(tensors, mask.seqlen_q)
    args, kept = hopper.mask_args(tensors, mask.seqlen_q, mask.seqlen_k, preparation)
    counts = (ctypes.c_ulonglong * 2)()
    library.emulate_count_pairs(ctypes.byref(args), tensors.lts.shape[0] * tensors.lts.shape[1], counts)
    del kept, preparation
    live = class_of_tiles(mask) != SKIPPED
    pairs = torch.nn.functional.pad(live, (0, 0, 0, live.shape[2] % 2)).unflatten(2, (-1, 2))
    assert tuple(counts) == (int(live.sum()), int((pairs[:, :, :, 0] ^ pairs[:, :, :, 1]).sum()))


@pytest.mark.parametrize(
    ("rows", "columns", "heads", "head_dim", "vectors", "blocks", "expected"),
    [
        (4096, 4096, 32, 128, False, False, hopper_forward.PAIRS),
        (4096, 4096, 32, 128, True, False, hopper_forward.EITHER),
        (4096, 4096, 32, 256, True, False, hopper_forward.EITHER),
        (4096, 4096, 32, 64, True, False, hopper_forward.ALONE),  # where it gave nothing
        (4096, 4096, 32, 128, True, True, hopper_forward.ALONE),  # nobody counts what a block mask skips
        (1024, 4096, 128, 128, False, False, hopper_forward.ALONE),  # few row tiles a head
        (4096, 1024, 32, 128, False, False, hopper_forward.ALONE),  # few column tiles: the diagonal is much of them
        (4096, 4096, 4, 128, False, False, hopper_forward.ALONE),  # few row tiles a multiprocessor
    ],
)
def test_who_loads_for_whom_by_sizes(
    rows: int,
    columns: int,
    heads: int,
    head_dim: int,
    vectors: bool,
    blocks: bool,
    expected: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hopper_forward, "function", lambda *names: None)
    monkeypatch.setattr(hopper_forward, "check_tensors", lambda q, k, v: None)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(multi_processor_count=132))
    q, k = (torch.empty((1, length, heads, head_dim), dtype=torch.bfloat16, device="meta") for length in (rows, columns))
    some = torch.empty(1, dtype=torch.int32)
    mask = hopper.MaskTensors(some if vectors else None, None, None, None, some if blocks else None, True)
    assert hopper_forward._sharing(hopper_forward._plan(q, k, k, object()), mask) == expected
