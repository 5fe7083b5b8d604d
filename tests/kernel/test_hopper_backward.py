"""The Hopper backward kernel against the reference, on the device."""

from __future__ import annotations

import fixed_sums
import pytest
import torch
from c_side import counters_are_zero
from fixed_sums import Passes
from hypothesis import HealthCheck, given, settings
from random_masks import random_masks

from fm3_kernel import hopper, hopper_backward, hopper_forward, reference
from masks.column_mask import ColumnMask
from masks.documents import documents_from_lengths
from masks.families import FAMILIES, build_mask

PASSES: Passes = (hopper_forward.forward, hopper_backward.backward)


def compare(
    mask: ColumnMask,
    batch: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    dtype: torch.dtype = torch.bfloat16,
    scale: float | None = None,
    dlse: bool = False,
    deterministic: bool = False,
    passes: Passes = PASSES,
) -> None:
    """All three gradients against the reference in fp32, each by its own size."""
    generator = torch.Generator("cuda").manual_seed(0)
    factor = head_dim**-0.5 if scale is None else scale

    def draw(length: int, count: int) -> torch.Tensor:
        return torch.randn((batch, length, count, head_dim), generator=generator, device="cuda", dtype=dtype)

    q, dout = draw(mask.seqlen_q, heads), draw(mask.seqlen_q, heads)
    k, v = draw(mask.seqlen_k, kv_heads), draw(mask.seqlen_k, kv_heads)
    tensors = hopper.MaskTensors.of(mask)
    forward, backward = passes
    out, lse = forward(q, k, v, tensors, factor)
    grad_lse = torch.randn(lse.shape, generator=generator, device="cuda") if dlse else None
    found = backward(dout, grad_lse, q, k, v, out, lse, tensors, factor, deterministic=deterministic)
    exact_out, exact_lse = reference.forward(q.float(), k.float(), v.float(), mask, factor)
    expected = reference.backward(dout.float(), grad_lse, q.float(), k.float(), v.float(), exact_out, exact_lse, mask, factor)
    for name, mine, exact in zip(("dq", "dk", "dv"), found, expected, strict=True):
        assert exact is not None
        assert bool(torch.isfinite(mine).all()), name
        assert mine.shape == exact.shape, name
        if exact.numel() == 0:
            continue
        error, size = float((mine.float() - exact).abs().max()), float(exact.abs().max())
        assert error <= 2e-2 * max(size, 1e-2), f"{name}: off by {error:.2e} where the largest is {size:.2e}"
    assert bool((found[0][(exact_lse == -torch.inf).transpose(1, 2)] == 0).all())
    assert counters_are_zero()


@pytest.mark.hopper
@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("head_dim", hopper.HEAD_DIMS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", list(FAMILIES))
def test_families(family: str, dtype: torch.dtype, head_dim: int, fixed: bool) -> None:
    """Fixed sums with a gradient of the LSE, the others without."""
    documents = documents_from_lengths([300, 1, 500, 224, 511]) if FAMILIES[family].needs_documents else None
    mask = build_mask(family, 1536, documents=documents, batch=2, heads=4).to("cuda")
    compare(mask, 2, 4, 2, head_dim, dtype, dlse=fixed, deterministic=fixed)


@pytest.mark.hopper
@pytest.mark.parametrize("head_dim", hopper.HEAD_DIMS)
def test_a_thousand_runs_under_load_give_the_same_bits(head_dim: int) -> None:
    fixed_sums.same_bits_under_load(PASSES, head_dim)


@pytest.mark.hopper
def test_fixed_sums_keep_what_is_not_a_number() -> None:
    fixed_sums.keep_what_is_not_a_number(PASSES)


@pytest.mark.hopper
@pytest.mark.parametrize("size", [1e-18, 1e-3, 1e3, 1e15])
def test_fixed_sums_of_any_size(size: float) -> None:
    fixed_sums.of_any_size(PASSES, size)


@pytest.mark.hopper
@pytest.mark.parametrize("rows", [1, 63, 64, 65, 128, 129, 300])
@pytest.mark.parametrize("columns", [1, 64, 127, 128, 129, 300])
@pytest.mark.parametrize("causal", [False, True])
def test_lengths(rows: int, columns: int, causal: bool) -> None:
    compare(ColumnMask(causal=causal, seqlen_q=rows, seqlen_k=columns).to("cuda"), 2, 3, 3, 128, dlse=True)


@pytest.mark.hopper
@pytest.mark.parametrize("scale", [0.0, -0.1, 1e-3])
def test_scales(scale: float) -> None:
    compare(ColumnMask(causal=True, seqlen_q=300, seqlen_k=300).to("cuda"), 1, 2, 1, 64, scale=scale)


@pytest.mark.hopper
@pytest.mark.parametrize("head_dim", hopper.HEAD_DIMS)
def test_many_items_a_block(head_dim: int) -> None:
    documents = documents_from_lengths([200] * 20)
    compare(build_mask("causal_document", 4000, documents=documents).to("cuda"), 2, 16, 4, head_dim)


@pytest.mark.hopper
@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("rows", [5000, 5248])
@pytest.mark.parametrize("head_dim", hopper.HEAD_DIMS)
def test_long_items_that_begin_in_the_middle(head_dim: int, rows: int, fixed: bool) -> None:
    """More items than blocks, of heads that L2 keeps (5000 rows) and of ones that it does not."""
    group = 1024 // head_dim
    compare(ColumnMask(seqlen_q=rows, seqlen_k=11000).to("cuda"), 1, 2 * group, 2, head_dim, deterministic=fixed)


@pytest.mark.hopper
@pytest.mark.parametrize("slots", [1, 3, None])
@pytest.mark.parametrize("head_dim", [64, 256])
@pytest.mark.parametrize("family", ["full", "causal_document", "global_sliding_window", "random_eviction"])
def test_more_heads_than_have_room_for_their_sums(
    family: str, head_dim: int, slots: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sums of dq of many KV heads take turns in the same memory, however little there is."""
    if slots is not None:
        monkeypatch.setattr(hopper_backward, "sums_in_turn", lambda sums, kv_heads: slots)
    documents = documents_from_lengths([100, 1, 155]) if FAMILIES[family].needs_documents else None
    compare(build_mask(family, 256, documents=documents, batch=100, heads=12).to("cuda"), 100, 12, 6, head_dim)


@pytest.mark.hopper
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(mask=random_masks(max_rows=400, max_columns=400, heads=(1, 2, 4), block_masks=True))
def test_random_masks(mask: ColumnMask) -> None:
    compare(mask.to("cuda"), 2, 4, 2, 64, dlse=True)


def test_sums_take_turns_only_where_it_saves_memory() -> None:
    """Never more slots than KV heads or bits of the ledger; never fewer than four, where there are four."""
    for sums in (64 * 64, 8192 * 128, 2**31):
        for kv_heads in (1, 8, 4096):
            slots = hopper_backward.sums_in_turn(sums, kv_heads)
            assert min(4, kv_heads) <= slots <= min(hopper_backward.MOST_SLOTS, kv_heads)
            assert slots <= 4 or slots * sums * 4 <= hopper_backward.SUMS_BYTES
