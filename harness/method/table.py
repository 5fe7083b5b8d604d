"""The readings of the experiments as a table: what breaking a rule did to the time of a call. Measures nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from harness.method.experiments import AGAIN, PLAN, Experiment
from harness.method.readings import Place, Reading
from plots.statistics import median
from plots.style import length_label, title_of

NOTHING = "These experiments have no committed readings yet: `python -m harness.method` takes them on a GPU."


def table(place: Place, readings: Sequence[Reading]) -> str:
    """Markdown: a line an experiment and call, and where it was measured."""
    lines = ["| rule | call | broken | kept | broken over kept |", "|---|---|---|---|---|"]
    for plan in PLAN:
        mine = [one for one in readings if one.experiment == plan.name]
        lines += _order_lines(plan, mine) if plan.alike else _lines(plan, mine)
    limit = f" ({place.power_limit:.0f} W)" if place.power_limit else ""
    told = f"MEASURED · {place.gpu}{limit} · {place.software} · commit {(place.git_sha or 'unknown')[:10]} · {place.time[:10]}"
    return "\n".join([*lines, "", told])


def _lines(plan: Experiment, readings: Sequence[Reading]) -> list[str]:
    lines = []
    for subject in dict.fromkeys(one.subject for one in readings):
        mine = [one for one in readings if one.subject == subject]
        sides = [[one for one in mine if one.setting == setting] for setting in plan.settings]
        if all(sides):
            shown = [_shown(setting, side) for setting, side in zip(plan.settings, sides, strict=True)]
            lines.append(_row(plan, mine[0], shown, _ratios(*map(_by_repeat, sides))))
    return lines


def _order_lines(plan: Experiment, readings: Sequence[Reading]) -> list[str]:
    """One kernel beside itself: the second side's time over the first's, in each setting."""
    if not readings:
        return []
    shown = []
    for setting in plan.settings:
        mine = [one for one in readings if one.setting == setting]
        second = [one for one in mine if one.kernel.endswith(AGAIN)]
        first = [one for one in mine if not one.kernel.endswith(AGAIN)]
        shown.append(f"{setting}: {_span(_ratios(_by_repeat(second), _by_repeat(first)))}")
    return [_row(plan, readings[0], shown, [])]


def _row(plan: Experiment, one: Reading, shown: Sequence[str], ratios: Sequence[float]) -> str:
    call = f"{title_of(one.kernel)} {one.pass_}, {one.mask} {length_label(one.seqlen)}, batch {one.batch}, {one.heads} heads"
    last = _span(ratios) if ratios else "second over first, which is 1"
    return f"| {plan.title} | {call} | {' | '.join(shown)} | {last} |"


def _shown(setting: str, readings: Sequence[Reading]) -> str:
    told = [f"{median([one.ms for one in readings]):.4g} ms"]
    for unit, values in (("MHz", [one.sm_mhz for one in readings]), ("W", [one.power_w for one in readings])):
        known = [value for value in values if value is not None]
        told += [f"{median(known):.0f} {unit}"] if known else []
    return f"{setting}: {', '.join(told)}"


def _by_repeat(readings: Sequence[Reading]) -> Mapping[int, float]:
    found: dict[int, list[float]] = defaultdict(list)
    for one in readings:
        found[one.repeat].append(one.ms)
    return {repeat: median(samples) for repeat, samples in found.items()}


def _ratios(over: Mapping[int, float], under: Mapping[int, float]) -> list[float]:
    return [over[repeat] / under[repeat] for repeat in sorted(over.keys() & under.keys())]


def _span(ratios: Sequence[float]) -> str:
    """Median of the repeats and their range."""
    if not ratios:
        return "-"
    return f"{median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
