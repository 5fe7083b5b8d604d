"""Which cases of the baseline should the candidate have, and what is said of those that it was not asked for?"""

from __future__ import annotations

from typing import Any

from harness.compare.series import Side
from plots.captions import machine
from plots.cells import SILENT, Cell


class Scope:
    """Which cases of the baseline the candidate should have, and what is said of those that it was not asked for."""

    def __init__(self, new: Side, whole: bool) -> None:
        self.whole = whole
        self.machines = {_machine(cell) for cell in new.cells.values()}
        loud = [cell for cell in new.cells.values() if cell.status not in SILENT]
        self.problems = {_problem(cell) for cell in loud}
        self.kernels = {_kernel(cell) for cell in loud}
        self.new = new

    def expects(self, cell: Cell) -> bool:
        """Whether a case that is not there was lost: its problem was measured, and its kernel was, in that pass."""
        if self.whole:
            return _machine(cell) in self.machines
        return _problem(cell) in self.problems and _kernel(cell) in self.kernels

    def why_new(self, ours: Cell, theirs: Cell | None, base: Side) -> str:
        """What is known of a case without a baseline."""
        if theirs is not None:
            return f"was {theirs.status}"
        others = [cell for cell in base.cells.values() if cell.ok and _question(cell) == _question(ours)]
        machines = sorted(map(_where, others))
        return f"the baseline has it on {machines[0]}: never compared" if machines else "no baseline"

    def notes(self, base: Side) -> list[str]:
        """What of the baseline was left alone."""
        left = [cell for key, cell in base.cells.items() if cell.ok and key not in self.new.cells]
        elsewhere = [cell for cell in left if _machine(cell) not in self.machines]
        unasked = [cell for cell in left if _machine(cell) in self.machines and not self.expects(cell)]
        found = []
        if elsewhere:
            names = ", ".join(sorted({_where(cell) for cell in elsewhere}))
            found.append(f"not compared, of another machine or protocol: {len(elsewhere)} of the baseline ({names})")
        if unasked:
            found.append(f"not measured by the candidate: {len(unasked)} of the baseline")
        return found


def _where(cell: Cell) -> str:
    return f"{machine(cell)}, {cell['protocol']}"


def _machine(cell: Cell) -> tuple[Any, ...]:
    return (cell["gpu"], cell["power_limit"], cell["protocol"], cell["source"])


def _problem(cell: Cell) -> tuple[Any, ...]:
    names = ("mask", "mask_variant", "seqlen", "batch", "heads", "kv_heads", "head_dim", "dtype", "seed", "l2", "deterministic",
             "cp_degree")  # fmt: skip
    return (*_machine(cell), str(sorted(cell["mask_params"].items())), *(cell[name] for name in names))


def _kernel(cell: Cell) -> tuple[Any, ...]:
    return (*_machine(cell), cell["kernel"], cell["pass"], cell["strategy"])


def _question(cell: Cell) -> tuple[Any, ...]:
    names = ("kernel", "pass", "mask", "mask_variant", "seqlen", "head_dim", "dtype", "cp_degree", "source")
    return tuple(cell[name] for name in names)
