"""Python's structures against the C headers that they mirror."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
from c_side import offsets_in_c

from context_parallel import compiled
from fm3_kernel import hopper, hopper_backward, hopper_forward


@pytest.mark.parametrize(
    ("header", "name", "structure"),
    [
        ("forward_args.h", "Fm3Mask", hopper.MaskArgs),
        ("forward_args.h", "Fm3ForwardArgs", hopper_forward.ForwardArgs),
        ("backward_args.h", "Fm3BackwardArgs", hopper_backward.BackwardArgs),
        ("backward_args.h", "Fm3RowsArgs", hopper_backward.RowsArgs),
        ("../planner/planner.h", "Fm3PlanMask", compiled.PlanMask),
        ("../planner/planner.h", "Fm3PlanCosts", compiled.PlanCosts),
        ("../planner/planner.h", "Fm3PlanGroup", compiled.PlanGroup),
    ],
)
def test_the_arguments_have_the_layout_of_the_header(
    header: str, name: str, structure: type[ctypes.Structure], tmp_path: Path
) -> None:
    """Offsets and size of the structure as the C++ compiler sees them."""
    fields = [field[0] for field in structure._fields_]
    expected = [getattr(structure, field).offset for field in fields] + [ctypes.sizeof(structure)]
    assert offsets_in_c(header, name, fields, tmp_path) == expected
