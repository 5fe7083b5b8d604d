"""Tables as aligned text that fits its place: names are wrapped, columns that do not fit stand below, no figure and no name is
ever cut.

Every table that a command prints is made here. Plain text; knows nothing of what the columns hold.
"""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence

WIDTH = 100
"""Columns where standard output is no terminal."""

GAP = "  "
_INDENT = 6 * " "
_LEAST = 20
"""Narrower than this no column of names is made."""

Paint = Callable[[int, int, str], str]
"""From line, column and text to the text in colour. Line 0 is the head."""


def terminal_width() -> int:
    """Columns of the terminal; WIDTH for a pipe or a file."""
    return shutil.get_terminal_size((WIDTH, 24)).columns if sys.stdout.isatty() else WIDTH


def aligned(
    table: Sequence[Sequence[str]],
    width: int,
    *,
    keys: int = 1,
    names: int | None = None,
    left: Sequence[int] = (0,),
    below: Sequence[str] = (),
    paint: Paint = lambda line, column, text: text,
) -> list[str]:
    """The lines of a table, none wider than ``width`` unless a single figure beside the keys is.

    Where the table is too wide, the column of names is wrapped; where that is not enough, the columns after the keys are
    folded into several blocks below each other, each with the keys again; and where not even one of them fits beside the keys,
    its head is wrapped. Between words: a name is broken only where it does not fit beside a figure.

    Args:
        table: the head and the lines, all of one length.
        width: columns there are.
        keys: how many columns say which line it is.
        names: the one of them that may be wrapped.
        left: columns that are aligned left; the others right.
        below: what stands below each of the lines, the head among them, in full; nothing where it is empty.
        paint: colours an entry, after it was aligned.
    """
    columns = list(zip(*table, strict=True))
    widths = [max(map(len, column)) for column in columns]
    # With the head wrapped: no narrower than its longest word, and no figure is wrapped.
    least = [max([_longest_word(head), *map(len, figures)]) for head, *figures in columns[keys:]]
    if names is not None:
        spare = width - _together(widths)
        if spare < 0 and widths[names] + spare < max(_LEAST, *map(_longest_word, columns[names])):
            # One block is not enough: as wide as beside one figure.
            spare = width - _together([*widths[:keys], max(least, default=0)])
        widths[names] = min(widths[names], max(_LEAST, widths[names] + spare))
    room = width - _together([*widths[:keys], 0])
    widths[keys:] = [min(wide, max(room, narrow)) for wide, narrow in zip(widths[keys:], least, strict=True)]
    lines: list[str] = []
    for place, block in enumerate(_blocks(widths, width, keys)):
        lines += [""] if place else []
        for number, line in enumerate(table):
            texts = {i: _wrapped(line[i], widths[i]) if i == names or not number else [line[i]] for i in block}
            for row in range(max(map(len, texts.values()))):
                entries = []
                for i in block:
                    text = texts[i][row] if row < len(texts[i]) else ""
                    blanks = " " * (widths[i] - len(text))  # outside the colour, so that they can go from the end of a line
                    coloured = paint(number, i, text) if text else ""
                    entries.append(coloured + blanks if i in left else blanks + coloured)
                lines.append(GAP.join(entries).rstrip())
            if below and not place:
                lines += textwrap.wrap(below[number], width, initial_indent=_INDENT, subsequent_indent=_INDENT)
    return lines


def _longest_word(text: str) -> int:
    return max(map(len, text.split()), default=0)


def _wrapped(text: str, width: int) -> list[str]:
    """Lines of the text as it stands where it fits, in whole words else."""
    return [text] if len(text) <= width else textwrap.wrap(text, width, break_on_hyphens=False)


def _together(widths: Sequence[int]) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1)


def _blocks(widths: Sequence[int], width: int, keys: int) -> Iterator[list[int]]:
    """Columns of every block: the keys, and as many of the others as fit."""
    block = list(range(keys))
    for column in range(keys, len(widths)):
        if len(block) > keys and _together([widths[i] for i in [*block, column]]) > width:
            yield block
            block = list(range(keys))
        block.append(column)
    yield block
