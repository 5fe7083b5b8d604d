"""Could this be chance? Rank tests with exact probabilities, and their correction for many cases asked at once.

Plain functions on arrays, numpy only, nothing random but :func:`bootstrap_ratio` with its seed. What follows from a small
probability is ``harness.compare.rule``.

Rank sum: Mann and Whitney, Ann. Math. Stat. 18 (1947); in strata: van Elteren, Bull. Int. Stat. Inst. 37 (1960). Signed
rank: Wilcoxon, Biometrics Bulletin 1 (1945). Many tests: Benjamini and Hochberg, J. R. Stat. Soc. B 57 (1995).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from plots.statistics import Interval

EXACT_UP_TO = 4000
"""Products of sample sizes up to which arrangements are counted (63 x 63); beyond it the normal curve is as good."""

Strata = Sequence[tuple[np.ndarray, np.ndarray]]
"""Pairs of 1-D samples, (suspected lower, other): values are ranked within a pair and never across."""


def rank_sum(strata: Strata) -> float:
    """Probability that the first samples lie as low beside the second ones as they do, if labels mean nothing. One-sided.

    Args:
        strata: one pair of samples, or several that differ in level.

    Returns:
        P(sum of the first samples' ranks <= the one observed), equal values sharing their mean rank: counted over all
        arrangements within the strata for moderate sizes, else by the normal approximation.

    Raises:
        ValueError: no strata, or a sample without values.
    """
    if not strata or any(not len(side) for pair in strata for side in pair):
        raise ValueError("rank sum of nothing; every sample needs one value at least")
    sizes = [(len(first), len(second)) for first, second in strata]
    doubled = [_doubled_ranks(np.concatenate(pair)) for pair in strata]
    observed = int(sum(ranks[:n].sum() for ranks, (n, _) in zip(doubled, sizes, strict=True)))
    if _countable(sizes):
        unit = int(np.gcd.reduce(np.concatenate(doubled)))  # 2 where no two values are equal
        ranks = tuple(tuple(sorted(int(rank) // unit for rank in part)) for part in doubled)
        return float(_chances(ranks, tuple(n for n, _ in sizes))[observed // unit])
    mean = sum(n * (n + m + 1) / 2 for n, m in sizes)
    spread = [n * m * float(np.var(part / 2, ddof=1)) / (n + m) for part, (n, m) in zip(doubled, sizes, strict=True)]
    if not sum(spread):  # every value is the same
        return 1.0
    return _normal_tail(mean - observed / 2, sum(spread))


def chance_by_wins(sizes: Sequence[tuple[int, int]]) -> np.ndarray:
    """What :func:`rank_sum` gives for samples of such sizes without equal values, by the number of pairs that the first side
    wins, from 0 to all of them."""
    if _countable(sizes):
        chances = _chances(tuple(tuple(range(1, n + m + 1)) for n, m in sizes), tuple(n for n, _ in sizes))
        return chances[sum(n * (n + 1) // 2 for n, _ in sizes) :]
    pairs = sum(n * m for n, m in sizes)
    variance = sum(n * m * (n + m + 1) / 12 for n, m in sizes)
    return np.array([_normal_tail(pairs / 2 - wins, variance) for wins in range(pairs + 1)])


def _countable(sizes: Sequence[tuple[int, int]]) -> bool:
    return max(n * m for n, m in sizes) <= EXACT_UP_TO


def _normal_tail(below: float, variance: float) -> float:
    """P(X <= mean - below) of whole numbers X, by the normal curve."""
    return math.erfc((below - 0.5) / math.sqrt(2 * variance)) / 2


def _doubled_ranks(values: np.ndarray) -> np.ndarray:
    """Twice the rank of each value, from 2; equal values share their mean, so twice of it is a whole number."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    found: np.ndarray = (2 * ends - counts + 1)[place]
    return found


@lru_cache(maxsize=256)
def _chances(ranks: tuple[tuple[int, ...], ...], chosen: tuple[int, ...]) -> np.ndarray:
    """P(sum <= s) for every s, of so many of each stratum's ranks drawn without replacement."""
    whole = np.ones(1)
    for part, count in zip(ranks, chosen, strict=True):
        arrangements = np.zeros((count + 1, sum(part[-count:]) + 1))
        arrangements[0, 0] = 1.0
        for rank in part:  # each is among the chosen or not
            arrangements[1:, rank:] += arrangements[:-1, :-rank].copy()
        whole = np.convolve(whole, arrangements[count] / math.comb(len(part), count))
    return np.minimum(1.0, np.cumsum(whole))


def signed_rank(differences: Sequence[float] | np.ndarray) -> float:
    """Probability that paired differences lie as low as they do, if each is as likely below 0 as above. One-sided, exact.

    Zeros are left out; equal sizes share their mean rank.

    Raises:
        ValueError: no differences.
    """
    given = np.asarray(differences, dtype=np.float64)
    if not given.size:
        raise ValueError("signed rank of no differences")
    values = given[given != 0]
    if not values.size:
        return 1.0
    doubled = _doubled_ranks(np.abs(values))
    positive = int(doubled[values > 0].sum())
    return float(_sign_chances(tuple(sorted(doubled.tolist())))[positive])


@lru_cache(maxsize=256)
def _sign_chances(doubled: tuple[int, ...]) -> np.ndarray:
    """P(sum <= s) for every s, when each of the ranks is added or not with equal chance."""
    chances = np.zeros(sum(doubled) + 1)
    chances[0] = 1.0
    for rank in doubled:
        moved = np.zeros_like(chances)
        moved[rank:] = chances[:-rank]
        chances = (chances + moved) / 2
    return np.minimum(1.0, np.cumsum(chances))


def corrected(probabilities: Sequence[float]) -> list[float]:
    """Benjamini and Hochberg: each probability raised to the false discovery rate at which it would be reported."""
    count = len(probabilities)
    if not count:
        return []
    values = np.asarray(probabilities, dtype=np.float64)
    order = np.argsort(values, kind="stable")
    raised = values[order] * count / np.arange(1, count + 1)
    smallest = np.minimum(1.0, np.minimum.accumulate(raised[::-1])[::-1])
    found = np.empty(count)
    found[order] = smallest
    return [float(value) for value in found]


def bootstrap_ratio(new: np.ndarray, base: np.ndarray, confidence: float, resamples: int = 2000, seed: int = 0) -> Interval:
    """Percentile interval of median(new) / median(base), the rounds of both sides drawn with replacement."""
    draw = np.random.default_rng(seed)
    medians = [np.median(side[draw.integers(0, len(side), (resamples, len(side)))], axis=1) for side in (new, base)]
    tail = (1 - confidence) / 2
    low, high = np.quantile(medians[0] / medians[1], [tail, 1 - tail])
    return Interval(float(low), float(high))
