"""One verdict as words: the columns that the terminal, Markdown and the annotations of a CI run share."""

from __future__ import annotations

import math
from collections.abc import Iterable

from harness.compare.verdict import Kind, Numbers, Verdict

SHOWN = tuple(kind for kind in Kind if kind not in (Kind.SAME, Kind.NEW))
"""Classes whose cases are listed one by one; of the others only the number."""

COLUMNS = ("verdict", "case", "throughput", "limit", "chance", "noise", "rounds", "why")


def columns(verdict: Verdict) -> tuple[str, ...]:
    """The text of COLUMNS."""
    return (verdict.word, verdict.case, *_figures(verdict.numbers), why(verdict))


def _figures(numbers: Numbers | None) -> tuple[str, ...]:
    if numbers is None:
        return ("", "", "", "", "")
    known = not math.isnan(numbers.noise)
    return (
        numbers.change,
        f"{100 * numbers.limit:.1f}%" if known else "",
        f"{numbers.probability:.2g}",
        f"{100 * numbers.noise:.1f}%" if known else "",
        f"{numbers.rounds[0]}/{numbers.rounds[1]}",
    )


def why(verdict: Verdict) -> str:
    """The reason, and the acknowledgement where there is one."""
    if verdict.acknowledged is None:
        return verdict.reason
    accepted = f"acknowledged until {verdict.acknowledged.until}: {verdict.acknowledged.reason}"
    return f"{accepted}; {verdict.reason}" if verdict.reason else accepted


def by_setting(verdicts: Iterable[Verdict]) -> dict[str, list[Verdict]]:
    """Verdicts apart by machine, protocol and shape, which never share a table; order as given."""
    found: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        found.setdefault(verdict.setting, []).append(verdict)
    return found
