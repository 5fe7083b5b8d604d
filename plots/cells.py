"""From rows to cells: which rows count, and what one measurement says once its rounds are pooled.

A *cell* is one (case, GPU): everything a bar, a point, a table line or a line of ``summary.csv`` needs. The rules:

- Only the newest source hash of each kernel and pass counts, newest by the time of its latest row, apart for every GPU (model
  and power limit), context-parallel scheme and source. Rows that say nothing about the code (``missing_backend``,
  ``interrupted``) decide nothing here, and are used only for a case that has no other row.
- All rounds of that source hash are pooled, over every run; never the best of history. Rows of an older timing method
  or of another mask content than the newest good row are left out. A row stored twice counts once; two rows of one round
  that say different things are refused, since one of them was edited.
- A case with good rows and a failure takes the status of its newest row: a later failure is not hidden by an older
  number, and a later success (the rest of the rounds, after a crash) counts. ``incorrect`` is stronger: a wrong result
  stands, whatever came later, until the code changes (another ``tree_hash``).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from typing import Any

from harness.rows import Row, RowError, place_of, read_file, row_files
from masks.families import FAMILIES
from plots.statistics import Interval, Ratio, bootstrap_median, median, paired_ratio, quartiles

SILENT = ("missing_backend", "interrupted")
"""Statuses that say nothing about the kernel's code."""

LOCAL = "local"
"""Folder of a user's own rows below ``results``: read only when it is named itself."""

CONVENTIONS = {"exact": "flops", "tile128": "flops_tile128"}
"""How operations are counted: by exact density (the headline) or by 128x128-tile density (the papers' convention)."""


@dataclass(frozen=True)
class Cell:
    """One (case, GPU). ``row`` is the newest row that counts, ``rows`` the good rows (empty unless status is ok)."""

    row: Row
    status: str
    reason: str | None
    rows: tuple[Row, ...]

    def __getitem__(self, field: str) -> Any:
        return self.row[field]

    @property
    def ok(self) -> bool:
        """Whether the cell has figures."""
        return self.status == "ok"

    @property
    def rounds(self) -> dict[Hashable, Sequence[float]]:
        """Samples in milliseconds by (run, round)."""
        return {(row["run_id"], row["round"]): row["samples_ms"] for row in self.rows}

    @cached_property
    def samples(self) -> list[float]:
        """All samples in milliseconds, in order of time."""
        return [sample for row in self.rows for sample in row["samples_ms"]]

    @cached_property
    def median_ms(self) -> float:
        """Median of all samples."""
        return median(self.samples)

    @cached_property
    def quartiles_ms(self) -> tuple[float, float]:
        """25% and 75% quantiles of all samples."""
        return quartiles(self.samples)

    @cached_property
    def interval_ms(self) -> Interval:
        """95% bootstrap interval of the median over rounds; of a simulated cell what its model says."""
        if self.row["simulation"] is not None:
            return Interval(*self.row["simulation"]["interval_ms"])
        return bootstrap_median(list(self.rounds.values()))

    def tflops(self, convention: str = "exact") -> float:
        """TFLOP/s at the median time; ``convention`` is a key of CONVENTIONS."""
        return rate(self.row[CONVENTIONS[convention]], self.median_ms)

    def tflops_interval(self, convention: str = "exact") -> Interval:
        """TFLOP/s at the bounds of :attr:`interval_ms`, lowest first."""
        flops = self.row[CONVENTIONS[convention]]
        return Interval(rate(flops, self.interval_ms.high), rate(flops, self.interval_ms.low))

    def middle(self, field: str) -> float | None:
        """Median over the good rows of a field that may be null; None when it always is."""
        values = [row[field] for row in self.rows if row[field] is not None]
        return median(values) if values else None

    def speedup_over(self, other: Cell) -> Ratio:
        """How many times as fast as ``other``, paired by round."""
        return paired_ratio(other.rounds, self.rounds)


def rate(flops: float, milliseconds: float) -> float:
    """TFLOP/s."""
    return flops / (milliseconds * 1e9)


def load_rows(folder: Path | str, cut_off: Callable[[str], None] | None = None, name: str | None = None) -> list[Row]:
    """All rows below ``folder``, without its ``local`` subfolder.

    Args:
        folder: where to look.
        cut_off: told of files that end in half a line.
        name: what errors call the folder; its path where it is not given.

    Raises:
        FileNotFoundError: no such folder.
        RowError: a file that is not made of rows.
    """
    root = Path(folder)
    if not root.is_dir():
        raise FileNotFoundError(f"no folder {folder}")
    rows: list[Row] = []
    for path in row_files(root):
        within = path.relative_to(root)
        if within.parts[0] != LOCAL:
            rows.extend(read_file(path, cut_off, None if name is None else f"{name}/{within.as_posix()}"))
    return rows


def cells_of(rows: Iterable[Row]) -> list[Cell]:
    """The cells of ``rows``, in a fixed order that does not depend on the order of the rows.

    Raises:
        RowError: a time that is not ISO 8601, or rows of one round that say different things.
    """
    timed = [(time_of(row), row) for row in unique(rows)]
    timed.sort(key=lambda pair: (pair[0], pair[1]["run_id"], pair[1]["round"], pair[1]["order"], pair[1]["status"]))
    newest = {_code(row): row["source_hash"] for _, row in timed if row["status"] not in SILENT}
    cases: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for _, row in timed:
        cases[(row["case_id"], *_code(row), row["l2"], row["protocol"])].append(row)
    found = [_cell(members, newest.get(_code(members[0]))) for members in cases.values()]
    return sorted((cell for cell in found if cell is not None), key=sort_key)


def _cell(rows: list[Row], source_hash: str | None) -> Cell | None:
    """The cell of one case from its rows, oldest first; None when all of them are of an older source hash."""
    loud = [row for row in rows if row["status"] not in SILENT]
    current = [row for row in loud if row["source_hash"] == source_hash]
    if not current:
        return None if loud else Cell(rows[-1], rows[-1]["status"], rows[-1]["reason"], ())
    last = current[-1]
    for row in current:
        if row["status"] == "incorrect" and row["tree_hash"] == last["tree_hash"]:
            last = row
    if last["status"] != "ok":
        return Cell(last, last["status"], last["reason"], ())
    same = ("timing_version", "mask_digest")
    good = [row for row in current if row["status"] == "ok" and all(row[f] == last[f] for f in same)]
    return Cell(last, "ok", None, tuple(good))


def unique(rows: Iterable[Row]) -> list[Row]:
    """Every row once, in the order given; of those that are stored twice the first.

    Raises:
        RowError: two rows of one round that say different things; names both places.
    """
    found: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        other = found.setdefault(identity_of(row), row)
        if other is not row and other != row:
            raise RowError(_conflict(other, row))
    return list(found.values())


def _conflict(one: Row, other: Row) -> str:
    """Where two rows of one round are, and what they say differently."""
    names = [name for name in one if one[name] != other.get(name)]
    said = f"{names[0]} is {_brief(one[names[0]])} and {_brief(other.get(names[0]))}"
    more = f"; {', '.join(names[1:])} differ too" if names[1:] else ""
    what = f"round {one['round']} of run {one['run_id']!r}, {one['kernel']} {one['mask']} {one['seqlen']} {one['pass']}"
    return (
        f"{place_of(one)} and {place_of(other)} are both {what}, and do not agree: {said}{more}. "
        "A row never changes once it is written: remove the one that was edited"
    )


def _brief(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def identity_of(row: Row) -> tuple[Any, ...]:
    """What two rows that are one have in common. A round of a run is measured once, and may fail several times."""
    return _identity(row) if row["status"] == "ok" else (*_identity(row), row["time"])


_identity = itemgetter("run_id", "case_id", "round", "status")

_code = itemgetter("kernel", "pass", "strategy", "exchange", "source", "gpu", "power_limit")
"""What shares one current source hash."""


def time_of(row: Row) -> datetime:
    """When the row was recorded; UTC where it does not say.

    Raises:
        RowError: not ISO 8601.
    """
    try:
        time = datetime.fromisoformat(row["time"])
    except ValueError as error:
        raise RowError(f"{place_of(row)}: time is {row['time']!r}; expected ISO 8601") from error
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def mask_rank(mask: str) -> tuple[int, str]:
    """Place of a mask in figures and tables: the families in the registry's order, anything else last by name."""
    names = list(FAMILIES)
    return (names.index(mask) if mask in FAMILIES else len(names), mask)


_SORT_FIELDS = (
    "gpu", "power_limit", "protocol", "l2", "source", "cp_degree", "dtype", "head_dim", "heads", "kv_heads",
    "deterministic", "mask", "mask_variant", "seqlen", "batch", "seed", "pass", "kernel", "strategy", "exchange",
    "case_id",
)  # fmt: skip


def sort_key(cell: Cell) -> tuple[tuple[bool, Any], ...]:
    """Fixed order of cells: machine, protocol, shape, mask, pass, kernel; absent values first."""
    values = [mask_rank(cell[f]) if f == "mask" else cell[f] for f in _SORT_FIELDS]
    return tuple((value is not None, value if value is not None else 0) for value in values)


def series_of(cell: Cell) -> str:
    """The competitor as a figure names it: kernel, and the context-parallel scheme where there is one."""
    return " ".join(str(part) for part in (cell["kernel"], cell["strategy"], cell["exchange"]) if part)
