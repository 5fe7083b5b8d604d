"""The report's answers: sentences, who is fastest on which mask, one kernel against another. Draws and reads nothing."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from harness.findings import Duel, Place, mean_ratio, wins
from harness.report.html import Markup, element, join, table
from plots.cells import Cell, series_of
from plots.statistics import ROUNDS_TO_BE_SURE, Interval, Ratio, geometric_mean
from plots.style import length_label, look, times, title_of


def pass_name(pass_: str) -> str:
    """A pass in words."""
    return "forward and backward" if pass_ == "both" else pass_


def kernel_name(cell: Cell) -> Markup:
    """A competitor's name with its colour."""
    dot = Markup(f'<span class="dot" style="background:{look(cell["kernel"]).colour}"></span>')
    return join([dot, title_of(series_of(cell))])


def _range(interval: Interval) -> str:
    return f"{interval.low:.2f} to {interval.high:.2f}" if interval.known else "no interval"


def short(cells: Sequence[Cell], found: Sequence[Place], duels: Sequence[Duel]) -> Markup:
    """The result in a few sentences; ``duels``: the reference against the dense computation."""
    lines = []
    for pass_ in dict.fromkeys(place.pass_ for place in found):
        mine = [place for place in found if place.pass_ == pass_]
        judged = [place for place in mine if place.lead is not None]
        if not judged:
            if any(place.ranking for place in mine):
                lines.append(f"{pass_name(pass_).capitalize()}: nothing with two figures to compare.")
            continue
        parts = []
        for name, count, sure in wins(mine):
            won = sorted((_lead(p).value, _spot(p)) for p in judged if p.best is not None and series_of(p.best) == name)
            rate = times(geometric_mean([value for value, _ in won]))
            ends = " to ".join(f"{times(value)} ({spot})" for value, spot in (won[0], won[-1]))
            parts.append(f"{title_of(name)} at {count} of {len(judged)} (surely at {sure}), by {rate} on average, {ends}")
        alone = Counter(series_of(p.best) for p in mine if p.best is not None and p.lead is None)
        parts += [f"{title_of(name)} alone at {count} more" for name, count in alone.most_common()]
        lines.append(f"{pass_name(pass_).capitalize()}, fastest: {'; '.join(parts)}.")
    if duels:
        least, most = (choose(duels, key=lambda duel: duel.ratio.value) for choose in (min, max))
        lines.append(
            f"Reference over dense: {times(mean_ratio(duels))} on average over {len(duels)} places, from {_where(least)} "
            f"to {_where(most)}."
        )
    failed: dict[str, int] = defaultdict(int)
    for cell in cells:
        if not cell.ok:
            failed[cell.status.replace("_", " ")] += 1
    if failed:
        words = ", ".join(f"{count} {word}" for word, count in sorted(failed.items()))
        lines.append(f"Without figures: {words}.")
    note = (
        "A place is one mask, length and pass. Sure: the 95% interval of the ratio to the second, bootstrapped over rounds "
        f"and paired by round, leaves out 1, over at least {ROUNDS_TO_BE_SURE} rounds; two kernels that did not run together, "
        "and predictions, are never sure. Averages of ratios are geometric."
    )
    return join([element("ul", *(element("li", line) for line in lines), class_="big"), element("p", note, class_="note")])


def _where(duel: Duel) -> str:
    return f"{times(duel.ratio.value)} ({duel.label.replace('_', ' ')}, {length_label(duel.seqlen)} {pass_name(duel.pass_)})"


def _spot(place: Place) -> str:
    return f"{place.label.replace('_', ' ')}, {length_label(place.seqlen)}"


def _lead(place: Place) -> Ratio:
    lead = place.lead
    if lead is None:
        raise ValueError(f"{place.label}: nothing to compare with")
    return lead[1]


_TABLE_NOTE = (
    "How many times as fast as the second, 95% interval in brackets. Tie: it holds 1. Not in one run: the medians of two runs, "
    "without an interval. By the model: simulated, and a ratio of two predictions has no interval."
)


def fastest(found: Sequence[Place]) -> list[Markup]:
    """One table a pass: mask by length, the fastest and its lead over the second."""
    out = []
    for pass_ in dict.fromkeys(place.pass_ for place in found):
        mine = [place for place in found if place.pass_ == pass_]
        lengths = sorted({place.seqlen for place in mine})
        by_spot = {(place.label, place.seqlen): place for place in mine}
        lines = []
        for label in _masks(mine):
            entries = [_winner(by_spot.get((label, length))) for length in lengths]
            lines.append([label.replace("_", " "), *entries])
        head = ["mask", *(f"{length_label(length)} tokens" for length in lengths)]
        note = element("p", _TABLE_NOTE, class_="note")
        out.append(element("div", element("h3", pass_name(pass_).capitalize()), table(head, lines), note, class_="card"))
    return out


def _masks(found: Sequence[Place]) -> list[str]:
    """Labels in the registry's order, whatever length they first appear at."""
    longest = sorted(found, key=lambda place: (-sum(other.seqlen == place.seqlen for other in found), place.seqlen))
    return list(dict.fromkeys(place.label for place in longest))


def _winner(place: Place | None) -> Markup:
    if place is None:
        return Markup("")
    best, lead = place.best, place.lead
    if best is None:
        return element("small", "no figures")
    if lead is None:
        return join([kernel_name(best), element("small", "alone")], " ")
    second, ratio = lead
    words = f"{times(ratio.value)} over {title_of(series_of(second))}"
    sure = "by the model" if best["source"] == "simulated" else _certainty(ratio)
    lines = [kernel_name(best), element("small", words), element("small", sure)]
    return join(lines, Markup("<br>"))


def _certainty(ratio: Ratio) -> str:
    """The interval of a lead, and why it is not sure where it is not."""
    if not ratio.rounds:
        return "not in one run"
    doubt = "" if ratio.sure else ", too few rounds" if ratio.rounds < ROUNDS_TO_BE_SURE else ", tie"
    return f"({_range(ratio.interval)}){doubt}"


def duel_table(duels: Sequence[Duel]) -> Markup:
    """One kernel over another: a line a mask, a column a (length, pass)."""
    columns = sorted({(duel.pass_ != "forward", duel.pass_, duel.seqlen) for duel in duels})
    by_spot = {(duel.label, duel.pass_, duel.seqlen): duel for duel in duels}
    labels = list(dict.fromkeys(duel.label for duel in sorted(duels, key=lambda d: d.density)))
    lines: list[list[object]] = []
    for label in labels:
        mine = [duel for duel in duels if duel.label == label]
        entries = [_ratio(by_spot.get((label, pass_, length))) for _, pass_, length in columns]
        density = sorted({f"{duel.density:.2f}" for duel in mine})
        lines.append([label.replace("_", " "), density[0] if len(density) == 1 else f"{density[0]} to {density[-1]}", *entries])
    means = [mean_ratio([d for d in duels if (d.pass_, d.seqlen) == (pass_, length)]) for _, pass_, length in columns]
    lines.append([element("b", "geometric mean"), "", *(element("b", times(mean)) for mean in means)])
    head = ["mask", "density", *(f"{length_label(length)} {pass_name(pass_)}" for _, pass_, length in columns)]
    note = "How many times as fast the tile-by-tile reference is as the dense computation of the same mask, by rising density."
    return join([element("p", note, class_="note"), table(head, lines, numbers=range(1, len(head)))])


def _ratio(duel: Duel | None) -> Markup:
    if duel is None:
        return Markup("")
    return join([times(duel.ratio.value), Markup("<br>"), element("small", _range(duel.ratio.interval))])
