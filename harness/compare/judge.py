"""Verdicts: every case of the candidate and of the baseline by its class, worst first.

What is slower is decided in ``harness.compare.rule``; here it is asked of the right rows, named, and explained. Ratios to
the anchor take out what hits a whole sitting; what they cannot take out is another card or another anchor, and then nothing
is compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import date
from operator import itemgetter
from typing import Any

from harness.compare.explain import Pair, excuse, own_clock, what_is_missing
from harness.compare.power import power, rounds_needed
from harness.compare.reading import Recording
from harness.compare.rule import chances_of, contrast
from harness.compare.scope import Scope
from harness.compare.series import Key, Side, side_of
from harness.compare.settings import Acknowledgement, Settings, Thresholds
from harness.compare.verdict import Comparison, Kind, Numbers, Verdict
from harness.report.commands import case_command
from plots.cells import Cell, mask_rank, unique


def compare(candidate: Recording, baseline: Recording, settings: Settings, *, whole: bool = False, today: date) -> Comparison:
    """All verdicts.

    Args:
        candidate, baseline: rows of the two sides. Rows that both have are the baseline's.
        settings: thresholds, anchors, acknowledgements.
        whole: the candidate should have every case of the baseline that its machine has; else only those of its own
            problems and kernels.
        today: acknowledgements count until their day.

    Raises:
        RowError: a round that both sides have, with different figures: it was edited in one of them.
    """
    _check_shared(candidate, baseline)
    new, base = side_of(candidate.rows, settings), side_of(baseline.rows, settings)
    scope = Scope(new, whole)
    verdicts: list[Verdict] = []
    pairs: list[Pair] = []
    for key in sorted({*new.cells, *base.cells}, key=str):
        found = _one(key, new, base, scope)
        if isinstance(found, Pair):
            pairs.append(found)
        elif found is not None:
            verdicts.append(found)
    verdicts += _judged(pairs, settings.thresholds)
    verdicts, told = _acknowledge(verdicts, settings.acknowledged, today)
    notes = [
        *candidate.notes,
        *baseline.notes,
        *scope.notes(base),
        *_clock_skew(candidate, baseline),
        *_nothing_new(verdicts),
        *told,
    ]
    return Comparison(candidate.label, baseline.label, tuple(sorted(verdicts, key=_order)), tuple(notes), settings.thresholds)


def _check_shared(candidate: Recording, baseline: Recording) -> None:
    """Rows that both sides have must be the same rows, and only a run that both have can give such."""
    shared = {row["run_id"] for row in candidate.rows} & {row["run_id"] for row in baseline.rows}
    if shared:
        unique(row for side in (baseline, candidate) for row in side.rows if row["run_id"] in shared)


_round = itemgetter("run_id", "round")
"""Which of a cell's rounds a row is."""


def _one(key: Key, new: Side, base: Side, scope: Scope) -> Verdict | Pair | None:
    """The verdict on a key, or the pair that the rule has to see; None where there is nothing to say."""
    ours, theirs = new.cells.get(key), base.cells.get(key)
    if ours is None:
        assert theirs is not None
        if not theirs.ok or not scope.expects(theirs):
            return None
        return Verdict(
            Kind.LOST, theirs.row, "not measured, though its problem and its kernel were", command=case_command(theirs.row)
        )
    if theirs is None or not theirs.ok:
        if not ours.ok:
            return None
        return Verdict(Kind.NEW, ours.row, scope.why_new(ours, theirs, base))
    if not ours.ok:
        reason = f"{ours.status}: {ours.reason}" if ours.reason else ours.status
        return Verdict(Kind.LOST, ours.row, reason, command=case_command(ours.row))
    if key in new.anchor_keys:
        return None  # what all others are measured by
    return _both(key, ours, theirs, new, base)


def _both(key: Key, ours: Cell, theirs: Cell, new: Side, base: Side) -> Verdict | Pair:
    row = ours.row
    stored = theirs.rounds
    if all(_round(item) in stored for item in ours.rows):
        return Verdict(Kind.SAME, row, _NOTHING_NEW)
    for name, what in (("timing_version", "the timing method"), ("mask_digest", "the mask's content")):
        if row[name] != theirs.row[name]:
            return Verdict(Kind.AMBIGUOUS, row, f"{what} changed: its figures do not compare", command=case_command(row))
    mine, other = new.cards(key), base.cards(key)
    shared = [card for card in mine if card in other]
    if not shared:
        reason = "measured on another card than the baseline; machines of one kind differ by up to 5%"
        return Verdict(Kind.OTHER_MACHINE, row, reason, command=case_command(row))
    card = max(shared, key=lambda name: (min(len(mine[name]), len(other[name])), str(name)))
    kept = [item for item in mine[card] if _round(item) not in stored]
    if not kept:
        return Verdict(Kind.SAME, row, "nothing new on the baseline's card")
    a, b = new.series(kept), base.series(other[card])
    for side, series in (("candidate", a), ("baseline", b)):
        if series.anchor is None:
            return Verdict(Kind.AMBIGUOUS, row, f"the {side} has no round of the anchor beside it", command=case_command(row))
    if a.anchor != b.anchor:
        return Verdict(
            Kind.AMBIGUOUS, row, "the anchor itself is another version; rerun both builds", command=case_command(row)
        )
    same_code = row["source_hash"] == theirs.row["source_hash"]
    return Pair(key, row, a, b, contrast(a.rounds, b.rounds, new.thresholds), same_code)


def _judged(pairs: Sequence[Pair], thresholds: Thresholds) -> list[Verdict]:
    """The rule over all pairs at once: probabilities are corrected for how many were asked."""
    chances = chances_of([pair.contrast for pair in pairs])
    return [_verdict(pair, chance, len(pairs), thresholds) for pair, chance in zip(pairs, chances, strict=True)]


def _verdict(pair: Pair, chance: float, cases: int, thresholds: Thresholds) -> Verdict:
    found = pair.contrast
    numbers = Numbers(found.ratio, found.limit, chance, found.noise, found.rounds)
    command = case_command(pair.row)
    if found.beyond and chance < thresholds.probability:
        interval = found.interval(thresholds.certain)
        numbers = replace(numbers, interval=interval, cycles=_in_cycles(pair, thresholds), clock=_clock(pair))
        if found.ratio > 1:
            return Verdict(Kind.IMPROVED, pair.row, "", numbers, certain=interval.low > 1 + thresholds.least_drop)
        why = excuse(pair, numbers, thresholds)
        if why is not None:
            return Verdict(Kind.ENVIRONMENT, pair.row, why, numbers, command=command)
        certain = interval.high < 1 - thresholds.least_drop
        return Verdict(Kind.REGRESSION, pair.row, own_clock(numbers, thresholds), numbers, certain, command=command)
    if found.beyond or power(found.noise, found.rounds, cases, thresholds) < thresholds.power:
        needed = rounds_needed(found.noise, found.rounds[1], cases, thresholds)
        numbers = replace(numbers, needed=needed)
        return Verdict(Kind.AMBIGUOUS, pair.row, what_is_missing(numbers, pair, thresholds), numbers, command=command)
    return Verdict(Kind.SAME, pair.row, "", numbers)


def _in_cycles(pair: Pair, thresholds: Thresholds) -> float | None:
    """The ratio in clock cycles; None where a clock is not known."""
    if pair.new.cycles is None or pair.base.cycles is None:
        return None
    return contrast(pair.new.cycles, pair.base.cycles, thresholds).ratio


def _clock(pair: Pair) -> float | None:
    return pair.new.clock / pair.base.clock if pair.new.clock and pair.base.clock else None


_NOTHING_NEW = "the very rows of the baseline"


def _nothing_new(verdicts: Sequence[Verdict]) -> Iterable[str]:
    """Cases that were not compared are no proof of anything."""
    count = sum(verdict.reason == _NOTHING_NEW for verdict in verdicts)
    if count:
        yield f"{count} of {len(verdicts)} cases are the very rows of the baseline: nothing was compared there"


def _clock_skew(candidate: Recording, baseline: Recording) -> Iterable[str]:
    """Which row is newest is told by its time, so a wrong clock is worth a word."""
    if candidate.newest and baseline.newest and candidate.newest < baseline.newest:
        yield "the candidate's rows are older than the baseline's: sides swapped, or a clock that is wrong"


def _acknowledge(
    verdicts: Sequence[Verdict], entries: Sequence[Acknowledgement], today: date
) -> tuple[list[Verdict], list[str]]:
    """Verdicts with their acknowledgements, and what is to be said of the entries."""
    current = [entry for entry in entries if entry.until >= today]
    notes = [
        f"acknowledgement expired on {entry.until}: {entry.about} ({entry.reason})" for entry in entries if entry not in current
    ]
    used: set[Acknowledgement] = set()
    found = []
    for verdict in verdicts:
        entry = (
            next((e for e in current if e.covers(verdict.kind, verdict.row)), None)
            if verdict.alarm or verdict.unjudged
            else None
        )
        used |= {entry} if entry is not None else set()
        found.append(replace(verdict, acknowledged=entry))
    notes += [f"acknowledgement of nothing: {entry.about} ({entry.reason})" for entry in current if entry not in used]
    return found, notes


def _order(verdict: Verdict) -> tuple[Any, ...]:
    """Worst first: the class, then the deepest drop, then the case."""
    row = verdict.row
    ratio = verdict.numbers.ratio if verdict.numbers is not None else 1.0
    name = (mask_rank(row["mask"]), row["seqlen"], row["pass"], row["kernel"], row["case_id"])
    return (list(Kind).index(verdict.kind), verdict.acknowledged is not None, ratio, name)
