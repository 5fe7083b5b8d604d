"""Would it have shown? How often a drop would be reported with so many rounds of so much noise, and how many it would take.

The rule itself (``harness.compare.rule``), run on seeded draws of normal scatter. No rows, no verdicts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from harness.compare.rule import limit
from harness.compare.settings import Thresholds
from harness.compare.significance import chance_by_wins, signed_rank
from plots.statistics import ROUNDS_TO_BE_SURE

_DRAWS = 400
MOST_ROUNDS = 100
"""More rounds than this a side are not worth asking for."""
USUAL_NOISE = 0.01
"""Scatter of a round that is assumed where there are too few rounds to tell: the middle of the committed H200 rows."""


def power(noise: float, rounds: tuple[int, int], cases: int, thresholds: Thresholds) -> float:
    """How often a drop of ``visible_drop`` in one case among ``cases`` would be reported, with normal scatter.

    The rule itself, run on seeded draws. The drop is taken to be the only one, where the correction is hardest.
    """
    if math.isnan(noise):
        return 0.0
    return _power(_step(noise), *rounds, thresholds.probability / max(1, cases), thresholds)


def _step(noise: float) -> float:
    """Noise in steps of 5%, upwards: cases of nearly the same noise share one answer."""
    return math.exp(math.ceil(math.log(max(noise, 1e-5)) / 0.05) * 0.05)


@lru_cache(maxsize=4096)
def _power(noise: float, new: int, base: int, probability: float, thresholds: Thresholds) -> float:
    sizes = [((new + 1) // 2, (base + 1) // 2), (new // 2, base // 2)]
    sizes = sizes if min(sizes[1]) else [(new, base)]
    chances = chance_by_wins(sizes)
    if min(new, base) < ROUNDS_TO_BE_SURE or chances[0] >= probability:  # even the clearest order could be chance
        return 0.0
    drop = thresholds.visible_drop
    draw = np.random.default_rng(0)
    ours = (1 - drop) * (1 + noise * draw.standard_normal((_DRAWS, new)))
    theirs = 1 + noise * draw.standard_normal((_DRAWS, base))
    deep = np.median(ours, axis=1) / np.median(theirs, axis=1) < 1 - limit(noise, new, base, thresholds)
    wins = np.zeros(_DRAWS, dtype=np.int64)
    first, other = 0, 0
    for n, m in sizes:
        wins += (ours[:, first : first + n, None] > theirs[:, None, other : other + m]).sum(axis=(1, 2))
        first, other = first + n, other + m
    return float((deep & (chances[wins] < probability)).mean())


def rounds_needed(noise: float, base: int, cases: int, thresholds: Thresholds) -> tuple[int, int] | None:
    """(new, base) rounds that would show ``visible_drop``: with the base that there is, if at most four times as many new
    ones do, else as many on both sides. None when more than MOST_ROUNDS a side would be needed.

    A noise that is not known (NaN) is taken to be USUAL_NOISE.
    """
    sigma = USUAL_NOISE if math.isnan(noise) else noise
    grown = _least(lambda count: power(sigma, (count, base), cases, thresholds) >= thresholds.power, 4 * base)
    if grown is not None:
        return grown, base
    both = _least(lambda count: power(sigma, (count, max(count, base)), cases, thresholds) >= thresholds.power, MOST_ROUNDS)
    return None if both is None else (both, max(both, base))


def _least(enough: Callable[[int], bool], most: int) -> int | None:
    """The least count up to ``most`` that is enough, if more is never worse; None when ``most`` is not."""
    low, high = 1, 2
    while not enough(min(high, most)):
        if high >= most:
            return None
        low, high = high, 2 * high
    high = min(high, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def paired_power(noise: float, rounds: int, cases: int, thresholds: Thresholds) -> float:
    """What :func:`power` is for :func:`paired`."""
    if math.isnan(noise) or rounds < ROUNDS_TO_BE_SURE:
        return 0.0
    return _paired_power(_step(noise), rounds, thresholds.probability / max(1, cases), thresholds)


@lru_cache(maxsize=4096)
def _paired_power(noise: float, rounds: int, probability: float, thresholds: Thresholds) -> float:
    draw = np.random.default_rng(0)
    ratios = (1 - thresholds.visible_drop) * (1 + noise * draw.standard_normal((_DRAWS, rounds)))
    least = 1 - max(thresholds.least_drop, thresholds.noise_factor * noise / math.sqrt(rounds))
    deep = np.flatnonzero(np.median(ratios, axis=1) < least)
    return sum(signed_rank(np.log(ratios[i])) < probability for i in deep) / _DRAWS
