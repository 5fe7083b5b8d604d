"""Stand-ins for competitors' packages: the documented arguments and nothing else, checked, and the answer in plain torch.

They compute from what they are told, by their own documentation's words, and share no code with the adapters. ``install``
puts them where the adapters import from; every call is kept, so that a test can ask what was handed over.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest
import torch

from fake_kernels import cute, flash_attention, flashmask, magi
from fake_kernels.maths import CALLS
from harness.backends import package

VERSIONS = {
    "flash-attn": "2.8.3",
    "flash_attn_3": "3.0.0b1",
    "flash-attn-4": "4.0.0b36",
    "magi_attention": "1.1.0.post10",
    "flashmask": "3.0.0b1",
}
_IMPORTED_ON_USE = "harness.backends.cute_masks"


def _module(name: str, **content: Any) -> ModuleType:
    module = ModuleType(name)
    module.__path__ = []
    vars(module).update(content)
    return module


def modules_of(distribution: str) -> dict[str, ModuleType]:
    """The modules that a distribution brings, by full name."""
    if distribution == "flash-attn":
        functions = {"flash_attn_func": flash_attention.func_2, "flash_attn_varlen_func": flash_attention.varlen_func_2}
        return {"flash_attn": _module("flash_attn", **functions)}
    if distribution == "flash_attn_3":
        functions = {"flash_attn_func": flash_attention.func_3, "flash_attn_varlen_func": flash_attention.varlen_func_3}
        return {"flash_attn_interface": _module("flash_attn_interface", **functions)}
    if distribution == "flash-attn-4":
        utils = _module("flash_attn.cute.utils", scalar_to_ssa=cute.scalar_to_ssa)
        lists = _module("flash_attn.cute.block_sparsity", BlockSparseTensorsTorch=cute.BlockSparseTensorsTorch)
        dsl = _module("cutlass.cute", jit=lambda function: function)
        functions = {"flash_attn_func": cute.func_4, "flash_attn_varlen_func": flash_attention.varlen_func_4}
        return {
            "flash_attn": _module("flash_attn"),
            "flash_attn.cute": _module("flash_attn.cute", utils=utils, block_sparsity=lists, **functions),
            "flash_attn.cute.utils": utils,
            "flash_attn.cute.block_sparsity": lists,
            "cutlass": _module("cutlass", cute=dsl, Int32=cute.Int32),
            "cutlass.cute": dsl,
        }
    if distribution == "magi_attention":
        functional = _module("magi_attention.functional", flex_flash_attn_func=magi.flex_flash_attn_func)
        return {"magi_attention": _module("magi_attention", functional=functional), functional.__name__: functional}
    assert distribution == "flashmask"
    content = {"flashmask_attention": flashmask.flashmask_attention}
    return {"flashmask_interface": _module("flashmask_interface", **content)}


@contextmanager
def install(monkeypatch: pytest.MonkeyPatch, *distributions: str, capability: tuple[int, int] = (9, 0)) -> Iterator[None]:
    """Have these distributions, in the documented versions, on a GPU of this compute capability."""
    versions = {name: VERSIONS[name] for name in distributions}
    CALLS.clear()
    sys.modules.pop(_IMPORTED_ON_USE, None)
    with monkeypatch.context() as patch:
        patch.setattr(package, "package_version", _reader(versions))
        patch.setattr(torch.cuda, "get_device_capability", lambda *_: capability)
        patch.setenv(flashmask.VERSION_FLAG, "2")  # what a user left behind
        patch.setenv(flashmask.DETERMINISTIC_FLAG, "0")
        for distribution in distributions:
            for name, module in modules_of(distribution).items():
                patch.setitem(sys.modules, name, module)
        yield
    sys.modules.pop(_IMPORTED_ON_USE, None)  # it holds the stand-ins of this test


def _reader(versions: dict[str, str]) -> Callable[[str], str | None]:
    return lambda name: versions.get(name)
