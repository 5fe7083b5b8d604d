"""A small problem for the runner's tests."""

import sys
from pathlib import Path

from harness.cases import Group, MaskSpec, Problem, Timing
from harness.runner import RunOptions


def group(kernels: tuple[str, ...], rounds: int = 2, seqlen: int = 64, timeout_s: float = 60.0) -> Group:
    problem = Problem(MaskSpec("causal"), seqlen, batch=1, heads=1, kv_heads=1, head_dim=16, dtype="float32")
    timing = Timing(protocol="burst", rounds=rounds, min_samples=2, max_samples=2, target_s=0.001, timeout_s=timeout_s)
    return Group(problem, kernels, ("forward", "backward"), "cpu", timing)


def options(results: Path, **more: object) -> RunOptions:
    return RunOptions(results, worker=(sys.executable, str(Path(__file__).with_name("fake_worker.py"))), **more)
