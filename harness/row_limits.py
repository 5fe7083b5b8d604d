"""What the figures of a row can be: kinds of values with their limits, and what must hold between the fields of one row.

Rows are plain files, and a file can be edited. What no run could have given is told here in words; ``harness.rows`` says which
field is of which kind, and raises. Standard library only.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

LARGEST = 2**63 - 1
"""Of a whole number: JSON has integers of any length."""

ROUNDING = 1e-9
"""How far a share may be beyond its limit: means and ratios of floating-point numbers round."""


class Kind(NamedTuple):
    """Values that a field may have: their types, for numbers the least and the most, and all of it in words."""

    types: tuple[type, ...]
    allowed: str
    least: float = -math.inf
    most: float = math.inf


_WHOLE, _NUMBER = (int,), (int, float)

TEXT = Kind((str,), "text")
SWITCH = Kind((bool,), "true or false")
MAP = Kind((dict,), "an object")
LIST = Kind((list,), "a list")
VERSION = Kind(_WHOLE, "a whole number", -LARGEST, LARGEST)
COUNT = Kind(_WHOLE, "a whole number, at least 1", 1, LARGEST)
INDEX = Kind(_WHOLE, "a whole number, at least 0", 0, LARGEST)
FINITE = Kind(_NUMBER, "a finite number", -sys.float_info.max, sys.float_info.max)
AMOUNT = Kind(_NUMBER, "a number, at least 0", 0, sys.float_info.max)
POSITIVE = Kind(_NUMBER, "a number above 0", math.ulp(0.0), sys.float_info.max)
SHARE = Kind(_NUMBER, "a number from 0 to 1", 0, 1 + ROUNDING)
PART = Kind(_NUMBER, "a number above 0, at most 1", math.ulp(0.0), 1 + ROUNDING)


def fits(value: Any, kind: Kind) -> bool:
    """Whether a value is of a kind. True is no number."""
    if isinstance(value, bool):
        return bool in kind.types
    if not isinstance(value, kind.types):
        return False
    return not isinstance(value, int | float) or kind.least <= value <= kind.most


def brief(value: Any) -> str:
    """A value as a message shows it."""
    huge = isinstance(value, int) and abs(value) > LARGEST
    text = hex(value) if huge else f"{value:.6g}" if isinstance(value, float) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def impossible(row: Mapping[str, Any]) -> str | None:
    """What of a row cannot be, with what is allowed; None when all of it can.

    Args:
        row: one whose fields are there and of their kinds.
    """
    checks = (_samples, _shape, _densities, _received, _ranks, _maps, _simulation)
    return next((told for check in checks if (told := check(row)) is not None), None)


BESIDE = ("comp_samples_ms", "comm_samples_ms", "bare_samples_ms")
FIGURES = ("samples_ms", *BESIDE, "flops", "flops_tile128")
"""Of a run that went well, and of no other."""


def _samples(row: Mapping[str, Any]) -> str | None:
    if row["status"] != "ok":
        told = next((name for name in FIGURES if row[name] is not None), None)
        return None if told is None else f"status {row['status']} must not carry {told}"
    for name in ("samples_ms", *BESIDE):
        samples = row[name]
        if samples is not None and not _all_positive(samples):
            return f"{name} is {brief(samples)}; allowed: numbers above 0, at least one"
    return None


def _all_positive(samples: list[Any]) -> bool:
    """Whether these are positive numbers, and any. Ten floats are looked at together: there are many rows."""
    if set(map(type, samples)) == {float} and math.isfinite(sum(samples)):
        return min(samples) > 0
    return bool(samples) and all(fits(sample, POSITIVE) for sample in samples)


def _shape(row: Mapping[str, Any]) -> str | None:
    if row["heads"] % row["kv_heads"]:
        return f"kv_heads is {row['kv_heads']}; allowed: what divides heads, {row['heads']}"
    return None


def _densities(row: Mapping[str, Any]) -> str | None:
    """Visible pairs lie in tiles that are not skipped, and both counts of operations are of the same pairs."""
    density, by_tiles = row["density"], row["tile_density"]
    if density is None or by_tiles is None:
        return None
    # Edge tiles are shorter than 128 where the length is no multiple of it, and count as whole ones.
    most = by_tiles * (128 * math.ceil(row["seqlen"] / 128) / row["seqlen"]) ** 2
    if density > most * (1 + ROUNDING):
        return f"density is {brief(density)}; allowed: at most {most:.6g}, with a tile_density of {brief(by_tiles)}"
    flops, flops_by_tiles = row["flops"], row["flops_tile128"]
    if flops is not None and flops_by_tiles is not None:
        expected = flops * by_tiles / density
        if abs(flops_by_tiles - expected) > 1e-6 * expected:
            return f"flops_tile128 is {brief(flops_by_tiles)}; allowed: flops x tile_density / density, {expected:.6g}"
    return None


SWAPPING = ("ulysses",)
"""Strategies that move queries and results too, not keys and values alone."""


def _received(row: Mapping[str, Any]) -> str | None:
    share = row["recv_share"]
    if share is not None and share > 1 + ROUNDING and row["strategy"] not in SWAPPING:
        return f"recv_share is {brief(share)}; allowed: at most 1, unless the strategy is {', '.join(SWAPPING)}"
    return None


_BY_RANK = ("recv_bytes", "tiles", "full_ms", "comp_ms", "comm_ms")


def _ranks(row: Mapping[str, Any]) -> str | None:
    """One number a rank in every vector, and no vector of another name."""
    for name, vector in (row["ranks"] or {}).items():
        if name not in _BY_RANK:
            return f"ranks has {name!r}; allowed: {', '.join(_BY_RANK)}"
        if not isinstance(vector, list) or len(vector) != row["cp_degree"] or not _all_fit(vector, AMOUNT):
            return f"ranks.{name} is {brief(vector)}; allowed: {row['cp_degree']} numbers, at least 0"
    return None


def _maps(row: Mapping[str, Any]) -> str | None:
    """Errors over their allowance, readings of the device, parameters of the mask, words of the user."""
    passed = row["status"] == "ok"
    most = SHARE if passed else AMOUNT  # 1 is the limit of the gate
    for name, value in (row["errors"] or {}).items():
        if not fits(value, most):
            why = ", as the correctness gate lets pass" if passed else ""
            return f"errors.{name} is {brief(value)}; allowed: {most.allowed}{why}"
    for name, value in (row["clocks"] or {}).items():
        if not _all_fit(value if isinstance(value, list) else [value], AMOUNT):
            return f"clocks.{name} is {brief(value)}; allowed: numbers, at least 0"
    for name, value in row["mask_params"].items():
        if not fits(value, FINITE):
            return f"mask_params.{name} is {brief(value)}; allowed: {FINITE.allowed}"
    if not _all_fit(row["overrides"], TEXT):
        return f"overrides is {brief(row['overrides'])}; allowed: texts"
    return None


def _all_fit(values: Iterable[Any], kind: Kind) -> bool:
    return all(fits(value, kind) for value in values)


_OF_A_MODEL = {
    "cluster": TEXT,
    "rates": TEXT,
    "validated": SWITCH,
    "doubts": LIST,
    "ranks_per_node": COUNT,
    "t_full_ms": POSITIVE,
    "t_comp_ms": AMOUNT,
    "t_comm_ms": AMOUNT,
    "exposed_ms": FINITE,
    "balance": SHARE,
    "recv_bytes": AMOUNT,
    "recv_bytes_max": AMOUNT,
    "recv_share": SHARE,
    "scaling": POSITIVE,
    "least_ms": AMOUNT,
    "held_bytes": AMOUNT,
}


def _simulation(row: Mapping[str, Any]) -> str | None:
    """What a model says of itself: only on rows that are simulated, and with its interval."""
    told = row["simulation"]
    if told is None:
        return None
    if row["source"] != "simulated" or row["status"] != "ok":
        return f"simulation must be null on rows that are {row['source']} with status {row['status']}"
    missing = [name for name in ("interval_ms", "overlap", *_OF_A_MODEL) if name not in told]
    if missing:
        return f"simulation lacks {', '.join(missing)}"
    interval = told["interval_ms"]
    if not isinstance(interval, list) or len(interval) != 2 or not _all_positive(interval) or interval[0] > interval[1]:
        return f"simulation.interval_ms is {brief(interval)}; allowed: two numbers above 0, the lower one first"
    for name, kind in _OF_A_MODEL.items():
        if not fits(told[name], kind):
            return f"simulation.{name} is {brief(told[name])}; allowed: {kind.allowed}"
    if told["overlap"] is not None and not fits(told["overlap"], FINITE):
        return f"simulation.overlap is {brief(told['overlap'])}; allowed: null, or {FINITE.allowed}"
    if not _all_fit(told["doubts"], TEXT):
        return f"simulation.doubts is {brief(told['doubts'])}; allowed: texts"
    return None
