"""How long masks take: building each family at 128K and 1M tokens, and its exact density at 1M.

Run it from the repository root: ``python -m tests.masks.bench_masks``. Prints milliseconds, best of several, one mask
head unless the line says otherwise. A script, not a test: the figures depend on the machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from masks.column_mask import ColumnMask
from masks.documents import sampled_documents
from masks.families import FAMILIES, build_mask
from masks.tiles import exact_density

SHORT, LONG = 131_072, 1_048_576
REPEATS = 5


def best_ms(call: Callable[[], object]) -> float:
    """Milliseconds of the quickest of a few calls."""
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return min(times) * 1e3


def builder(name: str, seqlen: int, batch: int = 1, heads: int = 1) -> Callable[[], ColumnMask]:
    """A call that builds the family's mask; the documents are drawn beforehand."""
    documents = sampled_documents(seqlen, seed=0) if FAMILIES[name].needs_documents else None
    return lambda: build_mask(name, seqlen, documents=documents, batch=batch, heads=heads)


def main() -> None:
    """Prints the table."""
    torch.set_num_threads(1)  # what a busy machine gives, and steadier
    print(f"torch {torch.__version__}, one thread, milliseconds, best of {REPEATS}")
    print(f"{'family':<24}{'build 128K':>12}{'build 1M':>12}{'density 1M':>12}{'exact density':>15}")
    for name in FAMILIES:
        short, long = best_ms(builder(name, SHORT)), best_ms(builder(name, LONG))
        line = f"{name:<24}{short:>12.2f}{long:>12.2f}"
        mask = builder(name, LONG)()
        if mask.block_mask is None:  # with one it takes a pass over the columns for each of 8,192 rows of tiles
            density = best_ms(lambda mask=mask: exact_density(mask))
            line += f"{density:>12.2f}{exact_density(mask):>15.6f}"
        print(line)
    print()
    for batch, heads, seqlen in ((1, 32, SHORT), (32, 32, 4096)):
        for name in ("random_eviction", "block_sparse"):
            print(f"{name}, {seqlen} tokens, {batch} x {heads} heads: {best_ms(builder(name, seqlen, batch, heads)):.0f}")


if __name__ == "__main__":
    main()
