"""The Hopper kernel behind the public door: what it is given, what it refuses, graphs, compile, streams, prepared masks."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from random_masks import random_masks
from torch._dynamo.testing import CompileCounterWithBackend

from fm3_kernel import FM3Error, flashmask_attention, hopper, prepare_mask, reference
from masks.column_mask import ColumnMask
from masks.documents import documents_from_lengths
from masks.families import build_mask
from masks.tiles import column_block_bounds, row_tile_costs

BF16 = torch.bfloat16
pytestmark = pytest.mark.usefixtures("blocks")


def draw(*shape: int, dtype: torch.dtype = BF16, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator, device="cuda", dtype=dtype)


def inputs(batch: int, rows: int, columns: int, heads: int = 4, kv_heads: int = 2, head_dim: int = 64) -> list[torch.Tensor]:
    shapes = ((rows, heads), (columns, kv_heads), (columns, kv_heads))
    return [draw(batch, length, count, head_dim, seed=seed) for seed, (length, count) in enumerate(shapes)]


def check(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: ColumnMask, tolerance: float = 2e-2) -> torch.Tensor:
    """The kernel against the reference on the same values; the kernel's output."""
    scale = q.shape[3] ** -0.5
    out, lse = flashmask_attention(q, k, v, mask, implementation="hopper", return_lse=True)
    exact, exact_lse = reference.forward(q.float(), k.float(), v.float(), mask, scale)
    torch.testing.assert_close(lse, exact_lse, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(out.float(), exact, rtol=0, atol=tolerance)
    return out


def causal(length: int) -> ColumnMask:
    return ColumnMask(causal=True, seqlen_q=length, seqlen_k=length).to("cuda")


def document_mask(lengths: list[int]) -> ColumnMask:
    return build_mask("causal_document", sum(lengths), documents=documents_from_lengths(lengths)).to("cuda")


# -- masks --------------------------------------------------------------------------------------------------------


@pytest.mark.hopper
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(mask=random_masks(max_rows=400, max_columns=400, heads=(1, 2, 4), block_masks=True))
def test_random_masks(mask: ColumnMask) -> None:
    check(*inputs(2, mask.seqlen_q, mask.seqlen_k), mask.to("cuda"))


@pytest.mark.hopper
@pytest.mark.parametrize("head_dim", hopper.HEAD_DIMS)
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("heads", [1, 2, 4])
def test_block_masks(heads: int, batch: int, head_dim: int) -> None:
    """Alone and with vectors that have another number of heads or batch items; a row tile without any block among them."""
    keep = torch.rand((batch, heads, 5, 6), generator=torch.Generator().manual_seed(heads)) < 0.5
    keep[:, :, 2] = False
    q, k, v = inputs(2, 600, 700, head_dim=head_dim)
    check(q, k, v, ColumnMask(seqlen_q=600, seqlen_k=700).with_block_mask(keep).to("cuda"))
    for vector_batch, vector_heads in ((1, 1), (2, heads)):
        if batch in (1, vector_batch) or vector_batch == 1:
            lts = torch.randint(0, 700, (vector_batch, vector_heads, 700), dtype=torch.int32)
            mask = ColumnMask(lts=lts, causal=True, seqlen_q=600, seqlen_k=700).with_block_mask(keep)
            check(q, k, v, mask.to("cuda"))


@pytest.mark.hopper
def test_interleaved_vectors_are_read_where_they_lie() -> None:
    indices = torch.randint(0, 300, (2, 2, 300, 4), dtype=torch.int32, device="cuda")
    mask = ColumnMask.from_startend_row_indices(indices, causal=False)
    plain = ColumnMask(*(x.contiguous() for x in (mask.lts, mask.lte, mask.uts, mask.ute)), None, False, 300, 300)
    q, k, v = inputs(2, 300, 300)
    assert torch.equal(check(q, k, v, mask), flashmask_attention(q, k, v, plain))


@pytest.mark.hopper
@pytest.mark.parametrize(("batch", "heads"), [(1, 1), (2, 1), (1, 4), (2, 4)])
@pytest.mark.parametrize("columns", [1, 64, 128, 130, 1000])
def test_preparation(columns: int, batch: int, heads: int) -> None:
    """Bounds are those of ``masks.tiles`` at both tile sizes; the order is by falling cost, later rows first among equals."""
    generator = torch.Generator().manual_seed(columns)
    vectors = [torch.randint(-5, 1100, (batch, heads, columns), generator=generator, dtype=torch.int32) for _ in range(4)]
    mask = ColumnMask(*vectors, None, False, 1000, columns)
    bounds, order = (x.cpu() for x in hopper.prepare(hopper.MaskTensors.of(mask.to("cuda")), 1000)[:2])
    for tile, records in ((128, bounds[:, :, :, 0]), (64, bounds[:, :, :, 1:].flatten(2, 3))):
        expected = column_block_bounds(mask, tile)
        for at, name in enumerate(("lts", "lte", "uts", "ute")):
            lowest, highest = expected[name]
            found = records[:, :, : lowest.shape[2]]
            assert torch.equal(found[..., 2 * at], lowest)
            assert torch.equal(found[..., 2 * at + 1], highest)
    costs = (row_tile_costs(mask) * torch.tensor([2, 3])).sum(-1)
    for b in range(batch):
        for h in range(heads):
            ranked = sorted(range(costs.shape[2]), key=lambda r: (-int(costs[b, h, r]), -r))
            assert order[b, h].tolist() == ranked


# -- tensors ------------------------------------------------------------------------------------------------------


@pytest.mark.hopper
@pytest.mark.parametrize("head_dim", hopper.HEAD_DIMS)
def test_strided_inputs(head_dim: int) -> None:
    packed = draw(2, 300, 3, 4, head_dim)
    check(*packed.unbind(2), causal(300))
    check(*(draw(2, 4, 300, head_dim, seed=i).transpose(1, 2) for i in range(3)), causal(300))
    k = draw(2, 300, 1, head_dim, seed=1).expand(2, 300, 4, head_dim)
    check(draw(2, 300, 4, head_dim), k, k, causal(300))


@pytest.mark.hopper
@pytest.mark.parametrize("head_dim", hopper.HEAD_DIMS)
@pytest.mark.parametrize("length", [1, 65, 127, 129, 200, 257])
def test_nothing_outside_is_read(length: int, head_dim: int) -> None:
    """Tensors that lie inside larger ones full of NaN, the mask at the very end of its allocation."""
    surrounded = []
    for seed in range(3):
        whole = torch.full((2, length + 64, 4, head_dim), torch.nan, device="cuda", dtype=BF16)
        whole[:, 32 : 32 + length] = draw(2, length, 4, head_dim, seed=seed)
        surrounded.append(whole[:, 32 : 32 + length])
    lts = torch.full((1000,), -(2**31), dtype=torch.int32, device="cuda")
    lts[-length:] = torch.randint(1, length + 1, (length,), dtype=torch.int32, device="cuda")
    check(*surrounded, ColumnMask(lts=lts[-length:].view(1, 1, length), causal=True, seqlen_q=length, seqlen_k=length))


@pytest.mark.hopper
@pytest.mark.parametrize(("batch", "rows", "columns", "heads"), [(0, 5, 5, 2), (2, 0, 5, 2), (2, 5, 0, 2), (1, 5, 5, 0)])
def test_empty_axes(batch: int, rows: int, columns: int, heads: int) -> None:
    q, k, v = inputs(batch, rows, columns, heads, heads)
    out, lse = flashmask_attention(q, k, v, ColumnMask(seqlen_q=rows, seqlen_k=columns), return_lse=True)
    assert out.shape == q.shape
    assert bool((out == 0).all())
    assert lse.shape == (batch, heads, rows)
    assert bool((lse == -torch.inf).all())


@pytest.mark.hopper
def test_many_batch_items_and_heads() -> None:
    q, k, v = inputs(70_000, 3, 5, 1, 1)
    check(q, k, v, ColumnMask(causal=True, seqlen_q=3, seqlen_k=5).to("cuda"))
    q, k, v = inputs(1, 3, 5, 70_000, 10_000)
    check(q, k, v, ColumnMask(causal=True, seqlen_q=3, seqlen_k=5).to("cuda"))


@pytest.mark.hopper
def test_more_than_two_to_the_31_elements() -> None:
    """The last head of the last batch item lies behind every 32-bit offset."""
    length, heads, batch = 65536, 33, 8
    mask = build_mask("sliding_window", length, window=300).to("cuda")
    q, k, v = (draw(batch, length, heads, 128, seed=i) for i in range(3))
    assert q.numel() > 2**31
    out, lse = flashmask_attention(q, k, v, mask, return_lse=True)
    last = [x[-1:, :, -1:].float() for x in (q, k, v)]
    exact, exact_lse = reference.forward(*last, mask, 128**-0.5)
    torch.testing.assert_close(out[-1:, :, -1:].float(), exact, rtol=0, atol=2e-2)
    torch.testing.assert_close(lse[-1:, -1:], exact_lse, rtol=1e-4, atol=1e-3)


@pytest.mark.hopper
@pytest.mark.multigpu
def test_on_the_tensors_device_and_not_the_current_one() -> None:
    """Kernels, counters and prepared masks of a second GPU, while the first is the current one."""
    mask, dout = document_mask([300, 200]), draw(2, 500, 4, 64, seed=9)
    found = []
    for device in ("cuda:0", "cuda:1"):
        leaves = [x.to(device).requires_grad_() for x in inputs(2, 500, 500)]
        for form in (mask.to(device), prepare_mask(mask.to(device))):
            out = flashmask_attention(*leaves, form)
            gradients = torch.autograd.grad(out, leaves, dout.to(device))
            assert {x.device for x in (out, *gradients)} == {torch.device(device)}
            found.append((out, *gradients))
    assert torch.cuda.current_device() == 0
    for out, *gradients in found[1:]:
        assert torch.equal(out.cpu(), found[0][0].cpu())
        for a, b in zip(gradients, found[0][1:], strict=True):
            torch.testing.assert_close(a.cpu().float(), b.cpu().float(), rtol=0, atol=2e-2)


@pytest.mark.hopper
def test_refusals_name_what_was_given_and_what_helps() -> None:
    mask = causal(8)
    with pytest.raises(FM3Error, match=r"head dim is 96; the Hopper kernel takes 64, 128, 256\. Pad"):
        flashmask_attention(*inputs(1, 8, 8, head_dim=96), mask)
    with pytest.raises(FM3Error, match=r"float32; the Hopper kernel takes torch\.float16, torch\.bfloat16"):
        flashmask_attention(*(x.float() for x in inputs(1, 8, 8)), mask)
    q, k, v = inputs(1, 8, 8)
    with pytest.raises(FM3Error, match=r"k has stride 2 along the head dim.*contiguous"):
        flashmask_attention(q, draw(1, 8, 2, 128)[..., ::2], v, mask)
    with pytest.raises(FM3Error, match=r"q has strides .* aligned to 2 bytes.*clone"):
        flashmask_attention(draw(8 * 4 * 64 + 1)[1:].view(1, 8, 4, 64), k, v, mask)
    with pytest.raises(FM3Error, match=r"v has strides \(\d+, \d+, 65, 1\)"):
        flashmask_attention(q, k, draw(1, 8, 2, 65)[..., :64], mask)
    assert flashmask_attention(*inputs(1, 8, 8, head_dim=96), mask, implementation="reference").shape == (1, 8, 4, 96)


# -- prepared masks, graphs, compile, streams -----------------------------------------------------------------------


@pytest.mark.hopper
def test_a_prepared_mask_serves_every_head_dim_and_is_never_stale() -> None:
    mask = document_mask([100, 200, 83])
    prepared = prepare_mask(mask)
    for head_dim in hopper.HEAD_DIMS:
        q, k, v = inputs(1, 383, 383, head_dim=head_dim)
        assert torch.equal(flashmask_attention(q, k, v, prepared), flashmask_attention(q, k, v, mask))
    assert mask.lts is not None
    mask.lts[..., 7] = 9
    with pytest.raises(FM3Error, match="lts was changed in place after prepare_mask"):
        flashmask_attention(q, k, v, prepared)
    check(q, k, v, mask)


@pytest.mark.hopper
@pytest.mark.parametrize("prepare", ["not", "before", "inside"])
def test_a_replayed_graph_sees_the_mask_of_the_day(prepare: str) -> None:
    mask, other = document_mask([100, 200, 84]), document_mask([300, 4, 80])
    q, k, v = inputs(1, 384, 384)
    flashmask_attention(q, k, v, mask)  # builds and loads
    given = prepare_mask(mask) if prepare == "before" else mask
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        if prepare == "inside":
            given = prepare_mask(mask)
        out = flashmask_attention(q, k, v, given)
    for content in (mask, other):
        expected = flashmask_attention(q, k, v, content)
        assert mask.lts is not None
        assert content.lts is not None
        mask.lts.copy_(content.lts)
        q.copy_(q.clone())
        graph.replay()
        assert torch.equal(out, expected)
    if prepare == "inside":
        with pytest.raises(FM3Error, match=r"changed in place|outside of it call prepare_mask again"):
            flashmask_attention(q, k, v, given)


@pytest.mark.hopper
def test_compiled_without_recompiling_for_a_new_mask() -> None:
    counter = CompileCounterWithBackend("inductor")
    compiled = torch.compile(flashmask_attention, fullgraph=True, backend=counter)
    q, k, v = inputs(1, 384, 384)
    for lengths in ([100, 200, 84], [384], [1, 383]):
        mask = document_mask(lengths)
        assert torch.equal(compiled(q, k, v, mask), flashmask_attention(q, k, v, mask))
    assert counter.frame_count == 1
    prepared = prepare_mask(mask)
    assert torch.equal(compiled(q, k, v, prepared), flashmask_attention(q, k, v, mask))


@pytest.mark.hopper
def test_compiled_into_graphs() -> None:
    """The compiler's own CUDA graphs warm up in a pool of their own; nothing of this project may stay in it."""
    compiled = torch.compile(flashmask_attention, fullgraph=True, mode="reduce-overhead")
    for lengths in ([100, 200, 84], [384], [1, 383], [7] * 54 + [6]):
        mask = document_mask(lengths)
        q, k, v = inputs(1, 384, 384)
        expected = flashmask_attention(q, k, v, mask)
        for _ in range(3):
            torch.compiler.cudagraph_mark_step_begin()
            assert torch.equal(compiled(q, k, v, mask), expected)


@pytest.mark.hopper
def test_a_row_that_waits_for_its_first_column_does_not_wear_out_its_neighbours() -> None:
    """Rows that see only the last columns keep their warp on the exact way; what its other rows hold must stay as it is."""
    length = 65536
    lts = torch.zeros((1, 1, length), dtype=torch.int32)
    lte = torch.full((1, 1, length), 8, dtype=torch.int32)
    lte[..., -64:] = 0
    mask = ColumnMask(lts=lts, lte=lte, uts=lts.clone(), ute=lts.clone(), seqlen_q=16, seqlen_k=length).to("cuda")
    q, k, v = inputs(1, 16, length, 2, 2, 128)
    k[:, :64] = 6 * q[:, :1]  # a high base, and all weight on the first columns
    scale = 128**-0.5
    _, lse = flashmask_attention(q, k, v, mask, return_lse=True)
    _, exact = reference.forward(q.float(), k.float(), v.float(), mask, scale)
    torch.testing.assert_close(lse, exact, rtol=0, atol=1e-4)


@pytest.mark.hopper
def test_a_nan_stays_one() -> None:
    q, k, v = inputs(1, 300, 300)
    q[0, 5, 1, 3] = torch.nan
    out, lse = flashmask_attention(q, k, v, causal(300), return_lse=True)
    assert bool(out[0, 5, 1].isnan().all())
    assert bool(lse[0, 1, 5].isnan())
    assert int(lse.isnan().sum()) == 1


@pytest.mark.hopper
def test_opcheck() -> None:
    for mask in (document_mask([100, 28]), ColumnMask(seqlen_q=128, seqlen_k=128).to("cuda")):
        tensors = (mask.lts, mask.lte, mask.uts, mask.ute, mask.block_mask, None, None)
        leaves = [x.requires_grad_() for x in inputs(1, 128, 128)]
        torch.library.opcheck(
            torch.ops.fm3.attention_forward.default,
            (*leaves, *tensors, mask.causal, 0.125, False, "auto"),
            test_utils=("test_schema", "test_autograd_registration", "test_faketensor"),
        )


@pytest.mark.hopper
def test_two_streams_at_once_and_many_times_give_the_same_bits() -> None:
    mask = document_mask([300] * 10)
    q, k, v = inputs(2, 3000, 3000, 16, 4, 128)
    expected = flashmask_attention(q, k, v, mask)
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in range(2)]
    found = []
    for _ in range(50):
        for stream in streams:
            with torch.cuda.stream(stream):
                found.append(flashmask_attention(q, k, v, mask))
    torch.cuda.synchronize()
    assert all(torch.equal(out, expected) for out in found)
