"""The report's tables of cases: every one with its samples, and those without figures with the reason."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from harness.findings import Place
from harness.report.commands import case_command
from harness.report.html import Markup, element, esc, fold, join, table
from harness.report.ratings import kernel_name, pass_name
from harness.terminal import three_digits
from plots import captions
from plots.cells import Cell, series_of
from plots.style import TIMES, length_label, look, scale_for


def case_tables(found: Sequence[Place]) -> list[Markup]:
    """One table a (length, pass), to be opened: every competitor on every mask."""
    groups: dict[tuple[str, int], list[Place]] = defaultdict(list)
    for place in found:
        groups[(place.pass_, place.seqlen)].append(place)
    return [
        fold(f"{length_label(seqlen)} tokens, {pass_name(pass_)}", element("div", _case_table(group), class_="card"))
        for (pass_, seqlen), group in groups.items()
    ]


def _case_table(group: Sequence[Place]) -> Markup:
    good = [cell for place in group for cell in place.ranking]
    scale = scale_for(max((cell.tflops() for cell in good), default=1.0))
    reach = _reach(good)
    found = captions.sources(cell for place in group for cell in place.cells)
    interval_head = captions.interval_name(found, short=True)
    head = ["mask", "density", "kernel", "ms", interval_head, f"samples, ±{reach:.0%}", scale.unit, "by tiles", "quartiles"]
    head += [f"rounds {TIMES} samples", "set-up ms", "call us", "again"]
    lines = []
    for place in group:
        for number, cell in enumerate(place.cells):
            density = "" if cell["density"] is None else f"{cell['density']:.3f}"
            start = [place.label.replace("_", " "), density] if number == 0 else ["", ""]
            command = fold("command", element("code", esc(case_command(cell.row), 2000), class_="wrap"))
            if not cell.ok:
                word = element("span", cell.status.replace("_", " "), class_="bad")
                lines.append([*start, kernel_name(cell), word, *[""] * 8, command])
                continue
            median = three_digits(cell.median_ms)
            interval = cell.interval_ms
            lines.append(
                [
                    *start,
                    kernel_name(cell),
                    element("b", median) if cell is place.best else median,
                    _between(*interval) if interval.known else "too few rounds",
                    strip(cell, reach),
                    three_digits(cell.tflops() * scale.factor),
                    three_digits(cell.tflops("tile128") * scale.factor),
                    _between(*cell.quartiles_ms),
                    f"{len(cell.rows)} {TIMES} {len(cell.samples) / len(cell.rows):.3g}",
                    _maybe(cell.middle("setup_ms")),
                    _maybe(cell.middle("host_us")),
                    command,
                ]
            )
    note = (
        f"Throughput by exact density; 'by tiles' counts every touched tile of 128 {TIMES} 128 as full. Bold: the fastest of a "
        f"mask. Strip: every sample, {reach:.0%} either side of the median; the bar below is {captions.interval_name(found)}."
    )
    return join([table(head, lines, numbers=(1, 3, 4, 6, 7, 8, 9, 10, 11)), element("p", note, class_="note")])


def _between(low: float, high: float) -> str:
    return f"{three_digits(low)} to {three_digits(high)}"


def _maybe(value: float | None) -> str:
    return "" if value is None else three_digits(value)


def _reach(cells: Sequence[Cell]) -> float:
    """Half-width of a table's strips relative to the median: holds nearly all samples, from 2% to 25%."""
    far = sorted(abs(sample / cell.median_ms - 1) for cell in cells for sample in cell.samples)
    wanted = far[int(0.98 * (len(far) - 1))] if far else 0.0
    return next((step for step in (0.02, 0.05, 0.1) if wanted <= step), 0.25)


def strip(cell: Cell, reach: float) -> Markup:
    """Every sample as a tick, ``reach`` either side of the median; samples beyond it stand at the edge."""

    def place(value: float) -> float:
        return 70 + 66 * max(-1.0, min(1.0, (value / cell.median_ms - 1) / reach))

    spots = sorted({round(place(sample), 1) for sample in cell.samples})
    ticks = "".join(f"M{spot:g} 4v10" for spot in spots)
    interval = cell.interval_ms
    bar = ""
    if interval.known:
        left, right = place(interval.low), place(interval.high)
        bar = f'<rect x="{left:.1f}" y="15" width="{max(right - left, 1.0):.1f}" height="3" fill="var(--ink)"/>'
    colour = look(cell["kernel"]).colour
    return Markup(
        '<svg class="strip" viewBox="0 0 140 18" aria-hidden="true"><path d="M4 9H136" stroke="var(--line)"/>'
        f'<path d="{ticks}" stroke="{colour}" stroke-opacity=".65"/>'
        f'<path d="M70 2v12" stroke="var(--ink)" stroke-width="1.4"/>{bar}</svg>'
    )


def without_figures(cells: Sequence[Cell], found: Sequence[Place]) -> Markup:
    """What failed, is unsupported or was never measured, grouped by competitor and reason."""
    groups: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    kernels: dict[str, Cell] = {}
    for cell in cells:
        kernels.setdefault(series_of(cell), cell)
    for place in found:
        where = f"{place.label.replace('_', ' ')} {length_label(place.seqlen)} {place.pass_}"
        for cell in place.cells:
            if not cell.ok:
                groups[(series_of(cell), cell.status, cell.reason or "no reason recorded")].append(where)
        for name in kernels.keys() - {series_of(cell) for cell in place.cells}:
            groups[(name, "not measured", "no row for this case")].append(where)
    if not groups:
        return element("p", "Every case has figures.", class_="sub")
    lines = []
    for (name, status, reason), places in sorted(groups.items()):
        word = element("span", status.replace("_", " "), class_="" if status in ("unsupported", "not measured") else "bad")
        listed = element("span", esc("; ".join(places), 20000), class_="wrap")
        shown = listed if len(places) == 1 else fold(f"{len(places)} cases", listed)
        lines.append([kernel_name(kernels[name]), word, element("span", reason, class_="wrap"), shown])
    return element("div", table(["kernel", "status", "reason", "where"], lines), class_="card")
