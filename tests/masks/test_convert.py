"""Converters against the dense oracle: what comes out is repainted element by element and compared."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_masks import random_masks
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, create_mask, flex_attention

from masks.column_mask import ColumnMask, MaskError, tile_count
from masks.convert import (
    AttentionSlice,
    SliceType,
    from_dense,
    to_cu_seqlens,
    to_flex_block_mask,
    to_mask_mod,
    to_slices,
)
from masks.dense import dense
from masks.documents import documents_from_lengths, paper_documents
from masks.families import FAMILIES, build_mask
from masks.tiles import SKIPPED, class_of_tiles, tile_counts

SIZE = 70


def family(name: str, seqlen: int = SIZE, **more: int) -> ColumnMask:
    documents = paper_documents(seqlen, "b") if FAMILIES[name].needs_documents else None
    return build_mask(name, seqlen, documents=documents, **more)


def seen_by_all(mask: ColumnMask) -> Tensor:
    """The oracle where it is quick enough, else the definition of visibility, which is tested against the oracle."""
    if mask.batch * mask.heads * mask.seqlen_q * mask.seqlen_k <= 10_000:
        return dense(mask)
    seen = mask.visible(torch.arange(mask.seqlen_q), torch.arange(mask.seqlen_k))
    return seen.expand(mask.batch, mask.heads, -1, -1)


def seen_by_query_heads(mask: ColumnMask, heads_q: int, batch: int) -> Tensor:
    seen = seen_by_all(mask).repeat_interleave(heads_q // mask.heads, dim=1)
    return seen.expand(batch, heads_q, -1, -1)


def on_a_grid(mask: ColumnMask, heads_q: int, batch: int) -> Tensor:
    """The element function called with index tensors, as FlexAttention's kernels do."""
    sizes = (batch, heads_q, mask.seqlen_q, mask.seqlen_k)
    index = [torch.arange(n).view([-1 if axis == a else 1 for a in range(4)]) for axis, n in enumerate(sizes)]
    return to_mask_mod(mask, heads_q)(*index).expand(sizes)


# -- FlexAttention -----------------------------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(mask=random_masks(block_masks=True), group=st.sampled_from([1, 2, 3]))
def test_mask_mod_on_a_grid(mask: ColumnMask, group: int) -> None:
    heads_q, batch = mask.heads * group, 2
    assert torch.equal(on_a_grid(mask, heads_q, batch), seen_by_query_heads(mask, heads_q, batch))


def test_mask_mod_under_the_library_s_own_builder() -> None:
    for name in FAMILIES:
        mask = family(name, batch=2, heads=2)
        built = create_mask(to_mask_mod(mask, 4), 2, 4, SIZE, SIZE, device="cpu")
        assert torch.equal(built, seen_by_query_heads(mask, 4, 2)), name


def test_query_heads_must_be_a_multiple_of_mask_heads() -> None:
    mask = family("random_eviction", heads=2)
    for convert in (to_mask_mod, to_flex_block_mask):
        with pytest.raises(MaskError, match="heads_q is 3; it must be a multiple of the 2 mask heads"):
            convert(mask, 3)


def test_vectors_that_are_views_are_read_right() -> None:
    indices = torch.randint(0, 20, (2, 3, 20, 4), dtype=torch.int32, generator=torch.Generator().manual_seed(0))
    mask = ColumnMask.from_startend_row_indices(indices, causal=False)
    assert not mask.lts.is_contiguous()
    assert torch.equal(on_a_grid(mask, 3, 2), dense(mask))


@st.composite
def tiled_masks(draw: st.DrawFn) -> ColumnMask:
    """Lengths around the tile edges, vectors constant over runs so that every tile class occurs."""
    sizes = st.sampled_from([1, 127, 128, 129, 256, 300])
    rows, columns = draw(sizes), draw(sizes)
    causal, names = draw(st.sampled_from([(True, 0), (True, 1), (True, 2), (False, 2), (False, 4)]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    batch, heads = draw(st.sampled_from([(1, 1), (2, 1), (1, 2), (2, 2)]))
    if names == 0:
        mask = ColumnMask(causal=True, seqlen_q=rows, seqlen_k=columns)
    else:
        runs = torch.randint(-20, rows + 40, (batch, heads, columns // 100 + 1, names), generator=generator, dtype=torch.int32)
        indices = runs.repeat_interleave(100, dim=2)[:, :, :columns].contiguous()
        mask = ColumnMask.from_startend_row_indices(indices, causal=causal, seqlen_q=rows)
    if draw(st.booleans()):
        shape = (mask.batch, 1, tile_count(rows), tile_count(columns))
        mask = mask.with_block_mask(torch.rand(shape, generator=generator) < 0.6)
    return mask


def blocks(counts: Tensor, indices: Tensor, columns: int) -> Tensor:
    """Block lists as bool [B, H, rows of blocks, columns of blocks], each block listed once."""
    out = torch.zeros((*counts.shape, columns), dtype=torch.int64)
    for place in torch.cartesian_prod(*[torch.arange(n) for n in counts.shape]).tolist():
        for column in indices[tuple(place)][: counts[tuple(place)]].tolist():
            out[(*place, column)] += 1
    assert int(out.max()) <= 1
    return out.bool()


def elements(tiles: Tensor, rows: int, columns: int) -> Tensor:
    return tiles.repeat_interleave(128, dim=2).repeat_interleave(128, dim=3)[:, :, :rows, :columns]


@settings(max_examples=60, deadline=None)
@given(mask=tiled_masks(), group=st.sampled_from([1, 2]))
def test_block_mask_is_exact(mask: ColumnMask, group: int) -> None:
    heads_q = mask.heads * group
    made = to_flex_block_mask(mask, heads_q)
    rows, columns = mask.seqlen_q, mask.seqlen_k
    expected_heads = heads_q if mask.heads > 1 else 1
    assert made.seq_lengths == (rows, columns)
    assert made.BLOCK_SIZE == (128, 128)
    assert made.kv_indices.dtype == made.full_kv_indices.dtype == made.kv_num_blocks.dtype == torch.int32
    assert made.kv_num_blocks.shape == (mask.batch, expected_heads, tile_count(rows))
    partial = blocks(made.kv_num_blocks, made.kv_indices, tile_count(columns))
    full = blocks(made.full_kv_num_blocks, made.full_kv_indices, tile_count(columns))
    assert not bool((partial & full).any())
    wanted = seen_by_query_heads(mask, heads_q, mask.batch)[:, :expected_heads]
    # unlisted blocks hide all, full blocks show all, listed partial ones go by the element function
    by_element = on_a_grid(mask, heads_q, mask.batch)[:, :expected_heads]
    assert torch.equal(elements(full, rows, columns) | (elements(partial, rows, columns) & by_element), wanted)
    # a kernel runs full blocks without looking at the lengths: none may be short
    if rows % 128:
        assert not bool(full[:, :, -1].any())
    if columns % 128:
        assert not bool(full[..., -1].any())
    live = class_of_tiles(mask).repeat_interleave(group if mask.heads > 1 else 1, dim=1) != SKIPPED
    assert torch.equal(partial | full, live)
    assert torch.equal(made.to_dense().bool(), live)
    by_columns = blocks(made.q_num_blocks, made.q_indices, tile_count(rows)).transpose(2, 3)
    full_by_columns = blocks(made.full_q_num_blocks, made.full_q_indices, tile_count(rows)).transpose(2, 3)
    assert torch.equal(by_columns, partial)
    assert torch.equal(full_by_columns, full)


def test_block_mask_lists_what_the_library_would_list() -> None:
    for name in FAMILIES:
        mask = family(name, 500, batch=2, heads=2)
        made = to_flex_block_mask(mask, 2)
        if made is None:
            assert name == "full"
            continue
        batch, heads = made.kv_num_blocks.shape[:2]
        theirs = create_block_mask(to_mask_mod(mask, 2), batch, heads, 500, 500, device="cpu")
        assert torch.equal(made.to_dense(), theirs.to_dense()), name
        assert torch.equal(made.full_kv_num_blocks, theirs.full_kv_num_blocks), name


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_block_mask_through_flex_attention() -> None:
    generator = torch.Generator().manual_seed(0)
    q = torch.randn((2, 4, 150, 16), generator=generator)
    k, v = torch.randn((2, 2, 2, 200, 16), generator=generator)
    indices = torch.randint(0, 150, (2, 2, 200, 2), generator=generator, dtype=torch.int32)
    indices[0, 0, :, 0], indices[0, 0, :, 1] = 150, 10  # rows 0..9 of one head see nothing
    mask = ColumnMask.from_startend_row_indices(indices, causal=False, seqlen_q=150)
    out = flex_attention(q, k, v, block_mask=to_flex_block_mask(mask, 4), enable_gqa=True)
    seen = seen_by_query_heads(mask, 4, 2)
    scores = q @ k.repeat_interleave(2, dim=1).transpose(-1, -2) / 4
    weights = scores.masked_fill(~seen, -torch.inf).softmax(-1).nan_to_num(0.0)
    torch.testing.assert_close(out, weights @ v.repeat_interleave(2, dim=1))
    assert bool((out[0, :2, :10] == 0).all())


def test_long_block_mask_stays_small() -> None:
    mask = family("causal_document", 131072)
    made = to_flex_block_mask(mask, 32)
    tensors = [made.kv_num_blocks, made.kv_indices, made.full_kv_num_blocks, made.full_kv_indices]
    tensors += [made.q_num_blocks, made.q_indices, made.full_q_num_blocks, made.full_q_indices]
    assert max(t.numel() for t in tensors) == 1024 * 1024
    counts = tile_counts(mask)
    assert (int(made.kv_num_blocks.sum()), int(made.full_kv_num_blocks.sum())) == (counts.partial, counts.full)


def test_many_heads_are_listed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    mask = family("block_sparse", 700, batch=2, heads=3)
    whole = to_flex_block_mask(mask, 6)
    monkeypatch.setattr("masks.convert.flex._SORTED_AT_ONCE", 1)
    parts = to_flex_block_mask(mask, 6)
    assert torch.equal(whole.kv_indices, parts.kv_indices)
    assert torch.equal(whole.full_kv_num_blocks, parts.full_kv_num_blocks)


def test_full_and_empty_masks() -> None:
    assert to_flex_block_mask(family("full")) is None
    with pytest.raises(MaskError, match="at least one row"):
        to_flex_block_mask(ColumnMask(causal=True, seqlen_q=0, seqlen_k=5))


# -- attention slices --------------------------------------------------------------------------------------------------


def paint(slices: list[AttentionSlice], rows: int, columns: int) -> Tensor:
    """How often each element is covered, by the definition of the four types."""
    times = torch.zeros((rows, columns), dtype=torch.int64)
    i, j = torch.arange(rows)[:, None], torch.arange(columns)
    for (q0, q1), (k0, k1), kind in slices:
        assert 0 <= q0 < q1 <= rows
        assert 0 <= k0 < k1 <= columns
        part = (i >= q0) & (i < q1) & (j >= k0) & (j < k1)
        if kind in (SliceType.CAUSAL, SliceType.BICAUSAL):
            part &= j - k1 <= i - q1
        if kind in (SliceType.INVCAUSAL, SliceType.BICAUSAL):
            part &= j - k0 >= i - q0
        times += part
    return times


@settings(max_examples=250, deadline=None)
@given(mask=random_masks())
def test_slices_cover_once(mask: ColumnMask) -> None:
    seen = dense(mask)
    slices = to_slices(mask)
    assert len(slices) == mask.batch
    for b, heads in enumerate(slices):
        assert len(heads) == mask.heads
        for h, one in enumerate(heads):
            assert torch.equal(paint(one, mask.seqlen_q, mask.seqlen_k), seen[b, h].long())


@settings(max_examples=120, deadline=None)
@given(
    rows=st.integers(1, 30),
    columns=st.integers(1, 30),
    left=st.integers(-35, 35),
    width=st.integers(1, 40),
    runs=st.integers(1, 2),
)
def test_slices_of_bands(rows: int, columns: int, left: int, width: int, runs: int) -> None:
    """Diagonal bands of any offset and width, one or two of them: the slanted types and their merges."""
    i, j = torch.arange(rows)[:, None], torch.arange(columns)
    seen = (i - j >= left) & (i - j < left + width)
    if runs == 2:
        seen |= i - j < left - 3
    mask = from_dense(seen[None, None])
    (slices,) = to_slices(mask)[0]
    assert torch.equal(paint(slices, rows, columns), seen.long())
    assert len(slices) <= 8 * runs  # whatever the size


@pytest.mark.parametrize("name", [n for n in FAMILIES if n not in ("random_eviction", "block_sparse")])
def test_families_need_few_slices(name: str) -> None:
    mask = family(name, 200)
    (slices,) = to_slices(mask)[0]
    assert torch.equal(paint(slices, 200, 200), mask.visible(torch.arange(200), torch.arange(200))[0, 0].long())
    documents = len(paper_documents(200, "b"))
    most = {
        "full": 1,
        "causal": 1,
        "sliding_window": 2,
        "causal_document": documents,
        "document": documents,
        "share_question": 8 * documents,  # question twice and at most six answers
        "global_sliding_window": 9,
        "causal_blockwise": documents + 1,
        "prefix_lm_document": 2 * documents,
        "prefix_lm_causal": 2,
        "qk_sparse": 2 * documents,
    }
    assert len(slices) <= most[name]


def test_slices_at_128k() -> None:
    (slices,) = to_slices(family("sliding_window", 131072))[0]
    assert slices == [
        AttentionSlice((0, 8191), (0, 8191), SliceType.CAUSAL),
        AttentionSlice((8191, 131072), (0, 131072), SliceType.BICAUSAL),
    ]
    assert [int(t) for t in (SliceType.FULL, SliceType.CAUSAL, SliceType.INVCAUSAL, SliceType.BICAUSAL)] == [0, 1, 2, 3]


def test_slices_refuse() -> None:
    with pytest.raises(MaskError, match="mask head 0 needs more than 4096 attention slices"):
        to_slices(family("random_eviction", 16384))
    with pytest.raises(MaskError, match="needs more than 3 attention slices"):
        to_slices(build_mask("document", 8, documents=documents_from_lengths([2, 2, 2, 2])), limit=3)
    with pytest.raises(MaskError, match="cannot carry a block mask"):
        to_slices(family("block_sparse"))


# -- cu_seqlens ----------------------------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(lengths=st.lists(st.integers(1, 6), min_size=1, max_size=5), causal=st.booleans(), spelling=st.sampled_from("abc"))
def test_cu_seqlens_of_documents(lengths: list[int], causal: bool, spelling: str) -> None:
    size = sum(lengths)
    mask = build_mask("causal_document" if causal else "document", size, documents=documents_from_lengths(lengths))
    seen = dense(mask)
    if spelling == "b":
        mask = mask.without_causal_flag()
    elif spelling == "c":
        mask = from_dense(seen)
    packed = to_cu_seqlens(mask)
    assert packed.cu_seqlens.dtype == torch.int32
    assert torch.equal(unpack(packed.cu_seqlens.tolist(), packed.causal, packed.window, size), seen[0, 0])
    if max(lengths) > 1:  # documents of one token have several right answers
        assert packed.cu_seqlens.tolist() == [sum(lengths[:i]) for i in range(len(lengths) + 1)]
        assert (packed.causal, packed.window) == (causal, None)


def unpack(cu_seqlens: list[int], causal: bool, window: int | None, size: int) -> Tensor:
    i, j = torch.arange(size)[:, None], torch.arange(size)
    seen = torch.zeros((size, size), dtype=torch.bool)
    for begin, end in pairwise(cu_seqlens):
        seen |= (i >= begin) & (i < end) & (j >= begin) & (j < end)
    if causal:
        seen &= j <= i
    return seen if window is None else seen & (i - j < window)


@settings(max_examples=300, deadline=None)
@given(mask=random_masks(square=True, max_rows=6))
def test_cu_seqlens_are_exact_or_refused(mask: ColumnMask) -> None:
    try:
        packed = to_cu_seqlens(mask)
    except MaskError:
        return
    seen = dense(mask)
    assert torch.equal(unpack(*packed, mask.seqlen_k).expand(seen.shape), seen)


@pytest.mark.parametrize("window", [1, 2, 5, 69, 70, 1000])
def test_cu_seqlens_of_windows(window: int) -> None:
    packed = to_cu_seqlens(family("sliding_window", window=window))
    assert (packed.cu_seqlens.tolist(), packed.causal) == ([0, SIZE], True)
    assert packed.window == (window if window < SIZE else None)


def test_cu_seqlens_of_full_and_causal() -> None:
    for name in ("full", "causal"):
        packed = to_cu_seqlens(family(name))
        assert (packed.cu_seqlens.tolist(), packed.causal, packed.window) == ([0, SIZE], name == "causal", None)


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (family("share_question"), "do not end at the end of a document"),
        (family("prefix_lm_document"), "do not start at the start of a document"),
        (family("global_sliding_window"), "hidden in the middle"),
        (family("causal_blockwise"), "hidden in the middle"),
        (family("block_sparse"), "block mask"),
        (ColumnMask(seqlen_q=3, seqlen_k=4), "3 x 4"),
        (ColumnMask(), "0 x 0"),
        (ColumnMask(lts=torch.zeros(1, 1, 2, dtype=torch.int32), causal=True, seqlen_q=2, seqlen_k=2), "hidden from every row"),
        (ColumnMask(lts=torch.tensor([[[1, 2]], [[2, 2]]], dtype=torch.int32), causal=True, seqlen_q=2, seqlen_k=2), "differs"),
    ],
)
def test_cu_seqlens_refusals(mask: ColumnMask, message: str) -> None:
    with pytest.raises(MaskError, match=message):
        to_cu_seqlens(mask)


# -- from dense ----------------------------------------------------------------------------------------------------------


@settings(max_examples=250, deadline=None)
@given(mask=random_masks())
def test_from_dense_round_trip(mask: ColumnMask) -> None:
    seen = dense(mask)
    back = from_dense(seen)
    assert (back.seqlen_q, back.seqlen_k) == (mask.seqlen_q, mask.seqlen_k)
    assert torch.equal(dense(back).expand_as(seen), seen)


@settings(max_examples=250, deadline=None)
@given(bits=st.lists(st.lists(st.booleans(), min_size=6, max_size=6), min_size=1, max_size=7))
def test_from_dense_exact_or_refused(bits: list[list[bool]]) -> None:
    seen = torch.tensor(bits)[None, None]
    runs = [sum(1 for i, row in enumerate(bits) if not row[j] and (i == 0 or bits[i - 1][j])) for j in range(6)]
    if max(runs) > 2:
        first = next(j for j, n in enumerate(runs) if n > 2)
        with pytest.raises(MaskError, match=f"column {first} of .* hides {runs[first]} separate runs"):
            from_dense(seen)
    else:
        assert torch.equal(dense(from_dense(seen)).expand_as(seen), seen)


@pytest.mark.parametrize("name", [n for n in FAMILIES if n != "block_sparse"])
def test_from_dense_skips_as_many_tiles(name: str) -> None:
    mask = family(name, 200)
    back = from_dense(seen_by_all(mask))
    for tile in (4, 8, 16):
        ours, theirs = tile_counts(back, tile, tile), tile_counts(mask, tile, tile)
        assert ours.skipped >= theirs.skipped
        assert ours.full >= theirs.full


def test_from_dense_takes_the_smallest_form() -> None:
    forms = {
        "full": (False, ()),
        "causal": (True, ()),
        "sliding_window": (True, ("lts",)),
        "causal_document": (True, ("lts",)),
        "document": (False, ("lts", "ute")),
        "share_question": (True, ("lts",)),
        "global_sliding_window": (False, ("lts", "lte", "uts", "ute")),
        "causal_blockwise": (True, ("lts", "lte")),
        "prefix_lm_document": (False, ("lts", "ute")),
        "prefix_lm_causal": (False, ("lts", "ute")),
        "random_eviction": (True, ("lts",)),
    }
    for name, form in forms.items():
        back = from_dense(seen_by_all(family(name, 128)))
        assert (back.causal, back.vectors) == form, name


def test_placement() -> None:
    # columns: top run; bottom run; inner run above the diagonal; inner run below it; two inner runs; all hidden
    hidden = ["1000000", "0000011", "0000000", "0000110", "0101000", "1111111", "0110000"]
    seen = torch.tensor([[line[i] == "0" for line in hidden] for i in range(7)])[None, None]
    back = from_dense(seen)
    assert back.vectors == ("lts", "lte", "uts", "ute")
    columns = list(zip(*(getattr(back, n)[0, 0].tolist() for n in ("lts", "lte", "uts", "ute")), strict=True))
    empty_lower, empty_upper = (7, 7), (0, 0)
    assert columns == [
        (*empty_lower, 0, 1),
        (5, 7, *empty_upper),
        (*empty_lower, *empty_upper),
        (4, 6, *empty_upper),
        (3, 4, 1, 2),
        (0, 7, 0, 7),
        (*empty_lower, 1, 3),
    ]


def test_a_hidden_column_does_not_cost_tiles() -> None:
    seen = torch.zeros((1, 1, 16, 16), dtype=torch.bool)
    seen[..., :8, :8] = seen[..., 8:, 8:] = True
    seen[..., 3] = seen[..., 12] = False
    assert tile_counts(from_dense(seen), 8, 8).skipped == 2


@pytest.mark.parametrize("bad", [torch.ones(2, 2, dtype=torch.bool), torch.ones(1, 1, 2, 2)])
def test_from_dense_refuses(bad: Tensor) -> None:
    with pytest.raises(MaskError, match=r"expected torch.bool \[B, Hm, Sq, Sk\]"):
        from_dense(bad)
