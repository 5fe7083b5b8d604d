"""Small problems for the tests of runner and competitors."""

import sys
from pathlib import Path
from typing import Any

from harness.cases import Group, MaskSpec, Problem, Timing
from harness.runner import RunOptions
from masks.documents import paper_documents
from masks.families import FAMILIES


def group(kernels: tuple[str, ...], rounds: int = 2, seqlen: int = 64, timeout_s: float = 60.0) -> Group:
    problem = Problem(MaskSpec("causal"), seqlen, batch=1, heads=1, kv_heads=1, head_dim=16, dtype="float32")
    timing = Timing(protocol="burst", rounds=rounds, min_samples=2, max_samples=2, target_s=0.001, timeout_s=timeout_s)
    return Group(problem, kernels, ("forward", "backward"), "cpu", timing)


def options(results: Path, **more: object) -> RunOptions:
    return RunOptions(results, worker=(sys.executable, str(Path(__file__).with_name("fake_worker.py"))), **more)


def problem_of(family: str, seqlen: int = 264, **shape: Any) -> Problem:
    """Of any family, with several batch items and a length that is no multiple of a tile."""
    documents = None
    if FAMILIES[family].needs_documents:
        documents = tuple((d.length, d.prefix, d.flag) for d in paper_documents(seqlen, "b"))
    # A block mask is taken with head dim 128 only by one of them.
    sizes = {"batch": 2, "heads": 2, "kv_heads": 2, "head_dim": 128 if family == "block_sparse" else 64} | shape
    dtype = sizes.pop("dtype", "bfloat16")
    return Problem(MaskSpec(family, "b", documents), seqlen, dtype=dtype, **sizes)
