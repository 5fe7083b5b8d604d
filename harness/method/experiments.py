"""The four experiments: each keeps one rule of measuring and breaks it, by turns.

``PLAN`` has them by name, each with its two settings (the rule broken, the rule kept) and what is called. An experiment yields
readings as they are taken; within a repeat both settings are read close together, and every other repeat in turned order, so
that what drifts over minutes is in both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from harness.cases import MaskSpec, Problem
from harness.method.bench import PASSES, Bench, Subject
from harness.method.readings import Reading
from harness.timing import Timer

Readings = Iterator[list[Reading]]
AGAIN = " again"
Wanted = tuple[tuple[str, tuple[str, ...], Problem], ...]
"""Kernel, passes, problem."""


@dataclass(frozen=True)
class Experiment:
    """One rule. ``settings``: broken, kept. ``title`` and ``settings`` are what the table prints.

    alike: the call is compared with itself, once more under the name of the kernel and ``AGAIN``, and not between the settings.
    """

    name: str
    title: str
    settings: tuple[str, str]
    wanted: Wanted
    run: Callable[[Experiment, Bench], Readings]
    alike: bool = False


def _subjects(bench: Bench, wanted: Wanted, zeros: bool = False) -> list[Subject]:
    return [one for kernel, passes, problem in wanted for one in bench.subjects(kernel, problem, zeros) if one.pass_ in passes]


def _turned(settings: tuple[str, str], repeat: int) -> tuple[str, ...]:
    return settings if repeat % 2 == 0 else settings[::-1]


def start(plan: Experiment, bench: Bench) -> Readings:
    """A rested card, a short round; against a heated one, a long round."""
    subjects = _subjects(bench, plan.wanted)
    for repeat in range(bench.effort.repeats):
        for setting in _turned(plan.settings, repeat):
            hot = setting == plan.settings[1]
            if hot:
                bench.heat()
            for subject in subjects:
                if not hot:
                    bench.rest()
                yield bench.read((plan.name, setting, repeat), subject, bench.cold if hot else bench.short)


def order(plan: Experiment, bench: Bench, hot: bool) -> Readings:
    """One kernel beside itself: first all rounds of the one, then all of the other; or by turns. The truth is 1."""
    (subject,) = _subjects(bench, plan.wanted)
    sides = (subject, replace(subject, kernel=subject.kernel + AGAIN))
    for repeat in range(bench.effort.repeats):
        for setting in _turned(plan.settings, repeat):
            (bench.heat if hot else bench.rest)()
            rounds = range(bench.effort.rounds)
            if setting == plan.settings[0]:
                queue = [side for side in sides for _ in rounds]
            else:
                queue = [side for number in rounds for side in (sides if number % 2 == 0 else sides[::-1])]
            for side in queue:
                yield bench.read((plan.name, setting, repeat), side, bench.short)


def bits(plan: Experiment, bench: Bench) -> Readings:
    """Zeros in place of random numbers, on a heated card."""
    made = {setting: _subjects(bench, plan.wanted, zeros) for setting, zeros in zip(plan.settings, (True, False), strict=True)}
    bench.heat()
    for repeat in range(bench.effort.repeats):
        for setting in _turned(plan.settings, repeat):
            for subject in made[setting]:
                yield bench.read((plan.name, setting, repeat), subject, bench.cold)


def cache(plan: Experiment, bench: Bench) -> Readings:
    """What the last call left in the cache, in place of a cache that is emptied before every sample; on a heated card."""
    subjects = _subjects(bench, plan.wanted)
    timers: dict[str, Timer] = dict(zip(plan.settings, (bench.warm, bench.cold), strict=True))
    bench.heat()
    for repeat in range(bench.effort.repeats):
        for setting in _turned(plan.settings, repeat):
            for subject in subjects:
                yield bench.read((plan.name, setting, repeat), subject, timers[setting])


def _problem(mask: str, seqlen: int, batch: int, heads: int) -> Problem:
    return Problem(MaskSpec(mask), seqlen, batch, heads, heads, 128, "bfloat16")


LARGE, WINDOW = _problem("full", 8192, 16, 32), _problem("sliding_window", 8192, 16, 32)
SMALL = _problem("causal", 4096, 1, 8)
"""Whose tensors fit into an H200's cache of 50 MB several times."""

ORDER = ("one after the other", "by turns")

PLAN = (
    Experiment(
        "start",
        "start of a measurement",
        ("rested, 0.1 s", "heated, 0.3 s"),
        (("fm3", PASSES, LARGE), ("fm3", ("forward",), WINDOW), ("sdpa_cudnn", ("forward",), LARGE)),
        start,
    ),
    Experiment(
        "order", "order, from rest", ORDER, (("fm3", ("forward",), LARGE),), partial(order, hot=False), alike=True
    ),
    Experiment(
        "order_hot", "order, heated", ORDER, (("fm3", ("forward",), LARGE),), partial(order, hot=True), alike=True
    ),
    Experiment(
        "bits", "inputs", ("zeros", "random"), (("fm3", PASSES, LARGE), ("sdpa_cudnn", PASSES, LARGE)), bits
    ),
    Experiment(
        "cache",
        "L2 cache",
        ("as the last call left it", "emptied"),
        (("fm3", PASSES, LARGE), ("fm3", PASSES, SMALL), ("sdpa_cudnn", ("forward",), SMALL)),
        cache,
    ),
)  # fmt: skip
