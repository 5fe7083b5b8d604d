"""Rows with a known truth: a small grid of cases beside its anchor, as fast and as noisy as a test says."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime, timedelta
from typing import Any

from row_factory import make_row

from harness.compare.judge import compare
from harness.compare.reading import Recording, recording
from harness.compare.settings import Settings
from harness.compare.verdict import Comparison, Verdict
from harness.rows import Row

MASKS = ("causal", "document", "sliding_window")
MS = {"full": 10.0, "causal": 5.0, "document": 3.0, "sliding_window": 1.0}
TODAY = date(2026, 6, 1)


def case_rows(
    mask: str,
    *,
    kernel: str = "fm3",
    rounds: int = 20,
    noise: float = 0.005,
    slower: float = 0.0,
    seed: int = 0,
    start: datetime = datetime(2026, 1, 2, tzinfo=UTC),
    clock: float | None = 1600.0,
    throttle: int = 4,
    **fields: Any,
) -> list[Row]:
    """A case's rows. ``slower``: by which share its throughput is lower. ``clock`` in MHz: its times go with it."""
    draw = random.Random(f"{mask} {kernel} {seed}")
    rows = []
    for number in range(rounds):
        ms = MS[mask] * (1 + draw.gauss(0, noise)) / (1 - slower) * (1600.0 / clock if clock else 1.0)
        if number % 2:
            ms *= 1.05  # measured in the other order
        clocks = None if clock is None else {"sm_mhz": [clock, clock, clock], "throttle": throttle}
        rows.append(
            make_row(**{
                "kernel": kernel, "mask": mask, "samples_ms": [ms, ms * 1.001, ms * 0.999], "round": number, "clocks": clocks,
                "time": (start + timedelta(seconds=number)).isoformat(), "gpu_hash": "card-1", **fields,
            })
        )  # fmt: skip
    return rows


def grid(
    *, slow: dict[str, dict[str, Any]] | None = None, seed: int = 0, anchor: dict[str, Any] | None = None, **common: Any
) -> list[Row]:
    """The anchor and the cases of MASKS; ``slow`` changes some of them by mask, ``anchor`` the anchor."""
    rows = case_rows("full", **{"kernel": "sdpa_cudnn", "seed": seed, **common, **(anchor or {})})
    for mask in MASKS:
        rows += case_rows(mask, **{"seed": seed, **common, **((slow or {}).get(mask, {}))})
    return rows


NEW = {"run_id": "run-new", "start": datetime(2026, 2, 2, tzinfo=UTC), "seed": 1}
"""What makes rows those of a candidate."""


def candidate(**how: Any) -> Recording:
    return recording("new", grid(**{**NEW, **how}), now=datetime(2026, 6, 1, tzinfo=UTC))


def baseline(**how: Any) -> Recording:
    return recording("base", grid(**{"rounds": 40, **how}), now=datetime(2026, 6, 1, tzinfo=UTC))


def compared(new: Recording, base: Recording, settings: Settings | None = None, **how: Any) -> Comparison:
    return compare(new, base, settings or Settings(), today=TODAY, **how)


def verdict_of(found: Comparison, mask: str, kernel: str = "fm3") -> Verdict:
    (one,) = [v for v in found.verdicts if v.row["mask"] == mask and v.row["kernel"] == kernel]
    return one
