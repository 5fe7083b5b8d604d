"""A plan is complete, exact, conserved and the same everywhere, and making it takes no communication."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_masks import random_masks

from context_parallel.grid import Grid, PlanError
from context_parallel.placements import dual_chunk
from context_parallel.plan import Plan, make_plan
from context_parallel.strategies import STRATEGIES, plan_of
from masks.column_mask import ColumnMask
from masks.documents import paper_documents
from masks.families import FAMILIES, build_mask
from masks.tiles import visible_pairs

ROOT = Path(__file__).resolve().parents[2]


def family_mask(family: str, seqlen: int, heads: int = 1) -> ColumnMask:
    documents = paper_documents(seqlen, "b") if FAMILIES[family].needs_documents else None
    return build_mask(family, seqlen, documents=documents, heads=heads)


def check(plan: Plan, mask: ColumnMask) -> None:
    """Every property of a plan, told from the dense mask and from the messages alone."""
    grid, ranks, per_node = plan.grid, plan.ranks, plan.ranks_per_node
    everything = torch.arange(grid.seqlen)
    seen = mask.visible(everything, everything).flatten(0, 1).any(0)
    tiles_of_units = [slice(*grid.columns(unit)) for unit in range(grid.units)]

    # Every row has one rank, and the local masks hold every visible pair once.
    owned_rows = sorted(row for rank in range(ranks) for span in plan.rows(rank) for row in range(*span))
    assert owned_rows == list(range(grid.seqlen))
    total = sum((visible_pairs(plan.local_mask(mask, rank)) for rank in range(ranks)), torch.tensor(0))
    assert torch.equal(total, visible_pairs(mask))

    sees: list[set[int]] = []
    owns: list[set[int]] = []
    for rank in range(ranks):
        rows = torch.cat([everything[slice(*span)] for span in plan.rows(rank)] or [everything[:0]])
        sees.append({unit for unit, span in enumerate(tiles_of_units) if bool(seen[rows][:, span].any())})
        owns.append({unit for unit in range(grid.units) if unit * grid.unit // grid.chunk in plan.chunks(rank)})
        # The buffer: its own units, and exactly those it needs besides, each once.
        assert plan.units(rank, 0) == sorted(owns[rank])
        received = plan.units(rank)[len(owns[rank]) :]
        assert len(set(received)) == len(received) and set(received) == sees[rank] - owns[rank]
        by_stage = [unit for stage in range(plan.last_stage + 1) for unit in plan.units(rank, stage)]
        assert by_stage == plan.units(rank)

    # The messages alone: who has what is sent on only by those who have it, and nothing comes twice.
    holds = [set(units) for units in owns]
    crossings: list[tuple[int, int]] = []
    for one in plan.transfers:
        assert one.source != one.target and one.units and list(one.units) == sorted(one.units)
        assert set(one.units) <= holds[one.source]
        assert not set(one.units) & holds[one.target]
        assert (one.source // per_node != one.target // per_node) == one.network
        if one.network:
            assert one.source % per_node == one.target % per_node
            assert set(one.units) <= owns[one.source]
            crossings += [(unit, one.target // per_node) for unit in one.units]
        else:
            assert set(one.units) <= set(plan.units(one.target, one.stage))
        holds[one.target] |= set(one.units)
    assert len(set(crossings)) == len(crossings)
    for rank in range(ranks):
        relayed = holds[rank] - owns[rank] - sees[rank]
        neighbours = range(rank // per_node * per_node, (rank // per_node + 1) * per_node)
        assert all(any(unit in sees[other] for other in neighbours) for unit in relayed)
        assert sees[rank] <= holds[rank]
        assert not relayed or ranks > per_node

    sent = plan.bytes_sent()
    lengths = grid.unit_lengths() * plan.bytes_per_token
    came = [int(lengths[sorted(holds[rank] - owns[rank])].sum()) for rank in range(ranks)]
    assert sent.sum(0).tolist() == came
    assert np.array_equal(sent, plan.bytes_sent(True) + plan.bytes_sent(False))
    assert sent.sum() <= plan.all_gather_bytes() or ranks > per_node
    assert plan.tiles().sum((0, 1)).tolist() == [plan.work.full.sum(), plan.work.partial.sum()]
    assert plan.balance.received.tolist() == [len(sees[rank] - owns[rank]) for rank in range(ranks)]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("seqlen", "ranks", "per_node"), [(2048, 4, None), (1500, 5, None), (2048, 6, 2), (1000, 9, 3)])
def test_plans_of_the_families(family: str, seqlen: int, ranks: int, per_node: int | None) -> None:
    """Short last chunks, ranks that do not divide the chunks, ranks without rows, nodes."""
    mask = family_mask(family, seqlen, heads=2)
    check(make_plan(mask, ranks, bytes_per_token=512, ranks_per_node=per_node), mask)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_plans_of_random_masks(data: st.DataObject) -> None:
    mask = data.draw(random_masks(max_rows=900, square=True, block_masks=True))
    ranks, per_node = data.draw(st.sampled_from([(1, None), (2, None), (3, None), (4, 2), (4, 1), (6, 3)]))
    chunk, unit = data.draw(st.sampled_from([(128, 128), (256, 128), (256, 256)]))
    placement = None
    if data.draw(st.booleans()):
        chunks = -(-mask.seqlen_q // chunk)
        placement = np.array(data.draw(st.lists(st.integers(0, ranks - 1), min_size=chunks, max_size=chunks)))
    stages = data.draw(st.integers(1, 3))
    plan = make_plan(
        mask, ranks, bytes_per_token=3, ranks_per_node=per_node, stages=stages, chunk=chunk, unit=unit, placement=placement
    )
    check(plan, mask)


def test_stages_are_masks_of_their_own() -> None:
    """The stages of a rank show together what it sees, and each rank's stages hold its units in even parts."""
    mask = family_mask("causal_document", 4096)
    plan = make_plan(mask, 4, bytes_per_token=1, stages=3)
    for rank in range(4):
        parts = [visible_pairs(plan.local_mask(mask, rank, stage)) for stage in range(plan.last_stage + 1)]
        assert torch.equal(sum(parts, torch.tensor(0)), visible_pairs(plan.local_mask(mask, rank)))
        sizes = [len(plan.units(rank, stage)) for stage in range(1, plan.last_stage + 1)]
        assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_that_see_a_stage_see_all_that_is_seen_of_it(family: str) -> None:
    """Chunks outside see nothing of it, the first and the last inside see something."""
    mask = family_mask(family, 2500)
    plan = make_plan(mask, 4, bytes_per_token=1, ranks_per_node=2, stages=2)
    for rank in range(4):
        for stage in range(plan.last_stage + 1):
            first, end = plan.seeing(rank, stage)
            inside = plan.local_mask(mask, rank, stage, (first, end))
            assert torch.equal(visible_pairs(inside), visible_pairs(plan.local_mask(mask, rank, stage)))
            for edge in {first, end - 1} if end > first else ():
                assert int(visible_pairs(plan.local_mask(mask, rank, stage, (edge, edge + 1))).sum()) > 0


def test_the_first_messages_do_not_all_come_from_one_rank() -> None:
    """Every rank of a full mask begins with its neighbour."""
    plan = make_plan(ColumnMask(seqlen_q=4096, seqlen_k=4096), 4, bytes_per_token=1, stages=3, unit=128)
    assert {(one.source, one.target) for one in plan.transfers if one.stage == 1} == {(1, 0), (2, 1), (3, 2), (0, 3)}
    # The buffer has the same order: the rank's own chunks, then its next neighbour's.
    assert [int(plan.schedule.source[2, unit]) for unit in plan.units(2)] == [2] * 8 + [3] * 8 + [0] * 8 + [1] * 8


def test_a_unit_crosses_the_network_once_a_node() -> None:
    """Two nodes of four, everything needed everywhere: half the sequence enters each node once."""
    seqlen = 8192
    plan = make_plan(ColumnMask(seqlen_q=seqlen, seqlen_k=seqlen), 8, bytes_per_token=2, ranks_per_node=4)
    assert plan.bytes_sent(True).sum() == seqlen * 2
    assert plan.bytes_sent().sum() == plan.all_gather_bytes()


def test_a_given_placement_is_kept() -> None:
    mask = family_mask("causal", 4096)
    grid = Grid.of(4096, 4)
    plan = make_plan(mask, 4, bytes_per_token=1, placement=dual_chunk(grid.chunks, 4))
    assert plan.rows(0)[0] == (0, 128) and plan.rows(0)[-1] == (3968, 4096)
    assert plan.balance.loads.max() == plan.balance.loads.min()


@pytest.mark.parametrize("family", ["document", "random_eviction", "global_sliding_window"])
def test_the_same_plan_again(family: str) -> None:
    mask = family_mask(family, 8192)
    digests = {make_plan(mask, 8, bytes_per_token=512, ranks_per_node=4).digest() for _ in range(2)}
    assert len(digests) == 1


def test_the_same_plan_in_other_processes() -> None:
    """The hash seed and the number of threads decide nothing."""
    program = (
        "import torch; from masks.families import build_mask; from masks.documents import paper_documents\n"
        "from context_parallel.plan import make_plan\n"
        "mask = build_mask('document', 16384, documents=paper_documents(16384))\n"
        "print(make_plan(mask, 8, bytes_per_token=512, ranks_per_node=4).digest())"
    )
    digests = set()
    for seed, threads in (("1", "1"), ("2", "2")):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads}
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
        )
        digests.add(done.stdout.strip())
    assert len(digests) == 1


def test_no_communication(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever torch.distributed offers raises while a plan and its local masks are made."""
    import torch.distributed as dist

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a plan communicated")

    names = [name for name in dir(dist) if callable(getattr(dist, name)) and not isinstance(getattr(dist, name), type)]
    collectives = {"all_reduce", "all_gather", "broadcast", "barrier", "send", "recv", "all_to_all", "all_gather_object"}
    assert collectives <= set(names)
    for module in (dist, dist.distributed_c10d):
        for name in names:
            if hasattr(module, name):
                monkeypatch.setattr(module, name, refuse)
    with pytest.raises(AssertionError, match="communicated"):
        dist.all_reduce(torch.ones(1))
    mask = family_mask("document", 4096)
    plan = make_plan(mask, 4, bytes_per_token=512, ranks_per_node=2)
    for rank in range(4):
        plan.local_mask(mask, rank)
    plan.digest()
    for strategy in STRATEGIES:
        plan_of(mask, 4, strategy).digest()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ranks": 0}, "ranks is 0; it must be an integer from 1 to 65536"),
        ({"ranks": -2}, "ranks is -2"),
        ({"ranks": 2.0}, "ranks is 2.0"),
        ({"chunk": 200}, "chunk is 200; it must be an integer >= 128 and a multiple of 128"),
        ({"chunk": 384, "unit": 256}, "chunk is 384; it must be an integer from 256 to 2147483520 and a multiple of 256"),
        ({"unit": 64}, "unit is 64; it must be an integer from 128 to 2147483520 and a multiple of 128"),
        ({"unit": 0}, "unit is 0"),
        ({"chunk": 2**31}, "chunk is 2147483648; it must be an integer from"),
        ({"chunk": 2**32, "unit": 2**32}, "unit is 4294967296"),
        ({"ranks": 10**7}, "ranks is 10000000"),
        ({"stages": 0}, "stages is 0; it must be an integer >= 1"),
        ({"bytes_per_token": 0}, "bytes_per_token is 0"),
        ({"ranks": 4, "ranks_per_node": 3}, "ranks_per_node is 3; it must divide the number of ranks, 4"),
        ({"mask": ColumnMask(seqlen_q=512, seqlen_k=1024)}, "the mask has 512 rows and 1024 columns"),
        ({"mask": ColumnMask(seqlen_q=0, seqlen_k=0)}, "seqlen is 0; it must be an integer >= 1"),
        ({"placement": np.zeros(3)}, r"the placement has shape \(3,\); the grid has 8 chunks"),
        ({"placement": np.full(8, 2)}, "the placement names ranks 2 to 2; allowed: 0 to 1"),
    ],
)
def test_refusals_say_what_was_given_and_what_is_allowed(arguments: dict, message: str) -> None:
    given: dict = {"mask": ColumnMask(causal=True, seqlen_q=1024, seqlen_k=1024), "ranks": 2, "bytes_per_token": 4}
    with pytest.raises(PlanError, match=message):
        make_plan(**{**given, **arguments})


def test_a_rank_outside_the_group_and_another_mask_are_refused() -> None:
    mask = ColumnMask(causal=True, seqlen_q=1024, seqlen_k=1024)
    plan = make_plan(mask, 2, bytes_per_token=4)
    with pytest.raises(PlanError, match="rank is 2; it must be an integer from 0 to 1"):
        plan.rows(2)
    with pytest.raises(PlanError, match="both must be the grid's 1024"):
        plan.local_mask(ColumnMask(seqlen_q=512, seqlen_k=512), 0)
