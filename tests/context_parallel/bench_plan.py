"""How long planning takes on one core: the whole plan and one rank's mask, milliseconds, the median of repeats.

``python tests/context_parallel/bench_plan.py 131072 16``: tokens, ranks.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import torch

from context_parallel.plan import make_plan
from masks.documents import paper_documents
from masks.families import FAMILIES, build_mask


def milliseconds(call: Callable[[], object], repeats: int = 9) -> float:
    """Median time of a call."""
    spent = []
    for _ in range(repeats):
        begin = time.perf_counter()
        call()
        spent.append((time.perf_counter() - begin) * 1e3)
    return statistics.median(spent)


def main(seqlen: int, ranks: int) -> None:
    """Prints a line a family, then the median over them."""
    torch.set_num_threads(1)
    totals = []
    for family in FAMILIES:
        if family == "block_sparse":
            continue  # its block mask is planned by NumPy
        documents = paper_documents(seqlen, "c") if FAMILIES[family].needs_documents else None
        mask = build_mask(family, seqlen, documents=documents)
        plan = make_plan(mask, ranks, bytes_per_token=512)
        whole = milliseconds(lambda mask=mask: make_plan(mask, ranks, bytes_per_token=512))  # type: ignore[misc]
        local = milliseconds(lambda plan=plan, mask=mask: plan.local_mask(mask, 0))  # type: ignore[misc]
        totals.append(whole + local)
        print(f"{family:22s} plan {whole:6.2f} local mask {local:6.2f}")
    print(f"median of {len(totals)} families: {statistics.median(totals):.2f} ms")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
