"""Captions: what was measured, on what and how, built from the cells that a figure shows and from nothing else.

Also the rule of what may share a figure: one protocol, one cache state, one machine of a kind. Draws nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from harness.rows import BUSY_CORES, Row
from plots.cells import Cell
from plots.style import plain


class FigureError(ValueError):
    """A figure that would mislead, or rows that cannot give one; the message says why."""


_FIXED = {
    "protocol": "protocols",
    "l2": "cache states",
    "dtype": "element types",
    "heads": "head counts",
    "kv_heads": "KV head counts",
    "head_dim": "head dims",
    "deterministic": "deterministic and other runs",
}


def check_comparable(cells: Sequence[Cell]) -> None:
    """Refuses cells that may not share a figure.

    Raises:
        FigureError: no cells; more than one protocol, cache state, element type or head shape; more than one machine
            (model and power limit) among the measured or among the simulated ones.
    """
    if not cells:
        raise FigureError("no rows for this figure")
    for field, what in _FIXED.items():
        values = sorted({cell[field] for cell in cells})
        if len(values) > 1:
            raise FigureError(f"a figure cannot mix {what}; these rows hold {', '.join(map(str, values))}")
    for source in ("measured", "simulated"):
        machines = sorted({machine(cell) for cell in cells if cell["source"] == source})
        if len(machines) > 1:
            raise FigureError(f"a figure shows one machine; these {source} rows hold {', '.join(machines)}")


def machine(cell: Cell | Row) -> str:
    """GPU model and power limit."""
    limit = cell["power_limit"]
    return plain(cell["gpu"]) + ("" if limit is None else f" ({limit:g} W)")


def team(cell: Cell | Row) -> str:
    """How many ranks share the sequence, as the last part of a setting; empty for one."""
    return f", {cell['cp_degree']} ranks" if cell["cp_degree"] > 1 else ""


def commit(row: Row) -> str:
    """The commit of a row in ten digits; a + stands for uncommitted changes."""
    return plain(row["git_sha"][:10]) + ("+" if row["git_dirty"] else "") if row["git_sha"] else "unknown code"


def sources(cells: Iterable[Cell]) -> tuple[str, ...]:
    """``measured``, ``simulated`` or both, in this order."""
    present = {cell["source"] for cell in cells}
    return tuple(source for source in ("measured", "simulated") if source in present)


def stamp(cells: Iterable[Cell]) -> str:
    """What stands before a title where not everything was measured."""
    found = sources(cells)
    return "" if found in ((), ("measured",)) else f"{' + '.join(source.upper() for source in found)} · "


def series_title(title: str, source: str, mixed: bool) -> str:
    """Legend entry; every series says what it is when a figure mixes measured and simulated."""
    return f"{title} ({source})" if mixed else title


def interval_name(found: Iterable[str], *, short: bool = False) -> str:
    """What the interval of figures of these sources is: of rounds where they were measured, of a model where they were not.

    ``short``: for the head of a column.
    """
    present = set(found)
    if "simulated" not in present:
        return "95% interval" if short else "95% interval of the median"
    if present == {"simulated"}:
        return "model's interval" if short else "the model's interval"
    return "95% or model's interval" if short else "95% interval of the median, of simulated figures the model's interval"


def is_simulated(cells: Iterable[Cell]) -> bool:
    """Whether nothing was measured: such a figure carries the watermark."""
    return sources(cells) == ("simulated",)


def doubts(cells: Sequence[Cell]) -> str:
    """What is to be known about simulated ones, and about those measured on a busy processor; empty without any."""
    return " ".join(filter(None, [_simulated(cells), busy(cells)]))


def busy(cells: Sequence[Cell]) -> str:
    """How many cells have rounds in which other programs kept the processor busy; empty where none has."""
    most = [
        max(((row["clocks"] or {}).get("other_busy_cores", 0.0) for row in cell.rows), default=0.0) for cell in cells if cell.ok
    ]
    hit = [cores for cores in most if cores > BUSY_CORES]
    if not hit:
        return ""
    count = f"{len(hit)} of {len(most)} cells have rounds in which other programs kept up to {max(hit):.1f} cores busy"
    return f"{count}: those are slower than the machine."


def _simulated(cells: Sequence[Cell]) -> str:
    told = [cell["simulation"] for cell in cells if cell.ok and cell["simulation"] is not None]
    if not told:
        return ""
    rates = ", ".join(sorted({one["rates"] for one in told}))
    parts = [f"Simulated at rates of {plain(rates)}; intervals are the model's, from the spreads of its rates"]
    if not all(one["validated"] for one in told):
        parts.append("not validated: never held against measured runs of several GPUs")
    for kind in ("extrapolated", "borrowed", "assumed"):
        count = sum(any(doubt.startswith(kind) for doubt in one["doubts"]) for one in told)
        if count:
            parts.append(f"{count} of {len(told)} cells {_KINDS[kind]}")
    return "; ".join(parts) + "."


_KINDS = {
    "extrapolated": "extrapolated beyond what their rates were fitted to",
    "borrowed": "at borrowed kernel rates",
    "assumed": "with assumed rates of links",
}


def facts(cells: Sequence[Cell]) -> dict[str, str]:
    """The parts of a caption by name, in order.

    Raises:
        FigureError: see :func:`check_comparable`.
    """
    check_comparable(cells)
    good = [cell for cell in cells if cell.ok]
    one = cells[0]
    shape = f"{plain(one['dtype'])}, {one['heads']}/{one['kv_heads']} heads, D={one['head_dim']}{team(one)}"
    rows = [row for cell in cells for row in (cell.rows or (cell.row,))]
    shas = _each(rows, commit)
    days = sorted({row["time"][:10] for row in rows})
    return {
        "stamp": " + ".join(source.upper() for source in sources(cells)),
        "machine": _few(_each(cells, machine)),
        "protocol": f"{one['protocol']}, {plain(one['l2'])} L2",
        "shape": shape + (", deterministic" if one["deterministic"] else ""),
        "rounds": _taken(good) if good else "no figures",
        "code": _few(shas),
        "time": plain(days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"),
    }


def caption(cells: Sequence[Cell], *notes: str) -> str:
    """The caption, one paragraph a line; ``notes`` say how the figure is read.

    Raises:
        FigureError: see :func:`check_comparable`.
    """
    return "\n".join([" · ".join(facts(cells).values()), *(note for note in (*notes, doubts(cells)) if note)])


def _taken(cells: Sequence[Cell]) -> str:
    """Rounds and samples of the measured ones."""
    measured = [cell for cell in cells if cell["source"] == "measured"]
    if not measured:
        return "a model, nothing was timed"
    counts, samples = sorted({len(cell.rows) for cell in measured}), sorted({len(cell.samples) for cell in measured})
    return f"{_range(counts)} rounds, {_range(samples)} samples"


def _each(items: Iterable[Any], name: Any) -> list[str]:
    return sorted({name(item) for item in items})


def _few(names: list[str], most: int = 3) -> str:
    extra = len(names) - most
    return ", ".join(names[:most]) + (f" and {extra} more" if extra > 0 else "")


def _range(counts: list[int]) -> str:
    return str(counts[0]) if counts[0] == counts[-1] else f"{counts[0]} to {counts[-1]}"
