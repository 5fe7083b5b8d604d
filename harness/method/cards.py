"""How far cards of one model are apart: the same code on the same problem, measured on several of them. From committed rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from harness.claims.paper import ANCHOR, LENGTHS
from harness.compare.series import sm_clock
from harness.method.bench import PASSES
from harness.rows import Row
from plots.statistics import median
from plots.style import length_label

SHAPE = {
    "status": "ok", "source": "measured", "device": "cuda", "protocol": "sustained", "l2": "cold", "dtype": "bfloat16",
    "head_dim": 128, "deterministic": False, "cp_degree": 1,
}  # fmt: skip
"""What a row must be to be looked at."""

_code = itemgetter("kernel", "source_hash", "gpu", "power_limit", "timing_version", "mask", "mask_digest")
_problem = itemgetter("seqlen", "batch", "heads", "kv_heads", "pass")


@dataclass(frozen=True)
class Seen:
    """One case on one card: median time of its rounds in ms, its cycles (time x SM clock), its time over the anchor's."""

    ms: float
    cycles: float | None
    over_anchor: float | None


@dataclass(frozen=True)
class Case:
    """The same code on the same problem, by card."""

    kernel: str
    mask: str
    seqlen: int
    pass_: str
    cards: Mapping[str, Seen]

    @property
    def anchor(self) -> bool:
        """Whether it is what others are measured by."""
        return (self.kernel, self.mask) == (ANCHOR, "full")

    def spread(self, of: Callable[[Seen], float | None]) -> float | None:
        """Largest over smallest, less 1, over the cards that have it; None with fewer than two."""
        values = [value for seen in self.cards.values() if (value := of(seen)) is not None]
        return max(values) / min(values) - 1 if len(values) > 1 else None


def cases_of(rows: Iterable[Row]) -> list[Case]:
    """Every case that was measured on two cards or more."""
    found: dict[tuple[Any, ...], dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row["gpu_hash"] is not None and all(row[name] == value for name, value in SHAPE.items()):
            found[(*_code(row), *_problem(row))][row["gpu_hash"]].append(row)
    anchors: dict[tuple[Any, ...], float] = {}
    for cards in found.values():
        for card, members in cards.items():
            one = members[0]
            if (one["kernel"], one["mask"]) == (ANCHOR, "full"):
                anchors[(card, *_problem(one))] = _time(members)
    cases = []
    for cards in found.values():
        if len(cards) > 1:
            seen = {card: _seen(members, anchors.get((card, *_problem(members[0])))) for card, members in sorted(cards.items())}
            one = next(iter(cards.values()))[0]
            cases.append(Case(one["kernel"], one["mask"], one["seqlen"], one["pass"], seen))
    return cases


def _time(rows: Sequence[Row]) -> float:
    return median([median(row["samples_ms"]) for row in rows])


def _seen(rows: Sequence[Row], anchor: float | None) -> Seen:
    cycles = [median(row["samples_ms"]) * clock for row in rows if (clock := sm_clock(row)) is not None]
    ms = _time(rows)
    return Seen(ms, median(cycles) if cycles else None, None if anchor is None else ms / anchor)


def text(rows: Iterable[Row]) -> str:
    """Markdown: how far the anchor is apart, by length and pass; then all other cases, in time, in cycles, over the anchor."""
    cases = cases_of(rows)
    return "\n\n".join([_of_anchor([case for case in cases if case.anchor]), _of_others([c for c in cases if not c.anchor])])


def _of_anchor(cases: Sequence[Case]) -> str:
    lines = ["| | " + " | ".join(map(length_label, LENGTHS)) + " |", "|---" * (1 + len(LENGTHS)) + "|"]
    for pass_ in PASSES:
        shown = []
        for seqlen in LENGTHS:
            mine = [case for case in cases if (case.seqlen, case.pass_) == (seqlen, pass_)]
            most = max(mine, key=lambda case: len(case.cards), default=None)
            spread = None if most is None else most.spread(lambda seen: seen.ms)
            shown.append("-" if most is None or spread is None else f"{spread:.1%} of {len(most.cards)} cards")
        lines.append(f"| {pass_} | " + " | ".join(shown) + " |")
    return "\n".join(lines)


def _of_others(cases: Sequence[Case]) -> str:
    lines = ["| the same code on two cards or more | cases | apart by, median | most |", "|---|---|---|---|"]
    clocked = [case for case in cases if case.spread(lambda seen: seen.cycles) is not None]
    anchored = [case for case in cases if case.spread(lambda seen: seen.over_anchor) is not None]
    lines += [
        _line("time", clocked, lambda seen: seen.ms),
        _line("clock cycles (time x SM clock) of the same", clocked, lambda seen: seen.cycles),
        _line(
            "time, where each card has cuDNN's full attention too", anchored, lambda s: None if s.over_anchor is None else s.ms
        ),
        _line("time over cuDNN's of the same", anchored, lambda seen: seen.over_anchor),
    ]
    return "\n".join(lines)


def _line(name: str, cases: Sequence[Case], of: Callable[[Seen], float | None]) -> str:
    spreads = [spread for case in cases if (spread := case.spread(of)) is not None]
    figures = f"{median(spreads):.1%} | {max(spreads):.1%}" if spreads else "- | -"
    return f"| {name} | {len(spreads)} | {figures} |"
