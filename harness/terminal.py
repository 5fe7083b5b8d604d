"""Figures for the terminal: mask by kernel, throughput and milliseconds, the fastest marked; why some can have none.

Reads cells, measures nothing.
"""

from __future__ import annotations

import os
import sys
import textwrap
from collections import Counter
from collections.abc import Sequence

from harness.columns import WIDTH, aligned, terminal_width
from harness.findings import Place, places
from plots.captions import busy, machine, stamp, team
from plots.cells import Cell, series_of
from plots.slots import settings
from plots.style import length_label, plain, rank, scale_for, title_of

_STYLES = {"best": "\x1b[1m", "word": "\x1b[2m"}
_PLAIN = "\x1b[0m"
_LONGEST = 200
"""Of what a mask is called: its end is what tells two lists of documents apart."""


def render_table(cells: Sequence[Cell], *, colour: bool = False, width: int = WIDTH) -> str:
    """The figures as tables of mask by kernel, one a machine, length and pass: throughput and milliseconds.

    The fastest of a line is bold, or carries a star where there is no bold; what failed shows its status. Kernels that do not
    fit beside each other stand below.

    Args:
        cells: any.
        colour: escape sequences for bold and dim.
        width: columns of the terminal.
    """
    blocks = []
    for members in settings(cells).values():
        groups: dict[tuple[str, int], list[Place]] = {}
        for place in places(members):
            groups.setdefault((place.pass_, place.seqlen), []).append(place)
        for (pass_, seqlen), group in groups.items():
            blocks.append(_block(group, f"{length_label(seqlen)} tokens, {pass_}", members[0], colour, width))
    return "\n".join(blocks)


def render_reasons(cells: Sequence[Cell], width: int = WIDTH) -> str:
    """Why cells are unsupported: a line a competitor and reason, with the number of its cases; empty where none is."""
    counts = Counter((series_of(cell), cell.reason or "no reason recorded") for cell in cells if cell.status == "unsupported")
    order = {series_of(cell): rank(cell["kernel"]) for cell in cells}
    lines = []
    for (name, reason), count in sorted(counts.items(), key=lambda item: (order[item[0][0]], item[0])):
        told = f"{title_of(name)}: unsupported in {count} case{'s' * (count > 1)}: {plain(reason, 400)}"
        lines += textwrap.wrap(told, width, subsequent_indent="  ")
    return "\n".join([*lines, ""]) if lines else ""


def for_terminal(cells: Sequence[Cell]) -> str:
    """Tables, why entries are unsupported, what a busy processor did: as wide and colourful as standard output takes it."""
    colour, width = sys.stdout.isatty() and "NO_COLOR" not in os.environ, terminal_width()
    doubt = textwrap.fill(busy(cells), width)
    told = [render_table(cells, colour=colour, width=width), render_reasons(cells, width), doubt and f"{doubt}\n"]
    return "\n".join(filter(None, told))


def _block(group: list[Place], title: str, one: Cell, colour: bool, width: int) -> str:
    names = {series_of(cell): cell["kernel"] for place in group for cell in place.cells}
    order = sorted(names, key=lambda name: (rank(names[name]), name))
    speeds = [cell.tflops() for place in group for cell in place.cells if cell.ok]
    scale = scale_for(max(speeds, default=1.0))
    setting = f"{machine(one)}, {one['protocol']}, {plain(one['dtype'])}, D={one['head_dim']}{team(one)}"
    title = f"{stamp(cell for place in group for cell in place.cells)}{setting}: {title} ({scale.unit}, ms)"
    shown: list[list[str]] = [["mask", *map(title_of, order)]]
    kinds = [["", *("" for _ in order)]]
    for place in group:
        by_name = {series_of(cell): cell for cell in place.cells}
        entries = [_entry(by_name.get(name), place.best, scale.factor) for name in order]
        shown.append([plain(place.label, _LONGEST), *(text if colour else _starred(text, kind) for text, kind in entries)])
        kinds.append(["", *(kind for _, kind in entries)])

    def paint(line: int, column: int, text: str) -> str:
        look = _STYLES.get(kinds[line][column]) if colour else None
        return text if look is None else f"{look}{text}{_PLAIN}"

    heading = "\n".join(textwrap.wrap(title, width))
    lines = aligned(shown, width, names=0, paint=paint)
    return "\n".join([f"{_STYLES['best']}{heading}{_PLAIN}" if colour else heading, *lines, ""])


def _entry(cell: Cell | None, best: Cell | None, factor: float) -> tuple[str, str]:
    """Text and kind (best, figure, word) of one entry."""
    if cell is None:
        return "", "word"
    if not cell.ok:
        return cell.status.replace("_", " "), "word"
    text = f"{three_digits(cell.tflops() * factor)} {three_digits(cell.median_ms):>6} ms"
    return text, "best" if cell is best else "figure"


def three_digits(value: float) -> str:
    """Three significant digits, trailing zeros kept: 0.123, 1.20, 12.0, 120, 1234."""
    return f"{value:.0f}" if value >= 99.95 else f"{value:#.3g}"


def _starred(text: str, kind: str) -> str:
    return f"{text}{' *' if kind == 'best' else '  '}"
