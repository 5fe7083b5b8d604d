"""The rule: two samples of figures in, slower or faster or neither out, with what it was decided by.

Figures are speeds relative to an anchor, one a round: larger is better. Everything here is arithmetic on arrays; which
rows they come from is ``harness.compare.series``, what a verdict is called is ``harness.compare.judge``.

Rounds of even and of odd number are measured in opposite orders (A B, B A), and a kernel that comes after a hot one starts
with lower clocks: on the committed H200 rows that makes half of the scatter. So even rounds are compared with even ones and
odd with odd: they are ranked apart, and for the ratio both sides are divided by what they share in each half.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from harness.compare.settings import Thresholds
from harness.compare.significance import bootstrap_ratio, chance_by_wins, rank_sum, signed_rank
from plots.statistics import ROUNDS_TO_BE_SURE, Interval

_TO_SIGMA = 1.4826
"""Median absolute deviation to standard deviation, for normal scatter."""
_DRAWS = 400
MOST_ROUNDS = 100
"""More rounds than this a side are not worth asking for."""
USUAL_NOISE = 0.01
"""Scatter of a round that is assumed where there are too few rounds to tell: the middle of the committed H200 rows."""


@dataclass(frozen=True)
class Rounds:
    """One side of a comparison: a figure a round, and the number of the round."""

    figures: np.ndarray
    numbers: np.ndarray

    def __len__(self) -> int:
        return len(self.figures)


@dataclass(frozen=True)
class Contrast:
    """What two samples say of each other.

    ratio: median of the new side over the base side, aligned. noise: relative standard deviation of a round, both sides
    pooled. limit: the least drop (and rise) that would be reported. chance: one-sided probability of as much in the direction
    of ``ratio`` by chance.
    """

    ratio: float
    noise: float
    limit: float
    chance: float
    new: np.ndarray
    base: np.ndarray

    @property
    def rounds(self) -> tuple[int, int]:
        """Rounds of the new and of the base side."""
        return len(self.new), len(self.base)

    @property
    def beyond(self) -> bool:
        """Whether the change is larger than the limit, and stands on more than a few rounds."""
        return abs(self.ratio - 1) > self.limit and min(self.rounds) >= ROUNDS_TO_BE_SURE

    def interval(self, confidence: float) -> Interval:
        """Bootstrap interval of :attr:`ratio` over rounds."""
        return bootstrap_ratio(self.new, self.base, confidence)


def contrast(new: Rounds, base: Rounds, thresholds: Thresholds) -> Contrast:
    """Compare two samples.

    Raises:
        ValueError: one side has no rounds.
    """
    halves = _halves(new, base)
    ours, theirs = new.figures.astype(np.float64), base.figures.astype(np.float64)
    for mine, other in halves:
        level = math.sqrt(_median(ours[mine]) * _median(theirs[other]))
        ours[mine] /= level
        theirs[other] /= level
    noise = _pooled_noise((ours, theirs), len(halves))
    ratio = _median(ours) / _median(theirs)
    strata = [(ours[mine], theirs[other]) for mine, other in halves]
    return Contrast(
        ratio=ratio,
        noise=noise,
        limit=limit(noise, len(ours), len(theirs), thresholds),
        chance=rank_sum(strata if ratio < 1 else [pair[::-1] for pair in strata]),
        new=ours,
        base=theirs,
    )


def _halves(new: Rounds, base: Rounds) -> list[tuple[np.ndarray, np.ndarray]]:
    """Which rounds of the two sides were measured in the same order; all of them when one side lacks an order."""
    halves = [(new.numbers % 2 == parity, base.numbers % 2 == parity) for parity in (0, 1)]
    if all(mine.any() and other.any() for mine, other in halves):
        return halves
    return [(np.ones(len(new), dtype=bool), np.ones(len(base), dtype=bool))]


def paired(new: Rounds, base: Rounds, thresholds: Thresholds) -> Contrast:
    """Compare two samples that were measured by turns: every round of one with the round of that number of the other.

    The ratio of a round has no drift in it, so nothing is aligned; ``new`` of the result holds the ratios.

    Raises:
        ValueError: no round in common.
    """
    theirs = dict(zip(base.numbers.tolist(), base.figures.tolist(), strict=True))
    mine = zip(new.numbers.tolist(), new.figures.tolist(), strict=True)
    ratios = np.array([figure / theirs[number] for number, figure in mine if number in theirs])
    if not len(ratios):
        raise ValueError("paired: no round in common")
    noise = _pooled_noise([ratios], levels=1)
    ratio = _median(ratios)
    steps = np.log(ratios)
    return Contrast(
        ratio=ratio,
        noise=noise,
        limit=max(thresholds.least_drop, thresholds.noise_factor * noise / math.sqrt(len(ratios))),
        chance=signed_rank(steps if ratio < 1 else -steps),
        new=ratios,
        base=np.ones(len(ratios)),
    )


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


def limit(noise: float, new: int, base: int, thresholds: Thresholds) -> float:
    """The least drop that is reported: ``max(least_drop, noise_factor x noise x sqrt(1/new + 1/base))``."""
    return max(thresholds.least_drop, thresholds.noise_factor * noise * math.sqrt(1 / new + 1 / base))


def _pooled_noise(sides: Sequence[np.ndarray], levels: int) -> float:
    """Relative standard deviation of a round: by the median absolute deviation, which one odd round does not move.

    Sides are weighted by their rounds less one; a side of one round says nothing, and without any other it is NaN.
    ``levels`` were taken out of the figures, which makes them look calmer than they are: few rounds are corrected for it
    (about as Croux and Rousseeuw, Computational Statistics 1, 1992, correct for one level).
    """
    known = [side for side in sides if len(side) > 1]
    if not known:
        return math.nan
    deviations = [_deviation(side) * len(side) / (len(side) - 0.8 * levels) for side in known]
    return math.sqrt(float(np.average(np.square(deviations), weights=[len(side) - 1 for side in known])))


def _deviation(side: np.ndarray) -> float:
    middle = _median(side)
    deviation = _TO_SIGMA * _median(np.abs(side - middle))
    # More than half of the rounds equal: the usual standard deviation still sees the others.
    return (deviation if deviation > 0 else float(np.std(side, ddof=1))) / middle


def _median(values: np.ndarray) -> float:
    """NumPy's own spends ten times as long on what it may be given besides a few numbers."""
    ordered = np.sort(values)
    return float(ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


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
