"""Where tiles of the FlashMask kernels lie in shared memory: every element once, no bank twice, addresses by exclusive or."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
BANK_GROUPS = 8  # of 16 bytes, in the 128 bytes that shared memory serves at a time


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    compiler = shutil.which("g++") or shutil.which("clang++")
    assert compiler is not None, "a C++ compiler is part of the tests' requirements"
    library = tmp_path_factory.mktemp("swizzle") / "shim.so"
    include = HERE.parent.parent / "csrc" / "sm80"
    command = [compiler, "-std=c++17", "-O1", "-Wall", "-Werror", "-shared", "-fPIC", f"-I{include}"]
    subprocess.run([*command, str(HERE / "swizzle_shim.cpp"), "-o", str(library)], check=True)
    return ctypes.CDLL(str(library))


@pytest.mark.parametrize("columns", [64, 128, 256])
def test_every_unit_has_a_place_of_its_own(shim: ctypes.CDLL, columns: int) -> None:
    units = columns // 8
    places = sorted(shim.place(columns, row, unit) for row in range(64) for unit in range(units))
    assert places == list(range(0, 64 * columns, 8))


@pytest.mark.parametrize("columns", [64, 128, 256])
def test_no_bank_is_met_twice(shim: ctypes.CDLL, columns: int) -> None:
    """Neither by the eight rows of a matrix, which ldmatrix reads together, nor by eight neighbours that copy a row."""
    for unit in range(columns // 8):
        for first in range(0, 64, 8):
            assert len({shim.place(columns, first + row, unit) // 8 % BANK_GROUPS for row in range(8)}) == BANK_GROUPS
    for row in range(64):
        for first in range(0, columns // 8, 8):
            assert len({shim.place(columns, row, first + unit) // 8 % BANK_GROUPS for unit in range(8)}) == BANK_GROUPS


@pytest.mark.parametrize("rows_first", [0, 1])
@pytest.mark.parametrize("columns", [64, 128, 256])
def test_a_block_across_is_one_exclusive_or_away(shim: ctypes.CDLL, columns: int, rows_first: int) -> None:
    """For every lane's row and unit, in every block of a row of blocks and in the blocks below."""
    for lane in range(32):
        row, unit = shim.lane_row(lane, rows_first), shim.lane_unit(lane, rows_first)
        address = 2 * shim.place(columns, row, unit)
        for blocks in range(columns // 16):
            for down in range(4):
                moved = shim.across(address, blocks) + down * 16 * columns * 2
                assert moved == 2 * shim.place(columns, row + 16 * down, unit + 2 * blocks)


def test_the_four_matrices_of_a_block(shim: ctypes.CDLL) -> None:
    """Rows first: the second lies below the first; columns first: to its right."""
    for rows_first, second in ((1, (8, 0)), (0, (0, 1))):
        corners = [(shim.lane_row(8 * i, rows_first), shim.lane_unit(8 * i, rows_first)) for i in range(4)]
        assert corners[:2] == [(0, 0), second]
        assert sorted(corners) == [(0, 0), (0, 1), (8, 0), (8, 1)]
        assert all(shim.lane_row(8 * i + r, rows_first) == corners[i][0] + r for i in range(4) for r in range(8))
