"""Ranks that disagree, tensors that are not sharded, peers that are gone: an error that says what, on every rank, in time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from processes import run_ranks

from context_parallel import ContextParallel, ContextParallelError, ExchangeError
from context_parallel.agreement import agree
from context_parallel.grid import PlanError
from context_parallel.group import Group
from context_parallel.strategies import STRATEGIES
from masks.column_mask import ColumnMask
from masks.families import build_mask

SEQLEN = 512
TIMEOUT = 3.0
"""Of the group whose peer is missing. The processes themselves meet with more patience."""


def tensors(rows: int, heads: int = 2, **kind: object) -> list[torch.Tensor]:
    return [torch.zeros((1, rows, heads, 8), **kind) for _ in range(3)]


def disagreements(rank: int) -> None:
    causal, full = build_mask("causal", SEQLEN), build_mask("full", SEQLEN)

    def raises(message: str, attend: Callable[[], object]) -> None:
        with pytest.raises(ValueError, match=message):
            attend()

    def attend(mask: ColumnMask = causal, rows: int | None = None, heads: int = 2, **options: object) -> Callable[[], object]:
        kind = {name: options.pop(name) for name in ("dtype", "requires_grad") if name in options}
        how = {name: options.pop(name) for name in ("strategy", "chunk", "exchange") if name in options}
        cp = ContextParallel(None, mask, **how)
        return lambda: cp.attention(*tensors(cp.local_rows if rows is None else rows, heads, **kind), **options)

    odd = rank == 1
    raises(r"disagree on the mask.*: ranks 0, 2: digest \w+ of .*; rank 1: digest", attend(full if odd else causal))
    raises(r"disagree on the plan.*: ranks 0, 2: .*'fm3'.*; rank 1: .*'ring'", attend(strategy="ring" if odd else "fm3"))
    raises("disagree on the plan.*rank 1: .*chunk=256", attend(chunk=256 if odd else 128))
    raises("disagree on the shapes.*rank 1: batch 1, 4 query heads", attend(heads=4 if odd else 2))
    raises("disagree on the dtype.*rank 1: torch.float16", attend(dtype=torch.float16 if odd else torch.float32))
    raises("disagree on what requires a gradient.*rank 1: q, k, v", attend(requires_grad=odd))
    raises("disagree on the options.*rank 1: scale=2.0", attend(scale=2.0 if odd else None))

    # What one rank refuses, all hear of.
    for rows, why in ((SEQLEN, "looks like the whole sequence"), (7, r"see shard\(x\)")):
        mine = f"^q has shape.*rank 1 of 3 holds 128 of the 512 rows.*{why}"
        raises(mine if odd else f"refused by rank 1: {mine[1:]}", attend(rows=rows if odd else None))
    heads = build_mask("random_eviction", SEQLEN, heads=3)
    raises("the mask has 3 heads; allowed: 1, the 2 KV heads or the 2 query heads", attend(heads))
    raises("exchange is 'nccl', the group carries tensors on cpu by gloo", lambda: carried_by(causal, "nccl"))
    raises(
        "exchange is 'symmetric', which copies between GPUs, and the tensors are on cpu",
        lambda: carried_by(causal, "symmetric"),
    )
    raises("'ring' is not carried by exchange='symmetric'; allowed: auto", lambda: carried_by(causal, "symmetric", "ring"))
    raises("disagree on the exchange.*rank 1: gloo, 1 stages", attend(exchange="gloo" if odd else None))

    # After an error that all raised the group still works.
    cp = ContextParallel(None, causal)
    assert cp.attention(*tensors(cp.local_rows)).shape == (1, cp.local_rows, 2, 8)
    for strategy in (name for name in STRATEGIES if name not in ("ulysses", "flex_cp")):
        cp = ContextParallel(None, causal, strategy=strategy)
        q, k, v = tensors(cp.local_rows, requires_grad=True)
        out = cp.attention(q, k, v)
        with pytest.raises(RuntimeError, match="no second derivative: its backward was differentiated"):
            torch.autograd.grad(out.sum(), k, create_graph=True)

    # Later calls are not compared, and the rank that is wrong still says so.
    cp = ContextParallel(None, causal, check=False)
    if odd:
        with pytest.raises(ContextParallelError, match="looks like the whole sequence"):
            cp.attention(*tensors(SEQLEN))


def carried_by(mask: ColumnMask, exchange: str, strategy: str = "fm3") -> object:
    cp = ContextParallel(None, mask, exchange=exchange, strategy=strategy)
    return cp.attention(*tensors(cp.local_rows))


def test_ranks_that_disagree_all_raise_at_once(tmp_path: Path) -> None:
    start = time.monotonic()
    run_ranks(disagreements, 3, tmp_path, timeout=120)
    assert time.monotonic() - start < 120


def absent(rank: int, strategy: str, when: str) -> None:
    """Rank 1 does not come; with a full mask everyone needs it. The others end after the group's timeout, not before."""
    group = dist.new_group(timeout=timedelta(seconds=TIMEOUT))
    cp = ContextParallel(group, build_mask("full", SEQLEN), strategy=strategy)
    q, k, v = (x.requires_grad_() for x in tensors(cp.local_rows))
    dist.barrier()
    out = None if when == "check" else cp.attention(q, k, v)
    if when == "died" and rank == 1:
        os._exit(0)
    start = time.monotonic()
    if rank != 1:
        with pytest.raises(ExchangeError, match=f"rank {rank} of 3: .*"):
            cp.attention(q, k, v) if out is None or when == "late" else out.sum().backward()
        assert time.monotonic() - start < TIMEOUT + 10
    else:
        time.sleep(TIMEOUT + 2)


@pytest.mark.parametrize(("strategy", "when"), [("fm3", "check"), ("fm3", "late"), ("ring", "died")])
def test_a_peer_that_does_not_come_ends_everybody_in_time(strategy: str, when: str, tmp_path: Path) -> None:
    """It misses the check, or a later forward pass; or its process dies between forward and backward."""
    start = time.monotonic()
    run_ranks(absent, 3, tmp_path, strategy, when, timeout=120)
    assert time.monotonic() - start < 120


# -- one process -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"strategy": "rings"}, PlanError, r"unknown strategy 'rings'; allowed: fm3, .* \(did you mean 'ring'\?\)"),
        ({"placement": "zigzag"}, PlanError, "unknown placement 'zigzag'; allowed: balanced, contiguous, dual_chunk, area"),
        ({"exchange": "mpi"}, ContextParallelError, "unknown exchange 'mpi'; allowed: auto, gloo, nccl, symmetric"),
        ({"stages": -1}, PlanError, "stages is -1; it must be an integer >= 0"),
        ({"stages": 1, "strategy": "ring"}, PlanError, "stages is 1 with strategy 'ring', which has none; allowed with fm3"),
        ({"ranks_per_node": 2, "strategy": "ring"}, PlanError, "2 with strategy 'ring', which knows no nodes; allowed: None"),
        ({"ranks_per_node": 2}, PlanError, "ranks_per_node is 2; it must divide the number of ranks, 1"),
        ({"chunk": 100}, PlanError, "chunk is 100; it must be an integer >= 128"),
        ({"mask": ColumnMask(seqlen_q=512, seqlen_k=1024)}, PlanError, "the mask has 512 rows and 1024 columns"),
        ({"mask": None}, TypeError, "mask is a NoneType; expected a masks.column_mask.ColumnMask of the whole sequence"),
    ],
)
def test_refusals_before_anything_runs(arguments: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ContextParallel(None, **{"mask": build_mask("causal", SEQLEN), **arguments})


def test_tensors_of_another_length_are_refused() -> None:
    cp = ContextParallel(None, build_mask("causal", SEQLEN))
    with pytest.raises(ContextParallelError, match=r"shard takes the whole sequence \[batch, 512, ...\]; given: \(1, 500"):
        cp.shard(tensors(500)[0])
    with pytest.raises(ContextParallelError, match="x has shape .*; rank 0 of 1 holds 512 of the 512 rows"):
        cp.unshard(tensors(500)[0])
    with pytest.raises(ContextParallelError, match="v has shape"):
        cp.attention(*tensors(SEQLEN)[:2], tensors(500)[0])
    with pytest.raises(PlanError, match="both must be the grid's 512"):
        cp.with_mask(build_mask("causal", 600))
    with pytest.raises(TypeError, match="mask is a str"):
        cp.with_mask("causal")


def test_several_processes_without_a_process_group_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(ContextParallelError, match="WORLD_SIZE is 4 and there is no process group: call .*init_process_group"):
        ContextParallel(None, build_mask("causal", SEQLEN))


def test_one_rank_agrees_with_itself_and_raises_its_own_refusal() -> None:
    agree(Group(), {"the mask": "a"})
    with pytest.raises(KeyError, match="mine"):
        agree(Group(), {}, KeyError("mine"))
