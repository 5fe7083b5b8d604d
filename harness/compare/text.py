"""A comparison for people: plain text for a terminal, Markdown for the summary of a CI run."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from harness.columns import WIDTH, aligned
from harness.compare.lines import COLUMNS, SHOWN, by_setting, columns
from harness.compare.verdict import MEANING, Comparison, Kind, Verdict

_MOST = 40
"""Cases of one machine that are listed; what is read is short."""
_INDENT = "  "
_LEFT = tuple(COLUMNS.index(name) for name in ("verdict", "case", "why"))


def terminal(comparison: Comparison, every: bool = False, width: int = WIDTH) -> str:
    """The verdicts as aligned columns, worst first.

    Args:
        comparison: what was found.
        every: also the cases where nothing happened.
        width: columns of the terminal.
    """
    parts = [_title(comparison)]
    for setting, members in by_setting(comparison.verdicts).items():
        listed = members if every else [verdict for verdict in members if verdict.kind in SHOWN][:_MOST]
        parts.append("\n".join([setting, *_aligned(listed, width), _rest(members, listed)]).rstrip())
    explained = [kind for kind in Kind if comparison.counts[kind]]
    parts.append("\n".join(f"{kind}: {MEANING[kind]}" for kind in explained))
    parts.append("\n".join(f"note: {note}" for note in comparison.notes))
    commands = [verdict.command for verdict in comparison.of(Kind.REGRESSION, Kind.OTHER_MACHINE) if verdict.command]
    if commands:
        parts.append(
            f"to measure the first one again: {commands[0]}\n"
            "to measure both builds of this project's kernel by turns: python -m harness.compare rerun --help"
        )
    return "\n\n".join(part for part in parts if part) + "\n"


def _title(comparison: Comparison) -> str:
    return f"{comparison.candidate} against {comparison.baseline}: {comparison.headline}"


def _aligned(verdicts: Sequence[Verdict], width: int) -> list[str]:
    """A line a case; where that is too wide, what is said of a case stands below its figures."""
    if not verdicts:
        return []
    table, room = [COLUMNS, *map(columns, verdicts)], width - len(_INDENT)
    lines = aligned(table, sys.maxsize, left=_LEFT)
    if max(map(len, lines)) > room:
        figures, reasons = [line[:-1] for line in table], ["", *(line[-1] for line in table[1:])]
        lines = aligned(figures, room, keys=2, names=1, left=_LEFT, below=reasons)
    return [f"{_INDENT}{line}".rstrip() for line in lines]


def _rest(members: Sequence[Verdict], listed: Sequence[Verdict]) -> str:
    left = [verdict.kind for verdict in members[len(listed) :]]  # worst first: what is listed comes first
    counts = ", ".join(f"{left.count(kind)} {kind}" for kind in Kind if kind in left)
    return f"  and {counts}" if listed and counts else f"  {counts}" if counts else ""


def markdown(comparison: Comparison) -> str:
    """The same for a CI summary: one table a machine, at most forty lines of it."""
    parts = [f"### Alarms: {_cell(comparison.headline)}", _cell(f"{comparison.candidate} against {comparison.baseline}")]
    for setting, members in by_setting(comparison.verdicts).items():
        listed = [verdict for verdict in members if verdict.kind in SHOWN][:_MOST]
        parts.append(f"**{_cell(setting)}**")
        if listed:
            lines = ["| " + " | ".join(map(_cell, columns(verdict))) + " |" for verdict in listed]
            parts.append("\n".join([f"| {' | '.join(COLUMNS)} |", "|---|---|" + "---:|" * 5 + "---|", *lines]))
        parts.append(_rest(members, listed).strip())
    parts += [f"- {_cell(note)}" for note in comparison.notes]
    return "\n\n".join(part for part in parts if part) + "\n"


def _cell(text: str) -> str:
    """Text of rows inside Markdown: nothing of it is markup."""
    for mark in ("\\", "|", "`", "*", "_", "<", ">", "[", "]"):
        text = text.replace(mark, f"\\{mark}")
    return text
