"""The planner's two long parts compiled (``csrc/planner/``): the same numbers as in NumPy, many times faster.

NumPy is the reference: what it is asked for in other modules stays there, and tests compare the two. A machine without a C++
compiler plans with it alone.
"""

from __future__ import annotations

import ctypes
from functools import cache

import numpy as np
from torch import Tensor

from context_parallel.grid import Grid
from context_parallel.work import Costs, Work, weights_of
from fm3_kernel.build import BuildError
from fm3_kernel.host_library import load_host
from masks.column_mask import ColumnMask

_INT, _LONG, _POINTER = ctypes.c_int32, ctypes.c_int64, ctypes.c_void_p


class PlanMask(ctypes.Structure):
    """``Fm3PlanMask`` of ``csrc/planner/planner.h``, field by field."""

    _fields_ = [
        *((name, _POINTER) for name in ("lts", "lte", "uts", "ute")),
        ("heads", _LONG),
        ("seqlen", _INT),
        ("causal", _INT),
    ]


class PlanCosts(ctypes.Structure):
    """``Fm3PlanCosts``, likewise."""

    _fields_ = [(name, _LONG) for name in ("near", "far", "hidden_eighths")]


class PlanGroup(ctypes.Structure):
    """``Fm3PlanGroup``, likewise."""

    _fields_ = [
        *((name, _INT) for name in ("chunks", "units", "ranks", "ranks_per_node", "unit", "units_a_chunk")),
        ("slack", _LONG),
    ]


@cache
def why_not() -> str | None:
    """Why nothing can be compiled here, or None."""
    try:
        load_host("planner")
    except BuildError as error:
        return str(error)
    return None


def compiled_work(mask: ColumnMask, grid: Grid, costs: Costs) -> Work:
    """What :func:`context_parallel.work.work_of` returns; the mask has no block mask.

    Raises:
        PlanError: a mask of another sequence. BuildError: see :func:`why_not`.
    """
    grid.check(mask)
    names = ("lts", "lte", "uts", "ute")
    vectors: dict[str, Tensor | None] = {name: getattr(mask, name) for name in names}
    there = {name: vector.cpu().contiguous() for name, vector in vectors.items() if vector is not None}
    heads = max((vector.shape[0] * vector.shape[1] for vector in there.values()), default=1)
    needs = np.empty((grid.chunks, grid.units), dtype=np.uint8)
    full, partial = np.empty((2, grid.chunks, grid.units), dtype=np.int64)
    pointers = (there[name].data_ptr() if name in there else None for name in names)
    of_mask = PlanMask(*pointers, heads, grid.seqlen, int(mask.causal))
    arrays = (_data(x) for x in (needs, full, partial))
    load_host("planner").fm3_plan_work(ctypes.byref(of_mask), grid.chunk, grid.unit, *arrays)
    return Work(grid, costs, needs.view(bool), full, partial, weights_of(full, partial, grid, costs, heads))


def compiled_placement(work: Work, ranks: int, ranks_per_node: int, slack: int) -> np.ndarray:
    """The placement that :func:`context_parallel.balance.balance` takes, int64 ``[chunks]``.

    Raises:
        BuildError: see :func:`why_not`.
    """
    grid, costs = work.grid, work.costs
    group = PlanGroup(grid.chunks, grid.units, ranks, ranks_per_node, grid.unit, grid.chunk // grid.unit, slack)
    prices = PlanCosts(costs.near, costs.far, costs.hidden_eighths)
    placement = np.empty(grid.chunks, dtype=np.int64)
    needs, weights = np.ascontiguousarray(work.needs), np.ascontiguousarray(work.weights)
    arrays = (_data(x) for x in (needs, weights, placement))
    load_host("planner").fm3_plan_balance(ctypes.byref(group), ctypes.byref(prices), *arrays)
    return placement


def _data(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)
