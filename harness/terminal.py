"""Figures for the terminal: mask by kernel, throughput and milliseconds, the fastest marked. Reads cells, measures nothing."""

from __future__ import annotations

import importlib.util
import io
import os
import shutil
import sys
from collections.abc import Sequence

from harness.findings import Place, places
from plots.captions import machine, stamp, team
from plots.cells import Cell, series_of
from plots.slots import settings
from plots.style import length_label, plain, rank, scale_for, title_of


def render_table(cells: Sequence[Cell], *, colour: bool = False, width: int = 100) -> str:
    """The figures as tables of mask by kernel, one a machine, length and pass: throughput and milliseconds.

    The fastest of a line is bold, or carries a star where there is no bold; what failed shows its status.

    Args:
        cells: any.
        colour: escape sequences for bold and dim.
        width: columns of the terminal (with rich only).
    """
    blocks = []
    for members in settings(cells).values():
        groups: dict[tuple[str, int], list[Place]] = {}
        for place in places(members):
            groups.setdefault((place.pass_, place.seqlen), []).append(place)
        for (pass_, seqlen), group in groups.items():
            blocks.append(_block(group, f"{length_label(seqlen)} tokens, {pass_}", members[0], colour, width))
    return "\n".join(blocks)


def for_terminal(cells: Sequence[Cell]) -> str:
    """The tables as wide and as colourful as standard output takes them."""
    terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size((100, 24)).columns if terminal else 100
    return render_table(cells, colour=terminal and "NO_COLOR" not in os.environ, width=width)


def _block(group: list[Place], title: str, one: Cell, colour: bool, width: int) -> str:
    names = {series_of(cell): cell["kernel"] for place in group for cell in place.cells}
    order = sorted(names, key=lambda name: (rank(names[name]), name))
    speeds = [cell.tflops() for place in group for cell in place.cells if cell.ok]
    scale = scale_for(max(speeds, default=1.0))
    setting = f"{machine(one)}, {one['protocol']}, {plain(one['dtype'])}, D={one['head_dim']}{team(one)}"
    title = f"{stamp(cell for place in group for cell in place.cells)}{setting}: {title} ({scale.unit}, ms)"
    lines = []
    for place in group:
        by_name = {series_of(cell): cell for cell in place.cells}
        entries = [_entry(by_name.get(name), place.best, scale.factor) for name in order]
        lines.append((plain(place.label, 32), entries))
    head = [title_of(name) for name in order]
    if importlib.util.find_spec("rich") is None:
        return _plain_block(title, head, lines)
    return _rich_block(title, head, lines, colour, width)


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


def _plain_block(title: str, head: list[str], lines: list[tuple[str, list[tuple[str, str]]]]) -> str:
    table = [["mask", *head]]
    table += [[label, *(_starred(text, kind) for text, kind in entries)] for label, entries in lines]
    widths = [max(len(line[i]) for line in table) for i in range(len(table[0]))]
    shown = [
        "  ".join([line[0].ljust(widths[0]), *(t.rjust(w) for t, w in zip(line[1:], widths[1:], strict=True))])
        for line in table
    ]
    return "\n".join([title, *(line.rstrip() for line in shown), ""])


def _rich_block(title: str, head: list[str], lines: list[tuple[str, list[tuple[str, str]]]], colour: bool, width: int) -> str:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    styles = {"best": "bold", "figure": "", "word": "dim"}
    table = Table(box=SIMPLE_HEAD, padding=(0, 1), show_edge=False)
    table.add_column(Text("mask"), no_wrap=True)
    for name in head:
        table.add_column(Text(name), justify="right")
    for label, entries in lines:
        # rich strips blanks at the right edge, so the room for the star is kept with no-break spaces.
        starred = [text if colour else _starred(text, kind).replace(" ", "\N{NO-BREAK SPACE}") for text, kind in entries]
        shown = [Text(text, style=styles[kind]) for text, (_, kind) in zip(starred, entries, strict=True)]
        table.add_row(Text(label), *shown)
    buffer = io.StringIO()
    console = Console(
        file=buffer, width=width, force_terminal=colour, color_system="standard" if colour else None, highlight=False
    )
    console.print(Text(title, style="bold"))
    console.print(table)
    return buffer.getvalue()
