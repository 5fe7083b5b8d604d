"""The kernels' tile classes, compiled by the host's compiler, against those of ``masks.tiles``."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_masks import random_masks

from masks.column_mask import ColumnMask, tile_count
from masks.tiles import class_of_tiles

HERE = Path(__file__).resolve().parent
Classify = Callable[[ColumnMask, int, int], torch.Tensor]


@pytest.fixture(scope="module")
def classify(tmp_path_factory: pytest.TempPathFactory) -> Classify:
    compiler = shutil.which("g++") or shutil.which("clang++")
    assert compiler is not None, "a C++ compiler is part of the tests' requirements"
    library = tmp_path_factory.mktemp("tile_class") / "shim.so"
    command = [compiler, "-std=c++17", "-O1", "-Wall", "-Werror", "-fsanitize=undefined", "-fno-sanitize-recover", "-shared"]
    include = HERE.parent.parent / "csrc" / "common"
    subprocess.run([*command, "-fPIC", f"-I{include}", str(HERE / "tile_class_shim.cpp"), "-o", str(library)], check=True)
    function = ctypes.CDLL(str(library)).classify_all

    def call(mask: ColumnMask, tile_q: int, tile_k: int) -> torch.Tensor:
        """Classes [B, Hm, R, C] by the kernels' own code, vectors as given (not clipped before)."""
        shape = (mask.batch, mask.heads, mask.seqlen_k)
        absent = {"lts": 0, "lte": mask.seqlen_q if mask.lts is not None else 0, "uts": 0, "ute": 0}

        def whole(name: str) -> torch.Tensor:
            vector = getattr(mask, name)
            filled = torch.full(shape, absent[name], dtype=torch.int32) if vector is None else vector.expand(shape)
            return filled.contiguous()

        vectors = [whole(name) for name in ("lts", "lte", "uts", "ute")]
        out = torch.full(
            (*shape[:2], tile_count(mask.seqlen_q, tile_q), tile_count(mask.seqlen_k, tile_k)), -1, dtype=torch.int32
        )
        for b in range(mask.batch):
            for h in range(mask.heads):
                pointers = [ctypes.c_void_p(vector[b, h].data_ptr()) for vector in vectors]
                function(
                    *pointers,
                    mask.seqlen_q,
                    mask.seqlen_k,
                    tile_q,
                    tile_k,
                    int(mask.causal),
                    ctypes.c_void_p(out[b, h].data_ptr()),
                )
        return out

    return call


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(mask=random_masks(max_rows=40, max_columns=40), tile_q=st.sampled_from([1, 4, 8]), tile_k=st.sampled_from([1, 4, 8]))
def test_classes_are_those_of_the_masks(classify: Classify, mask: ColumnMask, tile_q: int, tile_k: int) -> None:
    assert torch.equal(classify(mask, tile_q, tile_k), class_of_tiles(mask, tile_q, tile_k).int())


def test_extreme_values_do_not_overflow(classify: Classify) -> None:
    """The sanitizer in the shim ends the process on a signed overflow."""
    values = torch.tensor([-(2**31), 2**31 - 1, 0, 5], dtype=torch.int32).repeat(4).view(1, 1, -1)
    mask = ColumnMask(lts=values, lte=values.flip(-1), uts=values.flip(-1), ute=values, seqlen_q=16, seqlen_k=16)
    assert torch.equal(classify(mask, 4, 4), class_of_tiles(mask, 4, 4).int())
