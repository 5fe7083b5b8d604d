"""One sequence over several processes: what the plan says, and one forward and backward pass that equals one device's.

Nothing is trained. The documents are made up. Rank 0 prints; without torchrun it is the only one.

    torchrun --nproc-per-node 4 -m examples.context_parallel
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist

from context_parallel import ContextParallel
from context_parallel.grid import joined
from context_parallel.plan import Plan
from context_parallel.strategies import STRATEGIES, plan_of
from fm3_kernel import flashmask_attention
from masks.column_mask import ColumnMask
from masks.documents import documents_from_lengths
from masks.families import build_mask

SEQLEN, HEADS, KV_HEADS, HEAD_DIM = 8192, 4, 2, 32


def mask_of_the_example() -> ColumnMask:
    """Causal documents; the longest is longer than a fourth of the sequence."""
    lengths = [1200, 300, 900, 2500, 700, 1592, 1000]
    return build_mask("causal_document", SEQLEN, documents=documents_from_lengths(lengths))


def table(plan: Plan) -> list[str]:
    """A line a rank: which rows it computes, how many 128x128 tiles, which keys it receives and from whom."""
    tiles, sent = plan.tiles().sum((1, 2)), plan.bytes_sent()
    lines = ["| rank | rows | tiles | keys received |", "|---|---|---|---|"]
    for rank in range(plan.ranks):
        rows = ", ".join(f"{start}-{end}" for start, end in joined(plan.rows(rank)))
        came = ", ".join(f"{sent[other, rank]} of rank {other}" for other in range(plan.ranks) if sent[other, rank])
        lines.append(f"| {rank} | {rows} | {tiles[rank]} | {came or 'none'} |")
    return lines


def totals(mask: ColumnMask, ranks: int) -> list[str]:
    """A line a strategy that sends keys: the heaviest rank's predicted time against the mean, and all keys received."""
    lines = ["| strategy | heaviest rank / mean | keys received by all |", "|---|---|---|"]
    for name, strategy in STRATEGIES.items():
        if strategy.way not in ("gathered", "ring"):
            continue
        plan = plan_of(mask, ranks, name)
        loads = plan.balance.loads
        lines.append(f"| `{name}` | {loads.max() / loads.mean():.2f} | {plan.bytes_sent().sum()} |")
    return lines


def largest_difference(cp: ContextParallel) -> float:
    """Of out, dq, dk and dv from those of one device that has the whole sequence."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(1, SEQLEN, heads, HEAD_DIM) for heads in (HEADS, KV_HEADS, KV_HEADS, HEADS)]
    q, k, v, dout = (torch.randn(shape, generator=generator) for shape in shapes)

    local = [cp.shard(x).requires_grad_() for x in (q, k, v)]
    out = cp.attention(*local)
    out.backward(cp.shard(dout))
    found = [cp.unshard(x) for x in (out, *(x.grad for x in local))]

    whole = [x.requires_grad_() for x in (q, k, v)]
    alone = flashmask_attention(*whole, mask=cp.mask)
    alone.backward(dout)
    return max((a - b).abs().max().item() for a, b in zip(found, (alone, q.grad, k.grad, v.grad), strict=True))


def main() -> None:
    """Rank 0 prints the tables and the difference."""
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    try:
        cp = ContextParallel(None, mask_of_the_example())
        difference = largest_difference(cp)
        if cp.rank == 0:
            print("\n".join([*table(cp.plan), "", *totals(cp.mask, cp.ranks), "", f"largest difference: {difference:.1e}"]))
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


if __name__ == "__main__":
    main()
