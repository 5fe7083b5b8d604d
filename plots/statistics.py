"""The few statistics that figures, summary and report share: medians, bootstrap intervals, paired ratios.

A *round* is the unit of repetition: samples of one round share clocks and temperature, so intervals resample whole
rounds and never single samples. numpy only; every function is deterministic. Alarms are not here (``harness.compare``).

Bootstrap percentile intervals: Efron and Tibshirani, An Introduction to the Bootstrap (1993), chapter 13.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

CONFIDENCE = 0.95
RESAMPLES = 2000
SEED = 0
ROUNDS_TO_BE_SURE = 5
"""With fewer rounds all of them fall on one side of 1 too often by chance (3 rounds: 1 in 4; 5 rounds: 1 in 16)."""

Rounds = Sequence[Sequence[float]]


class Interval(NamedTuple):
    """Lower and upper bound; both NaN when there is nothing to estimate them from."""

    low: float
    high: float

    @property
    def known(self) -> bool:
        """False when the bounds are NaN."""
        return not math.isnan(self.low)


UNKNOWN = Interval(math.nan, math.nan)


class Ratio(NamedTuple):
    """How many times as fast: the value, its interval, and the rounds that it is paired over (0: not paired)."""

    value: float
    interval: Interval
    rounds: int

    @property
    def sure(self) -> bool:
        """True when the interval leaves out 1 and stands on at least ROUNDS_TO_BE_SURE pairs."""
        return self.rounds >= ROUNDS_TO_BE_SURE and not self.interval.low <= 1.0 <= self.interval.high


def median(samples: Sequence[float]) -> float:
    """The middle value; the mean of the two middle ones of an even count.

    Raises:
        ValueError: no samples.
    """
    _need(samples, "median")
    return float(statistics.median(samples))  # ten times as fast as NumPy's on the few samples of a round


def quartiles(samples: Sequence[float]) -> tuple[float, float]:
    """The 25% and the 75% quantile, linear between neighbours.

    Raises:
        ValueError: no samples.
    """
    _need(samples, "quartiles")
    low, high = np.quantile(np.asarray(samples, dtype=np.float64), [0.25, 0.75])
    return float(low), float(high)


def geometric_mean(values: Sequence[float]) -> float:
    """The mean that suits ratios.

    Raises:
        ValueError: no values, or one that is not positive.
    """
    _need(values, "geometric mean")
    if min(values) <= 0:
        raise ValueError(f"geometric mean of {min(values)!r}; every value must be positive")
    return float(np.exp(np.mean(np.log(np.asarray(values, dtype=np.float64)))))


def bootstrap_median(
    rounds: Rounds, *, confidence: float = CONFIDENCE, resamples: int = RESAMPLES, seed: int = SEED
) -> Interval:
    """Percentile bootstrap interval of the median of all samples, rounds drawn with replacement.

    Args:
        rounds: the samples of each round; rounds may differ in size.
        confidence: probability that the interval aims to cover.
        resamples: draws.
        seed: the same seed and the same rounds give the same bounds.

    Returns:
        The interval; unknown for fewer than two rounds (one round says nothing about how rounds differ).
    """
    filled = [np.asarray(samples, dtype=np.float64) for samples in rounds if len(samples)]
    if len(filled) < 2:
        return UNKNOWN
    count = len(filled)
    values = np.concatenate(filled)
    owner = np.repeat(np.arange(count), [samples.size for samples in filled])
    order = np.argsort(values, kind="stable")
    values, owner = values[order], owner[order]
    picks = np.random.default_rng(seed).integers(0, count, size=(resamples, count))
    times = np.zeros((resamples, count), dtype=np.int64)
    np.add.at(times, (np.arange(resamples)[:, None], picks), 1)
    # A sample counts as often as its round was drawn: the median of the drawn list is where the running count passes
    # the middle, so the list itself (large when rounds differ in size) is never written out.
    passed = np.cumsum(times[:, owner], axis=1)
    total = passed[:, -1]
    lower = values[(passed <= ((total - 1) // 2)[:, None]).sum(axis=1)]
    upper = values[(passed <= (total // 2)[:, None]).sum(axis=1)]
    return _percentiles((lower + upper) / 2, confidence)


def paired_ratio(
    base: Mapping[Hashable, Sequence[float]],
    other: Mapping[Hashable, Sequence[float]],
    *,
    confidence: float = CONFIDENCE,
    resamples: int = RESAMPLES,
    seed: int = SEED,
) -> Ratio:
    """How many times as fast ``other`` is as ``base``: time of ``base`` over time of ``other``, round by round.

    Args:
        base, other: samples (milliseconds) by round; two rounds are a pair when their keys are equal.

    Returns:
        The median over the pairs and its bootstrap interval over rounds (unknown for fewer than two pairs). Without a
        common round: the ratio of the two medians, no interval, ``rounds`` 0.

    Raises:
        ValueError: one side has no samples.
    """
    _need(base, "ratio")
    _need(other, "ratio")
    common = sorted(base.keys() & other.keys(), key=repr)
    if not common:
        whole = [[s for samples in side.values() for s in samples] for side in (base, other)]
        return Ratio(median(whole[0]) / median(whole[1]), UNKNOWN, 0)
    ratios = np.array([median(base[key]) / median(other[key]) for key in common])
    value = float(np.median(ratios))
    if len(common) < 2:
        return Ratio(value, UNKNOWN, 1)
    picks = np.random.default_rng(seed).integers(0, len(common), size=(resamples, len(common)))
    return Ratio(value, _percentiles(np.median(ratios[picks], axis=1), confidence), len(common))


def _percentiles(draws: np.ndarray, confidence: float) -> Interval:
    tail = (1 - confidence) / 2
    low, high = np.quantile(draws, [tail, 1 - tail])
    return Interval(float(low), float(high))


def _need(values: Sequence[float] | Mapping[Hashable, Sequence[float]], what: str) -> None:
    if not len(values):
        raise ValueError(f"{what} of no samples")
