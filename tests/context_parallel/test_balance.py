"""The balancer: equal shares, never worse than the fixed placements, and traffic only ever goes down."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from context_parallel.balance import SLACK, balance, judge
from context_parallel.bounds import least_load, least_received
from context_parallel.grid import Grid, PlanError
from context_parallel.locality import balanced_nearby, lower_traffic
from context_parallel.pairwise import balanced, loads_of
from context_parallel.placements import contiguous, dual_chunk, heaviest_first
from context_parallel.traffic import Traffic
from context_parallel.work import Costs, Work, work_of
from masks.documents import paper_documents
from masks.families import FAMILIES, build_mask

WEIGHTS = st.lists(st.integers(0, 1000), min_size=1, max_size=40).map(lambda values: np.array(values, dtype=np.int64))


def family_work(family: str, seqlen: int, ranks: int) -> Work:
    documents = paper_documents(seqlen) if FAMILIES[family].needs_documents else None
    return work_of(build_mask(family, seqlen, documents=documents), Grid.of(seqlen, ranks))


def random_work(weights: np.ndarray, seed: int, density: float) -> Work:
    grid = Grid(len(weights) * 256, 256, 128)
    needs = np.random.default_rng(seed).random((grid.chunks, grid.units)) < density
    tiles = np.zeros(needs.shape, dtype=np.int64)
    return Work(grid, Costs(), needs, tiles, tiles, weights)


def has_equal_shares(placement: np.ndarray, ranks: int) -> bool:
    counts = np.bincount(placement, minlength=ranks)
    return len(counts) == ranks and counts.max() - counts.min() <= 1


@settings(max_examples=200, deadline=None)
@given(WEIGHTS, st.integers(1, 9))
def test_every_start_has_equal_shares_and_exchanges_keep_them(weights: np.ndarray, ranks: int) -> None:
    for start in (contiguous(len(weights), ranks), dual_chunk(len(weights), ranks), heaviest_first(weights, ranks)):
        assert has_equal_shares(start, ranks)
        after = balanced(weights, start, ranks)
        assert has_equal_shares(after, ranks)
        assert loads_of(weights, after, ranks).max() <= loads_of(weights, start, ranks).max()
        assert loads_of(weights, after, ranks).max() >= least_load(weights, ranks)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 50), min_size=2, max_size=10))
def test_two_ranks_get_the_best_split(values: list[int]) -> None:
    weights = np.array(values, dtype=np.int64)
    best = min(
        max(sum(chosen), sum(values) - sum(chosen))
        for size in {len(values) // 2, len(values) - len(values) // 2}
        for chosen in combinations(values, size)
    )
    assert loads_of(weights, balanced(weights, contiguous(len(values), 2), 2), 2).max() == best


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=6), st.integers(1, 3))
def test_no_placement_is_lighter_than_the_bound(values: list[int], ranks: int) -> None:
    weights = np.array(values, dtype=np.int64)
    placements = (np.array(one) for one in product(range(ranks), repeat=len(values)))
    loads = [int(loads_of(weights, one, ranks).max()) for one in placements if has_equal_shares(one, ranks)]
    assert least_load(weights, ranks) <= min(loads)


def test_fixed_placements() -> None:
    assert contiguous(8, 4).tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert dual_chunk(8, 4).tolist() == [0, 1, 2, 3, 3, 2, 1, 0]
    assert contiguous(5, 2).tolist() == [0, 0, 0, 1, 1]
    assert dual_chunk(5, 2).tolist() == [0, 0, 1, 1, 0]
    assert heaviest_first(np.array([5, 5, 9, 1]), 2).tolist() == [1, 1, 0, 0]
    assert contiguous(2, 4).tolist() == [0, 1]


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 24), st.integers(1, 6), st.integers(0, 999), st.sampled_from([0.05, 0.3, 0.9]))
def test_traffic_counts_and_foresees_what_an_exchange_changes(chunks: int, groups: int, seed: int, density: float) -> None:
    work = random_work(np.ones(chunks, dtype=np.int64), seed, density)
    generator = np.random.default_rng(seed)
    group = generator.integers(0, groups, chunks)
    owns = np.zeros(work.needs.shape, dtype=np.float32)
    owns[work.grid.chunk_of_unit(), np.arange(work.grid.units)] = 1
    traffic = Traffic(work.needs.astype(np.float32), owns, group, groups)

    def count(of: np.ndarray) -> list[int]:
        received = []
        for one in range(groups):
            wanted = {int(u) for c in range(chunks) if of[c] == one for u in np.flatnonzero(work.needs[c])}
            held = {int(u) for c in range(chunks) if of[c] == one for u in np.flatnonzero(owns[c])}
            received.append(len(wanted - held))
        return received

    for _ in range(4):
        assert traffic.received.tolist() == count(traffic.group)
        x, y = (int(slot) for slot in generator.integers(0, chunks, 2))
        before, foreseen = traffic.received.sum(), traffic.change(np.array([x]))[0, y]
        traffic.exchange(x, y)
        assert traffic.received.sum() == before + foreseen
        assert traffic.received.tolist() == count(traffic.group)


@settings(max_examples=60, deadline=None)
@given(WEIGHTS, st.integers(1, 4), st.sampled_from([1, 2]), st.integers(0, 99))
def test_lower_traffic_keeps_the_limit_and_the_shares(weights: np.ndarray, per_node: int, nodes: int, seed: int) -> None:
    ranks = per_node * nodes
    work = random_work(weights, seed, 0.1)
    start = heaviest_first(weights, ranks)
    limit = int(loads_of(weights, start, ranks).max())
    after = lower_traffic(work, start, ranks, per_node, limit)
    assert has_equal_shares(after, ranks)
    assert loads_of(weights, after, ranks).max() <= limit

    def cost(placement: np.ndarray) -> int:
        one = judge(work, placement, ranks, per_node)
        near, far = (2 * one.received.sum() + ranks * one.received.max()), 2 * one.entering.sum()
        return int(work.costs.near * near + (work.costs.far * far if nodes > 1 else 0))

    assert cost(after) <= cost(start)
    nearby = balanced_nearby(work, contiguous(len(weights), ranks), ranks, per_node, limit)
    assert has_equal_shares(nearby, ranks)
    assert loads_of(weights, nearby, ranks).max() <= loads_of(weights, contiguous(len(weights), ranks), ranks).max()


@pytest.mark.parametrize("ranks", [4, 7, 8, 16])
@pytest.mark.parametrize("family", FAMILIES)
def test_never_worse_than_contiguous_and_zigzag(family: str, ranks: int) -> None:
    """In the heaviest rank and in predicted time, and within the slack of the best that exchanges from any start reach."""
    work = family_work(family, 32768, ranks)
    found = balance(work, ranks)
    assert has_equal_shares(found.placement, ranks)
    for fixed in (contiguous(work.grid.chunks, ranks), dual_chunk(work.grid.chunks, ranks)):
        other = judge(work, fixed, ranks)
        assert found.loads.max() <= other.loads.max()
        assert found.time <= other.time or found.loads.max() < other.loads.max()
    reached = min(
        int(loads_of(work.weights, balanced(work.weights, start, ranks), ranks).max())
        for start in (contiguous(work.grid.chunks, ranks), heaviest_first(work.weights, ranks))
    )
    assert found.loads.max() <= reached + reached // SLACK
    assert found.loads.max() >= found.least_load and found.received.sum() >= found.least_received
    assert found.loads.sum() == work.weights.sum()


@pytest.mark.parametrize("family", FAMILIES)
def test_close_to_the_mean_at_128k(family: str) -> None:
    """Within 2.5% of the least possible, which is the mean but for three masks whose chunks do not divide so."""
    work = family_work(family, 131072, 8)
    found = balance(work, 8)
    assert found.loads.max() <= 1.025 * found.least_load
    if family not in ("sliding_window", "global_sliding_window", "causal_blockwise"):
        assert found.least_load <= 1.001 * work.weights.sum() / 8


@pytest.mark.parametrize("family", ["document", "causal_document", "share_question", "sliding_window"])
def test_local_masks_move_less_than_under_balance_alone(family: str) -> None:
    work = family_work(family, 131072, 8)
    found, alone = balance(work, 8), judge(work, heaviest_first(work.weights, 8), 8)
    assert found.received.sum() < 0.6 * alone.received.sum()
    assert found.received.sum() >= least_received(work, 8)


def test_nodes_are_kept_apart_where_the_mask_allows() -> None:
    """With a dear network fewer units enter nodes than when nodes do not count."""
    work = family_work("document", 131072, 16)
    apart = balance(work, 16, ranks_per_node=8)
    blind = judge(work, balance(work, 16).placement, 16, ranks_per_node=8)
    assert apart.entering.sum() <= blind.entering.sum()


def test_refusals() -> None:
    work = random_work(np.ones(4, dtype=np.int64), 0, 0.5)
    with pytest.raises(PlanError, match="ranks is 0; it must be an integer from 1 to 65536"):
        balance(work, 0)
    with pytest.raises(PlanError, match="ranks_per_node is 3; it must divide the number of ranks, 4"):
        balance(work, 4, 3)
    with pytest.raises(PlanError, match="slack is 0; it must be an integer >= 1"):
        balance(work, 2, slack=0)
    with pytest.raises(PlanError, match=r"the placement has shape \(3,\); the grid has 4 chunks"):
        judge(work, np.zeros(3), 2)
    with pytest.raises(PlanError, match="the placement names ranks 0 to 2; allowed: 0 to 1"):
        judge(work, np.array([0, 1, 2, 0]), 2)
