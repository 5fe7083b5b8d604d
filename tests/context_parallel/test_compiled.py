"""The compiled planner finds the numbers that NumPy finds, all of them."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_masks import random_masks

from context_parallel import compiled
from context_parallel.balance import balance
from context_parallel.compiled import compiled_placement, compiled_work, why_not
from context_parallel.grid import Grid, PlanError
from context_parallel.plan import make_plan
from context_parallel.work import Costs, Work, work_of
from masks.column_mask import ColumnMask
from masks.documents import paper_documents
from masks.families import FAMILIES, build_mask


def test_this_machine_has_a_compiler() -> None:
    assert why_not() is None


def same_work(mask: ColumnMask, grid: Grid) -> Work:
    expected, found = work_of(mask, grid), compiled_work(mask, grid, Costs())
    for name in ("needs", "full", "partial", "weights"):
        assert np.array_equal(getattr(expected, name), getattr(found, name)), name
    return expected


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "block_sparse"])
def test_families(family: str) -> None:
    documents = paper_documents(20000, "b") if FAMILIES[family].needs_documents else None
    mask = build_mask(family, 20000, documents=documents, heads=2)
    work = same_work(mask, Grid(20000, 512, 256))
    for ranks, per_node in ((1, 1), (4, 4), (4, 2), (5, 5), (8, 4)):
        found, expected = compiled_placement(work, ranks, per_node, 50), balance(work, ranks, per_node).placement
        assert np.array_equal(found, expected), (ranks, per_node)


@given(mask=random_masks(max_rows=1500, square=True), chunk=st.sampled_from([128, 256, 384]))
@settings(max_examples=150, deadline=None)
def test_random_masks(mask: ColumnMask, chunk: int) -> None:
    """Every form of a mask: gaps, runs that touch or overlap, boundaries that lie outside."""
    same_work(mask, Grid(mask.seqlen_q, chunk, 128))


@given(data=st.data())
@settings(max_examples=400, deadline=None)
def test_random_needs(data: st.DataObject) -> None:
    """Placements of any needs and weights, with empty slots, ties and nodes."""
    nodes, per_node = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 4))
    chunks, units = data.draw(st.integers(1, 26)), data.draw(st.integers(1, 2))
    seed, spread = data.draw(st.integers(0, 2**31)), data.draw(st.sampled_from([1, 5, 1000]))
    random = np.random.default_rng(seed)
    grid = Grid(chunks * units * 128, units * 128, 128)
    needs = random.random((grid.chunks, grid.units)) < random.random()
    nothing = np.zeros((2, grid.chunks, grid.units), dtype=np.int64)
    weights = random.integers(0, spread + 1, grid.chunks) * 100_000
    work = Work(grid, Costs(), needs, *nothing, weights)
    ranks = nodes * per_node
    slack = data.draw(st.sampled_from([1, 10, 50]))
    expected = balance(work, ranks, per_node, slack)
    assert np.array_equal(compiled_placement(work, ranks, per_node, slack), expected.placement)


def test_the_whole_plan_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a block mask too, which the compiled planner leaves to NumPy."""
    for family in ("share_question", "block_sparse"):
        documents = paper_documents(8192, "b") if FAMILIES[family].needs_documents else None
        mask = build_mask(family, 8192, documents=documents)
        plans = [make_plan(mask, 4, bytes_per_token=512, compiled=way) for way in (False, True, None)]
        assert len({plan.digest() for plan in plans}) == 1


def test_without_a_compiler_numpy_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    mask = build_mask("causal", 4096)
    expected = make_plan(mask, 4, bytes_per_token=512).digest()
    monkeypatch.setattr(shutil, "which", lambda name: None)
    compiled.why_not.cache_clear()
    compiled.load_host.cache_clear()
    try:
        assert make_plan(mask, 4, bytes_per_token=512).digest() == expected
        with pytest.raises(PlanError, match="no compiled planner: no C\\+\\+ compiler found"):
            make_plan(mask, 4, bytes_per_token=512, compiled=True)
    finally:
        monkeypatch.undo()
        compiled.why_not.cache_clear()
        compiled.load_host.cache_clear()
