"""Many figures on all cores. Drawing takes most of the time of a report, and no figure depends on another.

Workers are fresh processes and not forks: a fork of a process whose libraries have threads can wait for ever. What they hand
back is in the order of the figures, so what is written does not depend on how many cores there are.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

WORTH = 5
"""Figures that take as long as starting one more process, which loads the libraries anew."""


def each(make: Callable[[T], R], items: Sequence[T], cores: int | None = None) -> list[R]:
    """``make`` of every item, in order, by as many processes as there are cores and the items are worth.

    Args:
        make: a function of a module other than a ``__main__``, or a partial of one. It, the items and what it returns are
            pickled. What it raises is raised here, for the first item that fails.
        cores: how many to use; all that this process may use.
    """
    return begin(make, items, cores)()


def begin(make: Callable[[T], R], items: Sequence[T], cores: int | None = None) -> Callable[[], list[R]]:
    """As ``each``, while this process does something else: what it returns waits for the results, and is to be called once."""
    workers = min(cores or _cores(), len(items) // WORTH)
    if workers < 2:
        return lambda: [make(item) for item in items]
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"))
    made = pool.map(make, items)

    def results() -> list[R]:
        try:
            with pool:
                return list(made)
        except BrokenProcessPool:  # one was killed, for its memory for instance: slower, then
            return [make(item) for item in items]

    return results


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
