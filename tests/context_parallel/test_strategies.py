"""Every strategy is a plan: what its messages bring is what its local masks attend to, told from the messages alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_masks import random_masks

from context_parallel.grid import Grid
from context_parallel.needs import visible_of_chunks
from context_parallel.placements import contiguous
from context_parallel.plan import Plan, make_plan
from context_parallel.shards import Slots, cut, pack, unpack
from context_parallel.strategies import STRATEGIES, plan_of
from masks.column_mask import ColumnMask
from masks.documents import paper_documents
from masks.families import FAMILIES, build_mask
from masks.tiles import visible_pairs

OF_UNITS = [name for name, one in STRATEGIES.items() if one.way in ("gathered", "ring")]
"""Strategies whose messages are units; the others have rows alone."""


def family_mask(family: str, seqlen: int) -> ColumnMask:
    documents = paper_documents(seqlen, "b") if FAMILIES[family].needs_documents else None
    return build_mask(family, seqlen, documents=documents)


def check(plan: Plan, mask: ColumnMask, strategy: str) -> None:
    ranks = range(plan.ranks)
    ring, everything = STRATEGIES[strategy].way == "ring", STRATEGIES[strategy].everything
    needs = plan.work.needs
    owns = [set(plan.units(rank, 0)) for rank in ranks]
    misses = [set(np.flatnonzero(needs[plan.chunks(rank)].any(0)).tolist()) - owns[rank] for rank in ranks]
    holds = [set(units) for units in owns]
    came: list[dict[int, int]] = [{} for _ in ranks]
    for stage in range(1, plan.last_stage + 1):
        brought: list[set[int]] = [set() for _ in ranks]
        for one in plan.transfers:
            if one.stage != stage:
                continue
            if ring:
                # A whole shard, from the neighbour that got it in the hop before.
                assert one.target == (one.source + 1) % plan.ranks
                assert set(one.units) == owns[(one.target - stage) % plan.ranks]
                assert stage == 1 or all(came[one.source][unit] == stage - 1 for unit in one.units)
            else:
                assert set(one.units) <= owns[one.source]
            assert not set(one.units) & holds[one.target]
            brought[one.target] |= set(one.units)
        for rank in ranks:
            holds[rank] |= brought[rank]
            came[rank].update(dict.fromkeys(brought[rank], stage))
    for rank in ranks:
        attended = set(plan.units(rank)) - owns[rank]
        assert misses[rank] <= attended <= holds[rank]
        assert all(plan.schedule.stage[rank, unit] == came[rank][unit] for unit in attended)
        if everything:
            assert holds[rank] == set(range(plan.grid.units)) == attended | owns[rank]
        elif not ring:
            assert attended == misses[rank]
        else:
            # A shard stops at the last rank that misses some of it.
            last = max((hop for hop in ranks if misses[(rank + hop) % plan.ranks] & owns[rank]), default=0)
            assert sum(any(set(one.units) == owns[rank] for one in plan.transfers if one.stage == hop) for hop in ranks) == last
        # Messages lie together in the buffer in which they are attended to.
        if not ring:
            slots = Slots(plan, plan.units(rank))
            buffer = torch.zeros(slots.rows)
            for one in plan.transfers:
                if one.target == rank:
                    assert len(slots.place(buffer, one.units)) == slots.tokens(one.units)
    stages = range(plan.last_stage + 1)
    seen = sum((visible_pairs(plan.local_mask(mask, rank, stage)) for rank in ranks for stage in stages), torch.tensor(0))
    assert torch.equal(seen, visible_pairs(mask))
    if everything:
        assert plan.bytes_sent().sum() == plan.all_gather_bytes()


@pytest.mark.parametrize("strategy", OF_UNITS)
@pytest.mark.parametrize("family", FAMILIES)
def test_plans_of_the_families(family: str, strategy: str) -> None:
    mask = family_mask(family, 1500)
    check(plan_of(mask, 5, strategy, bytes_per_token=4), mask, strategy)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_plans_of_random_masks(data: st.DataObject) -> None:
    mask = data.draw(random_masks(max_rows=900, square=True, block_masks=True))
    strategy = data.draw(st.sampled_from(OF_UNITS))
    chunk, unit = data.draw(st.sampled_from([(128, 128), (256, 128), (None, None)]))
    placement = data.draw(st.sampled_from([None, "balanced", "contiguous", "dual_chunk"]))
    ranks = data.draw(st.integers(1, 6))
    check(plan_of(mask, ranks, strategy, placement=placement, chunk=chunk, unit=unit), mask, strategy)


def test_what_a_strategy_saves() -> None:
    """A window on contiguous rows: fm3 sends the window, ring_skip one shard a rank, the others everything to everyone."""
    mask = build_mask("sliding_window", 4096, window=200)
    sent = {name: int(plan_of(mask, 4, name, placement="contiguous", unit=128).bytes_sent().sum()) for name in OF_UNITS}
    exact, everything = 3 * 256, 3 * 4096
    assert sent == {
        "fm3": exact,
        "dual_chunk": exact,
        "magi": exact,
        "all_gather": everything,
        "all_gather_overlapped": everything,
        "ring": everything,
        "ring_skip": 3 * 1024,
    }


def test_magi_deals_out_equal_numbers_of_chunks_by_what_they_see() -> None:
    """The area of every chunk is that of the dense mask, and the heaviest rank is near the mean."""
    for family in FAMILIES:
        mask = family_mask(family, 2000)
        grid = Grid.of(2000, 3, 128, 128)
        rows = torch.arange(2000)
        seen = mask.visible(rows, rows).flatten(0, 1).sum((0, 2))
        dense = torch.stack([seen[slice(*grid.rows(chunk))].sum() for chunk in range(grid.chunks)])
        areas = visible_of_chunks(mask, grid)
        if mask.block_mask is None:
            assert areas.tolist() == dense.tolist(), family
        placement = plan_of(mask, 3, "magi", chunk=128).balance.placement
        assert sorted(np.bincount(placement, minlength=3)) == [5, 5, 6]
    mask = family_mask("causal", 2**14)
    plan = plan_of(mask, 4, "magi")
    loads = np.bincount(plan.balance.placement, weights=visible_of_chunks(mask, plan.grid))
    assert loads.max() <= 1.01 * loads.mean()


def test_strategies_without_units_have_rows_and_no_messages() -> None:
    mask = family_mask("document", 2048)
    for name in ("ulysses", "flex_cp"):
        plan = plan_of(mask, 4, name)
        assert plan.transfers == () and sum(b - a for rank in range(4) for a, b in plan.rows(rank)) == 2048
    # PyTorch deals rows out head and tail.
    assert [plan.rows(rank) for rank in range(4)] == [
        [(256 * r, 256 * r + 256), (1792 - 256 * r, 2048 - 256 * r)] for r in range(4)
    ]


def test_fm3_is_the_plan_of_make_plan_and_a_placement_can_be_given() -> None:
    mask = family_mask("document", 4096)
    assert plan_of(mask, 4, bytes_per_token=2).digest() == make_plan(mask, 4, bytes_per_token=2, stages=1).digest()
    given = contiguous(32, 4)[::-1].copy()
    for strategy in STRATEGIES:
        assert plan_of(mask, 4, strategy, placement=given).balance.placement.tolist() == given.tolist()


def test_slots_keep_every_token_in_its_place() -> None:
    """The short last unit in the middle of a buffer, its padding zero even where memory was not."""
    plan = plan_of(ColumnMask(seqlen_q=300, seqlen_k=300), 1)
    slots = Slots(plan, [2, 0, 1])
    k = torch.arange(600.0).view(2, 300, 1, 1)
    v = -k
    buffer = slots.clear_padding(k.new_full(slots.shape(k), torch.nan))
    slots.put(buffer, [0, 1, 2], pack(k, v))
    assert buffer.shape == (384, 2, 2, 1, 1) and (buffer[44:128] == 0).all()
    keys, values = unpack(buffer)
    assert torch.equal(keys[:, :44], k[:, 256:]) and torch.equal(values[:, 128:], v[:, :256])
    assert torch.equal(slots.take(buffer, [0, 1, 2]), pack(k, v))
    assert torch.equal(pack(k, v, [(10, 20), (256, 300)]), torch.cat([pack(k, v)[10:20], pack(k, v)[256:]]))
    assert slots.spans([0, 1]) == [(128, 384)] and slots.tokens([1, 2]) == 172
    slots.put(buffer, [1], buffer[256:384].clone(), add=True)
    assert torch.equal(keys[:, 256:], 2 * k[:, 128:256]) and torch.equal(keys[:, 128:256], k[:, :128])


def test_cut_of_no_rows_has_none() -> None:
    x = torch.ones(2, 5, 3, requires_grad=True)
    assert cut(x, []).shape == (2, 0, 3)
    cut(x, [(1, 2), (4, 5)]).sum().backward()
    assert x.grad is not None and x.grad.sum((0, 2)).tolist() == [0, 6, 0, 0, 6]
