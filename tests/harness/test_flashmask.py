"""The competitor ``flashmask``: where it can run, what it takes, and which files its rows depend on."""

from __future__ import annotations

import pytest
import torch

from fm3_kernel import ampere
from harness.backends import BACKENDS
from harness.backends import own_kernel as module
from harness.cases import MaskSpec, Problem
from harness.inputs import make_mask


def problem_of(**changed: object) -> Problem:
    sizes = {"seqlen": 256, "batch": 1, "heads": 2, "kv_heads": 1, "head_dim": 128, "dtype": "bfloat16"} | changed
    return Problem(MaskSpec("causal"), **sizes)  # type: ignore[arg-type]


def refusal(pass_: str, **changed: object) -> str | None:
    problem = problem_of(**changed)
    return BACKENDS["flashmask"].unsupported(problem, make_mask(problem, "cpu"), pass_, "cuda")


def test_what_it_takes() -> None:
    assert all(refusal(pass_, head_dim=dim) is None for pass_ in ("forward", "both") for dim in (64, 128))
    assert refusal("forward", head_dim=256) is None
    assert refusal("both", head_dim=256) == "takes head dims 64, 128 in this pass, not 256"
    assert refusal("forward", head_dim=96) == "takes head dims 64, 128, 256 in this pass, not 96"
    assert refusal("forward", dtype="float32") == "takes bfloat16 and float16, not float32"


def test_where_it_can_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """On no CPU and no old GPU, which is named; on a later one if there is a compiler, else with what the compiler lacks."""
    backend = BACKENDS["flashmask"]
    assert backend.probe("cpu").reason == "needs an NVIDIA GPU"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Tesla T4")
    monkeypatch.setattr(ampere, "runs_on", lambda device: False)
    assert backend.probe("cuda").reason == "Tesla T4 is older than compute capability 8.0"
    monkeypatch.setattr(ampere, "runs_on", lambda device: True)
    monkeypatch.setattr(module, "build", lambda name: None)
    assert backend.probe("cuda").ok

    def without_compiler(name: str) -> None:
        raise module.BuildError("no nvcc found: looked everywhere\nand more")

    monkeypatch.setattr(module, "build", without_compiler)
    assert backend.probe("cuda").reason == "no nvcc found: looked everywhere"


def test_rows_of_a_pass_depend_on_its_kernels_alone() -> None:
    """Of the Hopper kernels only what is shared; of the other pass nothing."""
    backend = BACKENDS["flashmask"]
    forward = {path.name for path in backend.sources_of("forward")}
    backward = {path.name for path in backend.sources_of("backward")}
    both = {path.name for path in backend.sources_of("both")}
    assert {"ampere_forward_d64.cu", "tile_list.cuh", "prepare.cu", "tile_class.h", "ampere.py"} <= forward
    assert not any("backward" in name for name in forward)
    assert {"ampere_backward_d128.cu", "backward_rows.cu", "row_runs.cuh", "prepare.cu", "ampere.py"} <= backward
    assert "ampere_forward_d64.cu" not in backward
    assert both == forward | backward
    assert not {"multiply_role.cuh", "backward_multiply.cuh", "hopper_backward.py"} & both
