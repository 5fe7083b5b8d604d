"""Attention over several ranks is attention on one device: out, LSE and gradients, whatever the mask, strategy and number."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from processes import run_ranks
from torch import Tensor

from context_parallel import ContextParallel
from context_parallel.group import ContextParallelError
from context_parallel.strategies import STRATEGIES
from fm3_kernel import flashmask_attention
from masks.column_mask import ColumnMask
from masks.documents import documents_from_lengths, paper_documents
from masks.families import FAMILIES, build_mask

TOLERANCE = 1e-10
"""fp64 throughout: another order of sums, nothing else."""

NAMES = ("out", "lse", "dq", "dk", "dv")

OF_ANY_HEADS = [name for name, one in STRATEGIES.items() if one.way in ("gathered", "ring")]
"""Strategies that take any mask and any number of heads; the others have tests of their own."""


def family_mask(family: str, seqlen: int, heads: int = 1, batch: int = 1, seed: int = 0) -> ColumnMask:
    documents = paper_documents(seqlen, "b") if FAMILIES[family].needs_documents else None
    return build_mask(family, seqlen, documents=documents, heads=heads, batch=batch, seed=seed)


def inputs(
    seqlen: int, batch: int = 1, heads: int = 4, kv_heads: int = 2, dtype: torch.dtype = torch.float64, width: int = 8
) -> list[Tensor]:
    """q, k, v, dout, dlse of the whole sequence, the same on every rank; dlse as ``[B, S, Hq]`` so that it can be sharded."""
    generator = torch.Generator().manual_seed(seqlen)
    long, short = (batch, seqlen, heads, width), (batch, seqlen, kv_heads, width)
    shapes = [long, short, short, long, (batch, seqlen, heads)]
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]


def alone(mask: ColumnMask, tensors: list[Tensor]) -> list[Tensor]:
    """out, lse, dq, dk, dv on one device; lse as ``[B, S, Hq]``."""
    q, k, v = (x.clone().requires_grad_() for x in tensors[:3])
    out, lse = flashmask_attention(q, k, v, mask, return_lse=True)
    grads = torch.autograd.grad([out, lse], [q, k, v], [tensors[3], tensors[4].transpose(1, 2).to(lse.dtype)])
    return [out.detach(), lse.detach().transpose(1, 2), *grads]


def together(cp: ContextParallel, tensors: list[Tensor]) -> list[Tensor]:
    """The same of this rank's rows."""
    q, k, v, dout, dlse = (cp.shard(x) for x in tensors)
    q, k, v = (x.requires_grad_() for x in (q, k, v))
    out, lse = cp.attention(q, k, v, return_lse=True)
    grads = torch.autograd.grad([out, lse], [q, k, v], [dout, dlse.transpose(1, 2).to(lse.dtype)])
    return [out.detach(), lse.detach().transpose(1, 2), *grads]


def assert_rows(cp: ContextParallel, got: list[Tensor], want: list[Tensor], what: str, tolerance: float = TOLERANCE) -> None:
    for name, here, whole in zip(NAMES, got, want, strict=True):
        there = cp.shard(whole)
        assert here.shape == there.shape and here.dtype == there.dtype, f"{what}, rank {cp.rank}: {name} is {here.shape}"
        assert not here.isnan().any(), f"{what}, rank {cp.rank}: {name} has NaN"
        where = f"{what}, rank {cp.rank}, {name}: "
        torch.testing.assert_close(*(here.double(), there.double()), rtol=tolerance, atol=tolerance, msg=where.__add__)


# -- the families ----------------------------------------------------------------------------------------------------


def families(rank: int, file: str, seqlen: int) -> None:
    tensors = inputs(seqlen)
    for family, want in torch.load(file).items():
        mask = family_mask(family, seqlen)
        for strategy in OF_ANY_HEADS:
            cp = ContextParallel(None, mask, strategy=strategy, chunk=128)
            assert_rows(cp, together(cp, tensors), want, f"{family} by {strategy}")


def check_families(ranks: int, seqlen: int, folder: Path) -> None:
    tensors = inputs(seqlen)
    torch.save({family: alone(family_mask(family, seqlen), tensors) for family in FAMILIES}, folder / "want.pt")
    run_ranks(families, ranks, folder, str(folder / "want.pt"), seqlen)


@pytest.mark.parametrize(("ranks", "seqlen"), [(2, 512), (3, 600), (4, 600)])
def test_every_family_by_every_strategy(ranks: int, seqlen: int, tmp_path: Path) -> None:
    """Even and uneven shards, a short last chunk and unit, chunks that do not divide by the ranks, GQA."""
    check_families(ranks, seqlen, tmp_path)


@pytest.mark.slow
def test_eight_ranks(tmp_path: Path) -> None:
    check_families(8, 2500, tmp_path)


# -- how units are brought -----------------------------------------------------------------------------------------------


def ways_of_gathering(rank: int) -> None:
    """Parts of any number, keys kept or brought again, nodes: always the same numbers, and the same bits every time."""
    tensors = inputs(900)
    for family in ("causal_document", "full", "block_sparse"):
        mask = family_mask(family, 900)
        want = alone(mask, tensors)
        for how in ({"stages": 0}, {"stages": 3}, {"stages": 0, "keep": False}, {"stages": 2, "keep": False}):
            for nodes in ({}, {"ranks_per_node": 2}, {"ranks_per_node": 1}):
                cp = ContextParallel(None, mask, chunk=128, **how, **nodes)
                got = together(cp, tensors)
                assert_rows(cp, got, want, f"{family}, {how}, {nodes}")
            # Of two nodes of two: the same bits every time.
            cp = ContextParallel(None, mask, chunk=128, **how, ranks_per_node=2)
            assert all(torch.equal(a, b) for a, b in zip(*(together(cp, tensors) for _ in range(2)), strict=True))


def test_ways_of_gathering(tmp_path: Path) -> None:
    run_ranks(ways_of_gathering, 4, tmp_path)


# -- strategies that do not take everything ------------------------------------------------------------------------------


def swapped_heads(rank: int) -> None:
    """Every family, uneven rows, masks of one head, of every KV head, of every query head."""
    world = dist.get_world_size()
    for family in FAMILIES:
        tensors, mask = inputs(600, heads=2 * world, kv_heads=world), family_mask(family, 600)
        cp = ContextParallel(None, mask, strategy="ulysses")
        assert_rows(cp, together(cp, tensors), alone(mask, tensors), f"{family} by ulysses")
    for heads in (world, 2 * world):
        mask, tensors = family_mask("random_eviction", 550, heads, 2), inputs(550, 2, 2 * world, world)
        cp = ContextParallel(None, mask, strategy="ulysses", placement="dual_chunk")
        assert_rows(cp, together(cp, tensors), alone(mask, tensors), f"{heads} mask heads by ulysses")
    for seqlen in (1, 129):
        mask, tensors = family_mask("causal", seqlen), inputs(seqlen, heads=world, kv_heads=world)
        cp = ContextParallel(None, mask, strategy="ulysses")
        assert_rows(cp, together(cp, tensors), alone(mask, tensors), f"{seqlen} rows by ulysses")
    # Out alone, and its LSE alone: the gradient of the other is None on every rank.
    for index in (0, 1):
        tensors = inputs(300, heads=world, kv_heads=world)
        tensors[4 - index].zero_()
        cp = ContextParallel(None, family_mask("causal", 300), strategy="ulysses")
        q, k, v, *douts = (cp.shard(x).requires_grad_() for x in tensors)
        result = cp.attention(q, k, v, return_lse=True)[index]
        given = douts[0] if index == 0 else douts[1].transpose(1, 2)
        want = alone(cp.mask, tensors)[2:]
        for got, whole in zip(torch.autograd.grad(result, [q, k, v], given.to(result.dtype)), want, strict=True):
            torch.testing.assert_close(got, cp.shard(whole), rtol=TOLERANCE, atol=TOLERANCE)
    odd = world + 1
    with pytest.raises(ContextParallelError, match=rf"{odd} query heads and {odd} KV heads do not divide by {world}"):
        together(ContextParallel(None, family_mask("causal", 300), strategy="ulysses"), inputs(300, 1, odd, odd))


@pytest.mark.parametrize("ranks", [2, 3])
def test_ulysses(ranks: int, tmp_path: Path) -> None:
    run_ranks(swapped_heads, ranks, tmp_path)


def of_pytorch(rank: int) -> None:
    """Forward, on a CPU; what it cannot do is refused with the reason, on all ranks."""
    tensors = inputs(512, dtype=torch.float32, width=16)
    for family in ("causal_document", "random_eviction"):
        mask = family_mask(family, 512)
        cp = ContextParallel(None, mask, strategy="flex_cp")
        with torch.no_grad():
            out, lse = cp.attention(*(cp.shard(x) for x in tensors[:3]), return_lse=True)
        want = alone(mask, tensors)
        torch.testing.assert_close(out, cp.shard(want[0]), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(lse.transpose(1, 2), cp.shard(want[1]), rtol=1e-5, atol=1e-5)
    with pytest.raises(ContextParallelError, match="no backward pass on a CPU"):
        together(cp, tensors)
    with pytest.raises(ContextParallelError, match="2 ranks takes lengths that are a multiple of 512, not 600"):
        together(ContextParallel(None, family_mask("causal", 600), strategy="flex_cp"), inputs(600))
    with pytest.raises(ContextParallelError, match="rows of its own, head and tail"):
        together(ContextParallel(None, mask, strategy="flex_cp", placement="contiguous"), tensors)


def test_flex_cp(tmp_path: Path) -> None:
    run_ranks(of_pytorch, 2, tmp_path)


# -- what else may come ------------------------------------------------------------------------------------------------


def odd_cases(rank: int) -> None:
    world = dist.get_world_size()
    for strategy in OF_ANY_HEADS:
        # Ranks with nothing to do: fewer chunks than ranks, in the extreme one row.
        for seqlen in (1, 129, 300):
            mask, tensors = family_mask("causal", seqlen), inputs(seqlen)
            cp = ContextParallel(None, mask, strategy=strategy)
            assert sum(bool(cp.plan.rows(one)) for one in range(world)) == -(-seqlen // 128) < world
            assert torch.equal(cp.unshard(cp.position_ids()[None]), torch.arange(seqlen)[None])
            assert_rows(cp, together(cp, tensors), alone(mask, tensors), f"{seqlen} rows by {strategy}")

        # Padding between and after documents: rows that see nothing, on some ranks nothing else.
        seen = torch.zeros(512, 512, dtype=torch.bool)
        seen[:100, :100] = seen[200:260, 200:260] = True
        columns = torch.arange(512)
        ends = torch.where(columns < 100, 100, torch.where((columns >= 200) & (columns < 260), 260, 0)).int()
        starts = torch.where((columns >= 200) & (columns < 260), 200, 0).int()
        mask = ColumnMask(lts=ends[None, None], ute=starts[None, None], seqlen_q=512, seqlen_k=512)
        assert torch.equal(mask.visible(columns, columns)[0, 0], seen)
        cp = ContextParallel(None, mask, strategy=strategy)
        got, tensors = together(cp, inputs(512)), inputs(512)
        assert_rows(cp, got, alone(mask, tensors), f"padding by {strategy}")
        dead = ~seen.any(1)[cp.position_ids()]
        assert (got[0][:, dead] == 0).all() and (got[1][:, dead] == -torch.inf).all() and (got[2][:, dead] == 0).all()

        # A mask of its own for every batch item and query head, MHA and GQA, and 16-bit inputs.
        mask = family_mask("random_eviction", 550, heads=4, batch=2)
        for kv_heads, dtype, tolerance in ((4, torch.float64, TOLERANCE), (1, torch.float32, 2e-5), (2, torch.bfloat16, 0.04)):
            tensors = inputs(550, 2, 4, kv_heads, dtype)
            cp = ContextParallel(None, mask, strategy=strategy)
            got = together(cp, tensors)
            assert_rows(cp, got, alone(mask, tensors), f"{dtype} by {strategy}", tolerance)
            # The same bits again, gradients from other ranks included.
            assert all(torch.equal(a, b) for a, b in zip(got, together(cp, tensors), strict=True))

        # Units larger than tiles, chunks of several units, another placement.
        mask, tensors = family_mask("document", 1100), inputs(1100)
        cp = ContextParallel(None, mask, strategy=strategy, chunk=512, unit=256, placement="contiguous")
        assert_rows(cp, together(cp, tensors), alone(mask, tensors), f"larger units by {strategy}")


def test_odd_cases(tmp_path: Path) -> None:
    run_ranks(odd_cases, 4, tmp_path)


# -- several masks, groups and layers ----------------------------------------------------------------------------------


def steps(rank: int) -> None:
    for strategy in OF_ANY_HEADS:
        tensors = inputs(600)
        first = ContextParallel(None, family_mask("causal_document", 600), strategy=strategy)
        # A mask for every step, on the rows of the first; nothing of a step is left for the next.
        for seed, family in enumerate(("random_eviction", "sliding_window", "random_eviction", "document")):
            mask = family_mask(family, 600, seed=seed)
            cp = first.with_mask(mask)
            assert cp.plan.rows(rank) == first.plan.rows(rank)
            assert_rows(cp, together(cp, tensors), alone(mask, tensors), f"step {seed} by {strategy}")

        # Two masks in one model: both forwards come first, the gradients meet.
        other = first.with_mask(family_mask("sliding_window", 600))
        whole = [x.clone().requires_grad_() for x in tensors[:3]]
        local = [first.shard(x).requires_grad_() for x in tensors[:3]]
        loss = sum(flashmask_attention(*whole, mask=cp.mask).mul(tensors[3]).sum() for cp in (first, other))
        parts = sum(cp.attention(*local).mul(cp.shard(tensors[3])).sum() for cp in (first, other))
        wanted, found = torch.autograd.grad(loss, whole), torch.autograd.grad(parts, local)
        for a, b in zip(found, wanted, strict=True):
            torch.testing.assert_close(a, first.shard(b), rtol=TOLERANCE, atol=TOLERANCE)

        # Any of q, k and v alone, and none.
        without_lse = alone(other.mask, [*tensors[:4], torch.zeros_like(tensors[4])])
        for names in ("q", "k", "v", ""):
            q, k, v = (first.shard(x).requires_grad_(name in names) for name, x in zip("qkv", tensors, strict=False))
            out = first.with_mask(other.mask).attention(q, k, v)
            assert out.requires_grad == bool(names)
            if names:
                out.backward(first.shard(tensors[3]))
            for name, x, want in zip("qkv", (q, k, v), without_lse[2:], strict=True):
                assert (x.grad is not None) == (name in names)
                if name in names:
                    torch.testing.assert_close(x.grad, first.shard(want), rtol=TOLERANCE, atol=TOLERANCE)

        # Layers: the whole goes in, the whole comes out, the gradient of what all share is summed over the ranks.
        x = tensors[0].flatten(2)
        weights = torch.randn(3, 32, 32, generator=torch.Generator().manual_seed(1), dtype=torch.float64) / 6

        def layer(x: Tensor, weights: Tensor, attend: object) -> Tensor:
            q, k, v = ((x @ w).unflatten(2, (4, 8)) for w in weights)
            return x + attend(q, k, v).flatten(2)

        def model(x: Tensor, weights: Tensor, attend: object) -> Tensor:
            return layer(layer(x, weights, attend), weights, attend)

        inside = [x.clone().requires_grad_(), weights.clone().requires_grad_()]
        outside = [x.clone().requires_grad_(), weights.clone().requires_grad_()]
        want = model(*outside, partial(flashmask_attention, mask=first.mask))
        got = first.unshard(model(first.shard(inside[0]), inside[1], first.attention))
        torch.testing.assert_close(got, want, rtol=TOLERANCE, atol=TOLERANCE)
        for one in (want, got):
            one.square().mean().backward()
        for mine, theirs in zip(inside, outside, strict=True):
            dist.all_reduce(mine.grad)
            torch.testing.assert_close(mine.grad, theirs.grad, rtol=TOLERANCE, atol=TOLERANCE)


def test_a_mask_for_every_step_and_layers(tmp_path: Path) -> None:
    run_ranks(steps, 3, tmp_path)


def delayed(rank: int, count: int) -> None:
    """Nobody arrives in the order of the ranks, and none of the masks comes twice."""
    delays = random.Random(rank)
    tensors = inputs(300)
    first = ContextParallel(None, family_mask("causal", 300))
    assert_rows(first, together(first, tensors), alone(first.mask, tensors), "the first step")
    cps = [ContextParallel(None, first.mask, strategy=strategy, check=False) for strategy in OF_ANY_HEADS]
    for step in range(count):
        mask = family_mask("random_eviction", 300, seed=step)
        cp = cps[step % len(cps)].with_mask(mask, check=False)
        q, k, v, dout = (cp.shard(x) for x in tensors[:4])
        leaves = [x.requires_grad_() for x in (q, k, v)]
        time.sleep(delays.choice((0, 0, 0.002, 0.01)))
        out, lse = cp.attention(*leaves, return_lse=True)
        time.sleep(delays.choice((0, 0, 0.002, 0.01)))
        grads = torch.autograd.grad(out, leaves, dout)
        want = alone(mask, [*tensors[:4], torch.zeros_like(tensors[4])])
        assert_rows(cp, [out, lse.transpose(1, 2), *grads], want, f"step {step} by {cp.strategy}")


@pytest.mark.parametrize("count", [25, pytest.param(1000, marks=pytest.mark.slow)])
def test_steps_with_delayed_arrivals(count: int, tmp_path: Path) -> None:
    run_ranks(delayed, 4, tmp_path, count)


def groups(rank: int) -> None:
    """Two groups at once, neither starts at rank 0 with its own rank numbers; and a mesh."""
    mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "cp"))
    pairs = [dist.new_group(ranks) for ranks in ([1, 2], [0, 3])]
    mine = pairs[0 if rank in (1, 2) else 1]
    three = dist.new_group([1, 2, 3])
    for strategy in OF_ANY_HEADS:
        for group, seqlen in ((mine, 400 + 100 * (rank in (1, 2))), (mesh["cp"], 400 + 100 * (rank // 2)), (three, 450)):
            if group is three and rank == 0:
                with pytest.raises(ValueError, match="not in the given group; only its members take part"):
                    ContextParallel(three, family_mask("causal", seqlen))
                continue
            mask, tensors = family_mask("causal_document", seqlen), inputs(seqlen)
            cp = ContextParallel(group, mask, strategy=strategy)
            assert cp.ranks == (3 if group is three else 2)
            assert_rows(cp, together(cp, tensors), alone(mask, tensors), f"groups by {strategy}")
    with pytest.raises(ValueError, match=r"the mesh has dimensions \('dp', 'cp'\)"):
        ContextParallel(mesh, family_mask("causal", 400))


def test_groups_that_do_not_start_at_rank_0(tmp_path: Path) -> None:
    run_ranks(groups, 4, tmp_path)


# -- GPUs ------------------------------------------------------------------------------------------------------------


def on_gpus(rank: int, exchange: str) -> None:
    """Against one GPU, by the same kernel: what differs is the order of sums, and where 16 bits are rounded."""
    tensors = [x.cuda() for x in inputs(2048, 2, 8, 2, torch.bfloat16, 64)]
    for family in FAMILIES:
        mask = family_mask(family, 2048)
        want = alone(mask.to("cuda"), tensors)
        for strategy in (name for name, one in STRATEGIES.items() if exchange == "nccl" or one.way == "gathered"):
            for how in ({}, {"stages": 2, "keep": False}) if STRATEGIES[strategy].way == "gathered" else ({},):
                # The mask may be on the host, or on each rank's own device.
                there = mask if how else mask.to("cuda")
                cp = ContextParallel(None, there, strategy=strategy, exchange=exchange, **how)
                got = together(cp, tensors)
                assert_rows(cp, got, want, f"{family} by {strategy}, {how}", 0.04)


def without_waiting(rank: int, exchange: str) -> None:
    """A mask for every step, and nothing in the loop waits for the GPU: torch raises if something does."""
    tensors = [x.cuda() for x in inputs(2048, 2, 8, 2, torch.bfloat16, 64)]
    first = ContextParallel(None, family_mask("random_eviction", 2048), exchange=exchange)
    q, k, v, dout, _ = (first.shard(x) for x in tensors)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    masks = [family_mask("random_eviction", 2048, seed=seed) for seed in range(12)]
    found = []
    torch.autograd.grad(first.attention(*leaves), leaves, dout)
    for step, cp in enumerate(first.ahead(masks)):
        if step == 4:  # streams, outboxes and pinned memory are there
            torch.cuda.set_sync_debug_mode("error")
        out = cp.attention(*leaves)
        found.append((out.detach(), torch.autograd.grad(out, leaves, dout)[0]))
    torch.cuda.set_sync_debug_mode("default")
    for mask, (out, dq) in zip(masks, found, strict=True):
        want = alone(mask.to("cuda"), [*tensors[:4], torch.zeros_like(tensors[4])])
        for here, whole in ((out, want[0]), (dq, want[2])):
            torch.testing.assert_close(here.double(), first.shard(whole).double(), rtol=0.04, atol=0.04)


@pytest.mark.hopper
@pytest.mark.multigpu
@pytest.mark.parametrize("exchange", ["nccl", "symmetric"])
@pytest.mark.parametrize("what", [on_gpus, without_waiting])
def test_two_gpus(what: Callable[..., None], exchange: str, tmp_path: Path) -> None:
    run_ranks(what, 2, tmp_path, exchange, backend="nccl", timeout=240)


# -- one rank, and no process group ------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_one_rank_needs_no_process_group_and_has_the_same_bits(strategy: str) -> None:
    mask, tensors = family_mask("prefix_lm_document", 300), inputs(300, dtype=torch.float32)
    cp = ContextParallel(None, mask, strategy=strategy)
    assert not dist.is_initialized() and (cp.rank, cp.ranks, cp.local_rows) == (0, 1, 300)
    assert all(torch.equal(a, b) for a, b in zip(together(cp, tensors), alone(mask, tensors), strict=True))
    x = tensors[0].requires_grad_()
    assert torch.equal(cp.unshard(cp.shard(x)), x)
    assert torch.equal(cp.position_ids(), torch.arange(300))


def test_positions_are_those_of_the_documents_too() -> None:
    documents = documents_from_lengths([100, 156])
    cp = ContextParallel(None, build_mask("causal_document", 256, documents=documents))
    positions = torch.cat([torch.arange(100), torch.arange(156)])[None]
    assert torch.equal(cp.shard(positions), positions)
