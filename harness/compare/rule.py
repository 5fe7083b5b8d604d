"""The rule: two samples of figures in, slower or faster or neither out, with what it was decided by.

Figures are speeds relative to an anchor, one a round: larger is better. Everything here is arithmetic on arrays; which
rows they come from is ``harness.compare.series``, what a verdict is called is ``harness.compare.judge``.

Rounds of even and of odd number are measured in opposite orders (A B, B A), and a kernel that comes after a hot one starts
with lower clocks: on the committed H200 rows that makes half of the scatter. So even rounds are compared with even ones and
odd with odd: they are ranked apart, and for the ratio both sides are divided by what they share in each half.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from harness.compare.settings import Thresholds
from harness.compare.significance import bootstrap_ratio, corrected, rank_sum, signed_rank
from plots.statistics import ROUNDS_TO_BE_SURE, Interval

_TO_SIGMA = 1.4826
"""Median absolute deviation to standard deviation, for normal scatter."""


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


def chances_of(found: Sequence[Contrast]) -> list[float]:
    """The chance of each, in its own direction, corrected for how many were asked at once."""
    slower = corrected([one.chance if one.ratio < 1 else 1.0 for one in found])
    faster = corrected([one.chance if one.ratio > 1 else 1.0 for one in found])
    return [min(both) for both in zip(slower, faster, strict=True)]


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
