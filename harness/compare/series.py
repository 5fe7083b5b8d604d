"""From cells to what is compared: the speed of a case relative to its anchor, round by round, apart for every card.

The anchor is one kernel's full mask at the same length, pass and shape. A round is paired with the anchor's round of the
same number: of the same run where it has one, else of the nearest run on the same card. Which rows count at all is decided
in ``plots.cells``; nothing is judged here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from harness.compare.rule import Rounds
from harness.compare.settings import Settings, Thresholds
from harness.rows import Row
from plots.cells import Cell, cells_of, time_of
from plots.statistics import median


class Key(NamedTuple):
    """What may be compared: a case (protocol and cache state are part of its id) on one kind of machine."""

    case_id: str
    gpu: str
    power_limit: float | None
    source: str


def key_of(row: Row) -> Key:
    """The key of a row."""
    return Key(row["case_id"], row["gpu"], row["power_limit"], row["source"])


@dataclass(frozen=True)
class Series:
    """One case on one card.

    rounds: speed relative to the anchor. cycles: the same by clock cycles, None where a clock is not known. clock,
    anchor_clock: median SM clock, MHz. clock_scatter: of ``clock`` from round to round, relative, 10th to 90th percentile.
    throttle: NVML's reasons seen in any round. anchor: source hash of what the ratios are to, None when ``rounds`` is empty
    because no round has an anchor. unpaired: rounds without one.
    """

    rounds: Rounds
    cycles: Rounds | None
    clock: float | None
    clock_scatter: float | None
    anchor_clock: float | None
    throttle: int
    anchor: str | None
    unpaired: int


@dataclass(frozen=True)
class Side:
    """Everything one side of a comparison has: cells by key, and the anchors of their cards."""

    cells: Mapping[Key, Cell]
    anchors: Mapping[tuple[Any, ...], Mapping[str, Mapping[int, Row]]]
    anchor_keys: frozenset[Key]
    thresholds: Thresholds

    def cards(self, key: Key) -> dict[str | None, list[Row]]:
        """The good rows of a case by card."""
        found: dict[str | None, list[Row]] = defaultdict(list)
        for row in self.cells[key].rows:
            found[row["gpu_hash"]].append(row)
        return found

    def series(self, rows: Sequence[Row]) -> Series:
        """The series of rows of one case and one card."""
        runs = self.anchors.get(_anchor_key(rows[0]), {})
        pairs = [(row, anchor) for row in rows if (anchor := self._anchor_of(row, runs)) is not None]
        figures = np.array([median(anchor["samples_ms"]) / median(row["samples_ms"]) for row, anchor in pairs])
        numbers = np.array([row["round"] for row, _ in pairs], dtype=np.int64)
        clocks = [(sm_clock(row), sm_clock(anchor)) for row, anchor in pairs]
        known = bool(clocks) and all(None not in pair for pair in clocks)
        own = np.array([ours for ours, _ in clocks]) if known else None
        ratio = np.array([theirs / ours for ours, theirs in clocks]) if known else None  # type: ignore[operator]
        return Series(
            rounds=Rounds(figures, numbers),
            cycles=None if ratio is None else Rounds(figures * ratio, numbers),
            clock=None if own is None else float(np.median(own)),
            clock_scatter=None if own is None else float(np.ptp(np.percentile(own, (10, 90))) / np.median(own)),
            anchor_clock=median([theirs for _, theirs in clocks if theirs is not None]) if known else None,
            throttle=throttle_of(rows),
            anchor=pairs[-1][1]["source_hash"] if pairs else None,
            unpaired=len(rows) - len(pairs),
        )

    def _anchor_of(self, row: Row, runs: Mapping[str, Mapping[int, Row]]) -> Row | None:
        own = runs.get(row["run_id"], {}).get(row["round"])
        if own is not None or not runs:
            return own
        time = time_of(row)
        others = [rounds[row["round"]] for rounds in runs.values() if row["round"] in rounds]
        nearest = min(others, key=lambda other: (abs(time_of(other) - time), other["run_id"]), default=None)
        if nearest is None or abs(time_of(nearest) - time).total_seconds() > self.thresholds.anchor_hours * 3600:
            return None
        return nearest


def side_of(rows: Iterable[Row], settings: Settings) -> Side:
    """The side that these rows make.

    Raises:
        RowError: a time that is not ISO 8601.
    """
    cells = {key_of(cell.row): cell for cell in cells_of(rows)}
    anchors: dict[tuple[Any, ...], dict[str, dict[int, Row]]] = defaultdict(lambda: defaultdict(dict))
    keys = set()
    for key, cell in cells.items():
        if is_anchor(cell.row, settings):
            keys.add(key)
            for row in cell.rows:
                anchors[_anchor_key(row)][row["run_id"]][row["round"]] = row
    return Side(cells, anchors, frozenset(keys), settings.thresholds)


def is_anchor(row: Row, settings: Settings) -> bool:
    """Whether the case is what others are measured by."""
    return row["kernel"] == settings.anchors.get(row["device"]) and row["mask"] == "full" and not row["mask_params"]


_anchor_key = itemgetter(
    "gpu_hash", "gpu", "power_limit", "source", "device", "protocol", "l2", "pass", "seqlen", "batch", "heads", "kv_heads",
    "head_dim", "dtype", "deterministic", "cp_degree", "timing_version",
)  # fmt: skip
"""What a case and its anchor have in common."""


def sm_clock(row: Row) -> float | None:
    """Median SM clock of a round, MHz; None where it was not read."""
    series = (row["clocks"] or {}).get("sm_mhz")
    return float(series[1]) if isinstance(series, list) and len(series) == 3 and series[1] else None


def throttle_of(rows: Iterable[Row]) -> int:
    """NVML's throttle reasons of all rounds, as bits."""
    bits = 0
    for row in rows:
        bits |= int((row["clocks"] or {}).get("throttle", 0))
    return bits
