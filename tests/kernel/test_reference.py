"""The reference against dense fp64 autograd: masks of every form, lengths, heads, numerics, and the steps it takes."""

from __future__ import annotations

import math

import pytest
import torch
from dense_reference import actual, assert_close, check, dense_attention, expected, tensors, visible_of
from hypothesis import given, settings
from hypothesis import strategies as st
from random_masks import random_masks

from fm3_kernel import FM3Error, flashmask_attention, reference, row_tiles
from fm3_kernel.layout import Layout
from fm3_kernel.row_tiles import RowTiles, steps_of
from masks.column_mask import ColumnMask
from masks.tiles import FULL, PARTIAL, SKIPPED, class_of_tiles

LENGTHS = (0, 1, 63, 64, 65, 127, 128, 129, 300)


def vector(values: torch.Tensor) -> torch.Tensor:
    return values.to(torch.int32).view(1, 1, -1)


def documents(length: int, size: int, causal: bool) -> ColumnMask:
    column = torch.arange(length)
    start = column // size * size
    ends = vector((start + size).clamp(max=length))
    if causal:
        return ColumnMask(lts=ends, causal=True, seqlen_q=length, seqlen_k=length)
    return ColumnMask(lts=ends, ute=vector(start), seqlen_q=length, seqlen_k=length)


def hidden_rows(rows: int, columns: int, start: int, end: int, causal: bool = False) -> ColumnMask:
    """Rows [start, end) see nothing."""
    ends = {
        "lts": torch.full((1, 1, columns), start, dtype=torch.int32),
        "lte": torch.full((1, 1, columns), end, dtype=torch.int32),
    }
    if not causal:
        ends |= {"uts": torch.zeros((1, 1, columns), dtype=torch.int32), "ute": torch.zeros((1, 1, columns), dtype=torch.int32)}
    return ColumnMask(**ends, causal=causal, seqlen_q=rows, seqlen_k=columns)


# -- masks of every form (kinds E, F) -----------------------------------------------------------------------------


@settings(max_examples=80, deadline=None)
@given(
    mask=random_masks(max_rows=40, max_columns=40, heads=(1, 2, 4), block_masks=True),
    seed=st.integers(0, 1000),
    with_lse=st.booleans(),
)
def test_random_masks(mask: ColumnMask, seed: int, with_lse: bool) -> None:
    q, k, v, dout, dlse = tensors(2, mask.seqlen_q, mask.seqlen_k, heads=4, kv_heads=2, width=5, seed=seed)
    check(mask, q, k, v, dout, dlse if with_lse else None)


@settings(max_examples=12, deadline=None)
@given(mask=random_masks(max_rows=280, max_columns=280, heads=(1, 2), block_masks=True), seed=st.integers(0, 1000))
def test_random_masks_over_several_tiles(mask: ColumnMask, seed: int) -> None:
    check(mask, *tensors(2, mask.seqlen_q, mask.seqlen_k, heads=2, width=8, seed=seed))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("size", [1, 100, 128, 150, 400])
def test_documents_with_skipped_full_and_partial_tiles(size: int, causal: bool) -> None:
    mask = documents(400, size, causal)
    if 100 <= size < 400:
        assert (class_of_tiles(mask) == SKIPPED).any()
    check(mask, *tensors(1, 400, 400, heads=2, width=8))


def test_vectors_that_hide_nothing_equal_no_vectors() -> None:
    inputs = tensors(1, 200, 200)
    open_mask = ColumnMask(lts=torch.full((1, 1, 200), 2**31 - 1, dtype=torch.int32), causal=True, seqlen_q=200, seqlen_k=200)
    for got, want in zip(
        actual(*inputs, open_mask), actual(*inputs, ColumnMask(causal=True, seqlen_q=200, seqlen_k=200)), strict=True
    ):
        assert torch.equal(got, want)


@pytest.mark.parametrize(("rows", "columns"), [(200, 200), (130, 300), (300, 130)])
def test_the_causal_flag_equals_the_diagonal_as_a_vector(rows: int, columns: int) -> None:
    mask = ColumnMask(causal=True, seqlen_q=rows, seqlen_k=columns)
    inputs = tensors(1, rows, columns)
    for got, want in zip(actual(*inputs, mask.without_causal_flag()), actual(*inputs, mask), strict=True):
        assert torch.equal(got, want)


@pytest.mark.parametrize("with_vectors", [False, True])
def test_block_mask_per_batch_and_head_with_and_without_vectors(with_vectors: bool) -> None:
    keep = torch.rand((2, 2, 3, 3), generator=torch.Generator().manual_seed(3)) < 0.5
    keep[0, 0, 1] = False  # a whole row tile without a key
    keep[1, 1, :, 0] = False  # a whole column tile that no row sees
    base = documents(300, 70, causal=True) if with_vectors else ColumnMask(seqlen_q=300, seqlen_k=300)
    got, _ = check(base.with_block_mask(keep), *tensors(2, 300, 300, heads=4, kv_heads=2, width=8))
    assert (got.dk[1, :128, 1] == 0).all()
    assert (got.dv[1, :128, 1] == 0).all()
    assert (got.out[0, 128:256, :2] == 0).all()


# -- rows without a key, and sentinels (kind A) -------------------------------------------------------------------


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("start", "end"), [(0, 14), (40, 60), (280, 300), (120, 136), (0, 128), (128, 256), (0, 300)])
def test_empty_rows_anywhere(start: int, end: int, causal: bool) -> None:
    mask = hidden_rows(300, 300, start, end, causal)
    got, _ = check(mask, *tensors(1, 300, 300, width=8, dtype=torch.float32))
    assert (got.lse[..., start:end] == -torch.inf).all()


def test_what_arrives_at_an_empty_row_goes_nowhere() -> None:
    mask = hidden_rows(150, 150, 100, 140)
    q, k, v, dout, dlse = tensors(1, 150, 150)
    clean = actual(q, k, v, dout, dlse, mask)
    dout[:, 100:140], dlse[..., 100:140] = torch.nan, torch.inf
    for got, want in zip(actual(q, k, v, dout, dlse, mask), clean, strict=True):
        assert torch.equal(got, want)


@pytest.mark.parametrize("level", [-6e4, -1e5, -2.45e5])
def test_logits_below_any_finite_sentinel(level: float) -> None:
    q, k, v, dout, dlse = tensors(1, 140, 200, heads=1, width=4, dtype=torch.float32)
    q[..., 0], k[..., 0] = 1.0, level
    mask = documents(200, 60, causal=True)
    mask = ColumnMask(lts=mask.lts, causal=True, seqlen_q=140, seqlen_k=200)
    # One unit in the last place of the logits is 2^-7 (at 1e5) to 2^-6: that is the error any fp32 computation has.
    got, _ = check(mask, q, k, v, dout, dlse, scale=1.0, tolerance=4 * 2.0**-6)
    assert got.out.abs().sum() > 0


def test_a_hidden_key_never_beats_a_visible_one_below_the_old_sentinels() -> None:
    q = torch.tensor([[-20000.0, -20000.0]]).view(1, 2, 1, 1)
    k, v = torch.tensor([1.0, 0.0]).view(1, 2, 1, 1), torch.tensor([1.0, 100.0]).view(1, 2, 1, 1)
    mask = ColumnMask(lts=vector(torch.tensor([2, 0])), ute=vector(torch.tensor([0, 0])), seqlen_q=2, seqlen_k=2)
    assert flashmask_attention(q, k, v, mask, scale=1.0).flatten().tolist() == [1.0, 1.0]


def test_a_hidden_score_that_overflows_does_no_harm() -> None:
    q, k, v, dout, dlse = tensors(1, 100, 100, width=4, dtype=torch.float32)
    mask = documents(100, 50, causal=False)
    clean = actual(q, k, v, dout, dlse, mask)
    q[:, :50, :, 0], k[:, :50, :, 0], k[:, 50:, :, 0] = 1e15, 0.0, 1e30
    q[:, 50:, :, 0] = 0.0
    got = actual(q, k, v, dout, dlse, mask)
    assert not any(x.isnan().any() for x in got)
    assert torch.equal(got.dv.isfinite(), clean.dv.isfinite())


def test_nan_in_a_visible_key_is_not_swallowed() -> None:
    q, k, v, *_ = tensors(1, 10, 10)
    k[0, 3, 0, 0] = torch.nan
    out = flashmask_attention(q, k, v)
    assert out[:, :, 0].isnan().all()
    assert not out[:, :, 1].isnan().any()


# -- LSE (kind B) -------------------------------------------------------------------------------------------------


def test_lse_is_the_natural_logarithm() -> None:
    q, k, v, *_ = tensors(2, 70, 150, heads=4, kv_heads=2, dtype=torch.float32)
    mask = ColumnMask(causal=True, seqlen_q=70, seqlen_k=150)
    _, lse = flashmask_attention(q, k, v, mask, return_lse=True)
    scores = torch.einsum("bihd,bjhd->bhij", q, k.repeat_interleave(2, dim=2)) * 0.25
    want = scores.masked_fill(~visible_of(mask, q, k), -torch.inf).logsumexp(-1)
    assert lse.dtype == torch.float32
    assert lse.shape == (2, 4, 70)
    torch.testing.assert_close(lse, want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("cut", [0, 1, 128, 170, 300])
def test_two_halves_merged_by_lse_equal_the_whole(cut: int) -> None:
    q, k, v, *_ = tensors(1, 200, 300)
    whole = documents(300, 90, causal=False)
    vectors = {"lts": whole.lts, "ute": whole.ute}

    def part(columns: slice) -> tuple[torch.Tensor, torch.Tensor]:
        names = {name: x[..., columns] for name, x in vectors.items()}
        mask = ColumnMask(**names, seqlen_q=200, seqlen_k=names["lts"].shape[2])
        return flashmask_attention(q, k[:, columns], v[:, columns], mask, return_lse=True)

    out, lse = part(slice(None))
    (out_a, lse_a), (out_b, lse_b) = part(slice(0, cut)), part(slice(cut, None))
    merged = torch.logaddexp(lse_a, lse_b)
    torch.testing.assert_close(merged, lse, rtol=0, atol=1e-12)
    weights = [(half - merged).exp().nan_to_num(0.0).transpose(1, 2).unsqueeze(-1) for half in (lse_a, lse_b)]
    torch.testing.assert_close(out_a * weights[0] + out_b * weights[1], out, rtol=0, atol=1e-12)


def test_the_dense_reference_repeats_each_kv_head_and_does_not_tile_them() -> None:
    q, k, v, *_ = tensors(1, 6, 6, heads=4, kv_heads=2)
    visible = torch.ones((1, 4, 6, 6), dtype=torch.bool)
    _, lse = dense_attention(q, k, v, visible, 1.0)
    for head in range(4):
        want = (q[0, :, head] @ k[0, :, head // 2].T).logsumexp(-1)
        torch.testing.assert_close(lse[0, head], want)


# -- lengths (kinds C, D, K) --------------------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("rows", LENGTHS)
def test_grid_of_lengths(rows: int, causal: bool) -> None:
    for columns in LENGTHS:
        mask = ColumnMask(causal=causal, seqlen_q=rows, seqlen_k=columns)
        check(mask, *tensors(1, rows, columns, width=3, dtype=torch.float32))


def test_causal_is_aligned_bottom_right() -> None:
    q, k, v, *_ = tensors(1, 3, 5)
    _, lse = flashmask_attention(q, k, v, ColumnMask(causal=True, seqlen_q=3, seqlen_k=5), scale=0.0, return_lse=True)
    torch.testing.assert_close(lse[0, 0].exp(), torch.tensor([3.0, 4.0, 5.0], dtype=torch.float64))
    _, lse = flashmask_attention(k, q, q, ColumnMask(causal=True, seqlen_q=5, seqlen_k=3), scale=0.0, return_lse=True)
    torch.testing.assert_close(lse[0, 0].exp(), torch.tensor([0.0, 0.0, 1.0, 2.0, 3.0], dtype=torch.float64))


def poisoned(x: torch.Tensor) -> torch.Tensor:
    """The same values as a view into a larger buffer of NaN (or of garbage, for integers)."""
    fill = torch.nan if x.is_floating_point() else -7
    shape = list(x.shape)
    axis = 1 if x.is_floating_point() else 2
    shape[axis] += 300
    buffer = torch.full(shape, fill, dtype=x.dtype)
    view = buffer.narrow(axis, 150, x.shape[axis])
    view.copy_(x)
    return view


@pytest.mark.parametrize("length", [1, 2, 7, 31, 32, 33, 63, 64, 65, 95, 127, 128, 129, 130, 191, 192, 193, 255, 256, 257, 260])
def test_tile_remainders_inside_nan(length: int) -> None:
    base = documents(length, 50, causal=False)
    mask = ColumnMask(lts=poisoned(base.lts), ute=poisoned(base.ute), seqlen_q=length, seqlen_k=length)
    q, k, v, dout, dlse = tensors(1, length, length, width=4, dtype=torch.float32)
    got = actual(*(poisoned(x) for x in (q, k, v, dout)), dlse, mask)
    want = expected(q, k, v, dout, dlse, base, 0.5)
    assert_close(got, want)
    tail = slice(length // 128 * 128 if length % 128 else length - 1, None)
    assert_close(got, want, rows=tail)


@pytest.mark.parametrize("axis", ["batch", "heads", "rows", "columns", "width"])
def test_empty_axes(axis: str) -> None:
    sizes = {"batch": 2, "heads": 2, "rows": 3, "columns": 4, "width": 5} | {axis: 0}
    q, k, v, dout, dlse = tensors(**sizes)
    mask = ColumnMask(causal=True, seqlen_q=sizes["rows"], seqlen_k=sizes["columns"])
    for each in (None, mask):
        got, _ = check(each, q, k, v, dout, dlse)
        if axis != "width":
            assert all((x == 0).all() for x in (got.out, got.dq, got.dk, got.dv))
            assert (got.lse == -torch.inf).all()


@pytest.mark.parametrize("sizes", [(1, 1, 1), (0, 128, 1), (127, 1, 129), (2, 0, 0, 3), (128, 128)])
def test_short_and_empty_documents(sizes: tuple[int, ...]) -> None:
    length = sum(sizes)
    ends = torch.cumsum(torch.tensor(sizes), 0)
    owner = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    start = ends - torch.tensor(sizes)
    mask = ColumnMask(lts=vector(ends[owner]), ute=vector(start[owner]), seqlen_q=length, seqlen_k=length)
    check(mask, *tensors(1, length, length, width=4))


def test_a_padding_tail_gets_exactly_zero() -> None:
    column = torch.arange(200)
    padding = column >= 150
    mask = ColumnMask(
        lts=vector(torch.where(padding, 0, 150)), ute=vector(torch.zeros(200)), seqlen_q=200, seqlen_k=200
    )  # rows from 150 on see nothing, and nobody sees columns from 150 on
    got, _ = check(mask, *tensors(1, 200, 200))
    for x in (got.out, got.dq, got.dk, got.dv):
        assert (x[:, 150:] == 0).all()


# -- heads (kind G) -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("heads", "kv_heads"), [(2, 2), (4, 2), (6, 2), (6, 3), (7, 1), (8, 1), (12, 4)])
@pytest.mark.parametrize("mask_heads", ["one", "kv", "query"])
def test_grouped_heads(heads: int, kv_heads: int, mask_heads: str) -> None:
    count = {"one": 1, "kv": kv_heads, "query": heads}[mask_heads]
    generator = torch.Generator().manual_seed(1)
    for batch in (1, 2):
        lts = torch.randint(0, 150, (batch, count, 140), dtype=torch.int32, generator=generator)
        mask = ColumnMask(lts=lts, causal=True, seqlen_q=140, seqlen_k=140)
        check(mask, *tensors(2, 140, 140, heads, kv_heads, width=4))


def test_replicated_heads_sum_their_gradients() -> None:
    q, k, v, dout, _ = tensors(1, 60, 60, heads=6, kv_heads=2)
    grouped = actual(q, k, v, dout, None, None)
    spread = actual(q, *(x.repeat_interleave(3, dim=2) for x in (k, v)), dout, None, None)
    for name in ("dk", "dv"):
        summed = getattr(spread, name).unflatten(2, (2, 3)).sum(3)
        torch.testing.assert_close(getattr(grouped, name), summed, rtol=0, atol=1e-12)


# -- numerics (kind M) --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [0.0, -0.25, 1e-4, 1.0, 4.0])
def test_scales(scale: float) -> None:
    for dtype in (torch.float64, torch.float32):
        check(documents(150, 60, causal=True), *tensors(1, 150, 150, dtype=dtype), scale=scale, tolerance=None)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_error_against_fp64_at_most_that_of_dense_attention(dtype: torch.dtype) -> None:
    mask = documents(260, 120, causal=False)
    inputs = tensors(1, 260, 260, heads=4, kv_heads=2, width=32, dtype=dtype)
    got, want = check(mask, *inputs)
    assert (got.dq.dtype, got.dk.dtype, got.dv.dtype, got.out.dtype) == (dtype,) * 4
    visible = visible_of(mask, *inputs[:2])
    q, k, v = (x.detach().requires_grad_() for x in inputs[:3])
    out, lse = dense_attention(q, k, v, visible, 32**-0.5)
    dense = (out, lse, *torch.autograd.grad([out, lse], (q, k, v), [inputs[3], inputs[4].to(dtype)]))
    floor = torch.finfo(dtype).eps
    for name, ours, theirs, exact in zip(want._fields, got, dense, want, strict=True):
        worst = (theirs.double() - exact).abs().max().item()
        error = (ours.double() - exact).abs().max().item()
        assert error <= 2 * worst + floor * exact.abs().max().item(), name


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_at_the_edge_of_its_range(dtype: torch.dtype) -> None:
    q, k, v, dout, dlse = tensors(1, 140, 140, width=8, dtype=dtype)
    top = 0.9 * torch.finfo(torch.float16).max
    q[..., 0], k[..., 0] = top, top  # large and equal logits: beyond fp16, within fp32
    v = v * 1000
    for scale in (1e-9, 1e-4):
        got = actual(q, k, v, dout, dlse, documents(140, 60, causal=True), scale)
        assert all(x.isfinite().all() for x in got[:2])
        assert not any(x.isnan().any() for x in got)
    torch.testing.assert_close(
        actual(q, k, v, dout, None, None, 1e-9).out.double(), expected(q, k, v, dout, None, None, 1e-9).out, rtol=2e-2, atol=2.0
    )


def test_error_does_not_grow_with_the_share_of_hidden_keys() -> None:
    q, k, v, dout, dlse = tensors(1, 1, 1000, heads=1, width=64, dtype=torch.bfloat16)
    for seen in (1, 10, 580, 590, 1000):
        lts = vector(torch.where(torch.arange(1000) < seen, 1, 0))
        mask = ColumnMask(lts=lts, ute=torch.zeros_like(lts), seqlen_q=1, seqlen_k=1000)
        got, want = check(mask, q, k, v, dout, dlse)
        assert (got.out.double() - want.out).abs().max() <= 2**-8 * want.out.abs().max()


def test_autocast_does_not_reach_the_products() -> None:
    inputs = tensors(1, 150, 150, dtype=torch.float32)
    plain = actual(*inputs, None)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        under = actual(*inputs, None)
    for got, want in zip(under, plain, strict=True):
        assert torch.equal(got, want)


def test_two_runs_give_the_same_bits() -> None:
    inputs = tensors(2, 260, 260, heads=4, kv_heads=2, dtype=torch.float32)
    mask = documents(260, 100, causal=True)
    for got, want in zip(actual(*inputs, mask), actual(*inputs, mask), strict=True):
        assert torch.equal(got, want)


# -- steps, scratch, class map ------------------------------------------------------------------------------------


def test_steps_gather_live_columns_only() -> None:
    steps = steps_of([FULL, PARTIAL, SKIPPED, PARTIAL, PARTIAL, FULL], 700, 10000)
    assert [(s.runs, s.partial, s.columns) for s in steps] == [
        ([(0, 256), (384, 700)], [(128, 128, 256), (256, 384, 640)], 572)
    ]
    assert steps_of([SKIPPED, SKIPPED], 256, 128) == []


@settings(max_examples=60, deadline=None)
@given(
    classes=st.lists(st.sampled_from([SKIPPED, PARTIAL, FULL]), min_size=1, max_size=12),
    short=st.integers(0, 127),
    limit=st.sampled_from([128, 256, 512, 4096]),
)
def test_steps_cover_every_live_column_once(classes: list[int], short: int, limit: int) -> None:
    columns = len(classes) * 128 - short
    steps = steps_of(classes, columns, limit)
    covered = [column for step in steps for start, end in step.runs for column in range(start, end)]
    assert covered == [column for column in range(columns) if classes[column // 128] != SKIPPED]
    masked = []
    for step in steps:
        assert 0 < step.columns <= limit
        gathered = [column for start, end in step.runs for column in range(start, end)]
        for offset, start, end in step.partial:
            assert gathered[offset : offset + end - start] == list(range(start, end))
            masked += range(start, end)
    assert masked == [column for column in range(columns) if classes[column // 128] == PARTIAL]


@pytest.mark.parametrize(("columns", "budget"), [(128, 1 << 20), (256, 1 << 20), (16384, 128 * 128 * 2), (16384, 1)])
def test_small_steps_give_the_same_result(monkeypatch: pytest.MonkeyPatch, columns: int, budget: int) -> None:
    monkeypatch.setattr(row_tiles, "MAX_COLUMNS", columns)
    monkeypatch.setattr(row_tiles, "SCORES_CPU", budget)
    lts = torch.randint(0, 320, (1, 2, 300), dtype=torch.int32, generator=torch.Generator().manual_seed(2))
    lts[..., :128] = 0  # the first step of every row holds no key
    for mask in (ColumnMask(lts=lts, causal=True, seqlen_q=300, seqlen_k=300), documents(300, 140, causal=False), None):
        check(mask, *tensors(2, 300, 300, heads=4, kv_heads=2, width=4))


@pytest.mark.parametrize(("heads", "kv_heads", "batch"), [(2, 2, 1), (32, 1, 4), (64, 8, 16)])
def test_scratch_is_bounded_at_any_length(heads: int, kv_heads: int, batch: int) -> None:
    length = 1 << 17
    q, k = torch.empty((batch, 1, heads, 64)), torch.empty((batch, 1, kv_heads, 64))
    layout = Layout(q.expand(-1, length, -1, -1), k.expand(-1, length, -1, -1))
    mask = ColumnMask(lts=torch.full((1, 1, length), length, dtype=torch.int32), causal=True, seqlen_q=length, seqlen_k=length)
    classes = torch.zeros((1, 1, 1024, 1024), dtype=torch.uint8)
    classes[0, 0, -1] = FULL
    rows_of_tile = 128 * heads // kv_heads
    pieces = list(RowTiles(layout, mask, classes).work(0, 0))
    assert sum(piece.items.stop - piece.items.start for piece in pieces) == batch * kv_heads
    for piece in pieces:
        items = piece.items.stop - piece.items.start
        for step in piece.steps:
            assert step.columns <= row_tiles.MAX_COLUMNS
            assert items * rows_of_tile * step.columns <= max(row_tiles.SCORES_CPU, rows_of_tile * 128)


def differs(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Which rows of ``[1, S, H, D]`` differ by more than rounding."""
    return ((a - b).abs() > 1e-9).flatten(2).any(-1)[0]


def test_a_tile_dropped_from_the_class_map_is_dropped_from_the_result() -> None:
    q, k, v, dout, _ = tensors(1, 400, 400)
    mask = ColumnMask(causal=True, seqlen_q=400, seqlen_k=400)
    classes = class_of_tiles(mask)
    scale = 0.25
    out, lse = reference.forward(q, k, v, mask, scale)
    grads = reference.backward(dout, None, q, k, v, out, lse, mask, scale)
    for got, want in zip(reference.forward(q, k, v, mask, scale, classes=classes), (out, lse), strict=True):
        assert torch.equal(got, want)
    classes[0, 0, 2, 1] = SKIPPED
    lost, _ = reference.forward(q, k, v, mask, scale, classes=classes)
    changed = differs(lost, out)
    assert changed[256:384].all()
    assert not changed[:256].any()
    assert not changed[384:].any()
    lost_grads = reference.backward(dout, None, q, k, v, out, lse, mask, scale, classes=classes)
    for got, want, first, end in zip(lost_grads, grads, (256, 128, 128), (384, 256, 256), strict=True):
        changed = differs(got, want)
        assert changed[first:end].all()
        assert not changed[:first].any()
        assert not changed[end:].any()


def test_a_class_map_of_the_wrong_shape_is_refused() -> None:
    q, k, v, *_ = tensors(1, 200, 200)
    mask = ColumnMask(causal=True, seqlen_q=200, seqlen_k=200)
    for classes in (torch.zeros((1, 1, 2, 3), dtype=torch.uint8), torch.zeros((1, 1, 2, 2))):
        with pytest.raises(FM3Error, match=r"expected torch.uint8 \(1, 1, 2, 2\)"):
            reference.forward(q, k, v, mask, 1.0, classes=classes)


def test_gradients_that_nobody_needs_are_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v, dout, _ = tensors(1, 20, 20)
    mask = ColumnMask(causal=True, seqlen_q=20, seqlen_k=20)
    out, lse = reference.forward(q, k, v, mask, 1.0)
    full = reference.backward(dout, None, q, k, v, out, lse, mask, 1.0)
    for bits in range(8):
        needs = (bool(bits & 1), bool(bits & 2), bool(bits & 4))
        some = reference.backward(dout, None, q, k, v, out, lse, mask, 1.0, needs=needs)
        for need, got, want in zip(needs, some, full, strict=True):
            assert (got is None) == (not need)
            assert got is None or torch.equal(got, want)
    calls = []
    real = torch.bmm
    monkeypatch.setattr(torch, "bmm", lambda *args, **kwargs: calls.append(1) or real(*args, **kwargs))
    reference.backward(dout, None, q, k, v, out, lse, mask, 1.0, needs=(False, False, True))
    assert calls == []


def test_log2_e_turns_base_two_into_natural() -> None:
    assert math.isclose(2**reference.LOG2_E, math.e)
