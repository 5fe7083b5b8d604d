"""Rates of links from the readings of ``links.csv``, for ``harness.simulate.fit``.

The latency of NCCL is the intercept of its all-gathers, its bandwidth is then fitted to exchanges both ways, which is what the
runtime does. Copies, and what attention reaches beside transfers, have one reading each and a spread that is assumed.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from harness.rows import RowError
from harness.simulate.least_squares import least_squares, short

MIB = 2**20


SINGLE = {
    "nvlink_copy_128": ("mib", "ms"),
    "nvlink_copy_flag": ("ms",),
    "nvlink_sm_beside": ("ms", "attention_ms", "both_ms"),
    "nvlink_copy_beside": ("ms", "attention_ms", "both_ms"),
}
"""Readings of which there is one, and the numbers that each must have."""


def read(path: Path) -> dict[str, dict[str, Any]]:
    """The readings of a file, by id.

    Raises:
        RowError: a reading or one of its numbers is missing; names the file and what it lacks.
    """
    with path.open(encoding="utf-8", newline="") as stream:
        lines = {str(line.get("id")): {key: _number(value) for key, value in line.items()} for line in csv.DictReader(stream)}
    wanted = dict(SINGLE)
    for kind in ("gather", "exchange"):
        names = [name for name in lines if name.startswith(f"nvlink_{kind}_")]
        if len(names) < 2:
            raise RowError(f"{path} has {len(names)} readings nvlink_{kind}_*; a line takes two at least")
        wanted |= dict.fromkeys(names, ("mib", "ms"))
    for name, numbers in wanted.items():
        if name not in lines:
            raise RowError(f"{path} has no reading {name}")
        for number in numbers:
            if not isinstance(lines[name].get(number), float):
                raise RowError(f"{path}, reading {name}: {number} is {lines[name].get(number)!r}; expected a number")
    return lines


def links(path: Path) -> dict[str, Any]:
    """Rates of the link readings of one GPU, by link and way.

    Raises:
        RowError: as :func:`read`.
    """
    lines = read(path)
    where = f"results/{path.parent.name}/{path.name}"
    gathers, exchanges = (
        sorted(name for name in lines if name.startswith(f"nvlink_{kind}_")) for kind in ("gather", "exchange")
    )
    latency, gather_error = _line(lines, gathers)
    mib = np.array([lines[name]["mib"] for name in exchanges])
    times = np.array([lines[name]["ms"] for name in exchanges])
    # The bandwidth alone, after the latency: one coefficient, relative errors.
    weight, left = mib / times, 1 - latency / times
    slope = float(weight @ left / (weight @ weight))
    exchange_error = float(np.abs((latency + slope * mib) / times - 1).max())
    copy = lines["nvlink_copy_128"]
    single = 0.1
    measured = f"{where}: {{}}"
    sm = {
        "gb_per_s": _rate(MIB / slope / 1e6, exchange_error, measured.format(", ".join(exchanges))),
        "latency_us": _rate(latency * 1e3, gather_error, measured.format(", ".join(gathers))),
        "beside": _rate(_beside(lines["nvlink_sm_beside"]), single, f"{where}: nvlink_sm_beside; one reading, spread assumed"),
    }
    copies = {
        "gb_per_s": _rate(
            copy["mib"] * MIB / copy["ms"] / 1e6, single, f"{where}: nvlink_copy_128; one reading, spread assumed"
        ),
        "latency_us": _rate(
            lines["nvlink_copy_flag"]["ms"] * 1e3, 0.5, f"{where}: nvlink_copy_flag; one reading ('about'), spread assumed"
        ),
        "beside": _rate(
            _beside(lines["nvlink_copy_beside"]), single, f"{where}: nvlink_copy_beside; one reading, spread assumed"
        ),
    }
    return {"nvlink": {"sm": sm, "copy": copies}}


def _line(lines: dict[str, dict[str, Any]], names: Sequence[str]) -> tuple[float, float]:
    """Intercept (milliseconds) of time against size, and the largest relative error."""
    mib, times = (np.array([lines[name][key] for name in names]) for key in ("mib", "ms"))
    found, errors = least_squares(np.stack([mib, np.ones(len(mib))], axis=1), times)
    return float(found[1]), float(np.abs(errors).max())


def _beside(line: dict[str, Any]) -> float:
    """Share of its speed at which attention works during a transfer: what of the transfer's time was hidden."""
    return float((line["attention_ms"] + line["ms"] - line["both_ms"]) / line["ms"])


def _rate(value: float, spread: float, source: str) -> dict[str, Any]:
    return {"value": short(value), "spread": short(spread), "source": source}


def _number(value: Any) -> Any:
    try:
        return float(value)
    except (TypeError, ValueError):
        return value or None
