"""Medians, bootstrap intervals and paired ratios: known answers, seeds, and coverage by simulation."""

from __future__ import annotations

import math
import random
import statistics as stdlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plots.statistics import UNKNOWN, bootstrap_median, geometric_mean, median, paired_ratio, quartiles

POSITIVE = st.floats(1e-3, 1e3)


@given(st.lists(POSITIVE, min_size=1, max_size=30))
def test_median_and_quartiles_agree_with_the_standard_library(samples: list[float]) -> None:
    assert median(samples) == pytest.approx(stdlib.median(samples))
    if len(samples) > 1:
        low, _, high = stdlib.quantiles(samples, n=4, method="inclusive")
        assert quartiles(samples) == pytest.approx((low, high))


def test_known_answers() -> None:
    assert median([3.0, 1.0, 2.0, 10.0]) == 2.5
    assert quartiles([1.0, 2.0, 3.0, 4.0, 5.0]) == (2.0, 4.0)
    assert geometric_mean([1.0, 4.0]) == pytest.approx(2.0)
    assert geometric_mean([0.5, 2.0]) == pytest.approx(1.0)


@pytest.mark.parametrize("function", [median, quartiles, geometric_mean])
def test_no_samples_are_refused(function) -> None:
    with pytest.raises(ValueError, match="no samples"):
        function([])


def test_geometric_mean_refuses_zero() -> None:
    with pytest.raises(ValueError, match="positive"):
        geometric_mean([1.0, 0.0])


def test_interval_needs_two_rounds() -> None:
    assert not bootstrap_median([[1.0, 2.0, 3.0]]).known
    assert not bootstrap_median([]).known
    assert not bootstrap_median([[1.0, 2.0], []]).known
    assert not UNKNOWN.known


def test_interval_depends_on_the_seed_and_on_nothing_else() -> None:
    draw = random.Random(3)
    rounds = [[draw.gauss(10, 1) for _ in range(9)] for _ in range(6)]
    first = bootstrap_median(rounds, seed=1)
    assert first == bootstrap_median([list(samples) for samples in rounds], seed=1)
    assert first != bootstrap_median(rounds, seed=2)
    assert first.low <= median([s for samples in rounds for s in samples]) <= first.high


def test_interval_of_constant_rounds_spans_the_rounds() -> None:
    """Two rounds at 1 and 3: a draw is (1,1), (1,3) or (3,3), so medians are 1, 2, 3 and the 95% bounds 1 and 3."""
    assert bootstrap_median([[1.0] * 5, [3.0] * 5]) == (1.0, 3.0)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.lists(POSITIVE, min_size=1, max_size=6), min_size=2, max_size=5), st.integers(0, 5))
def test_interval_equals_a_plain_bootstrap(rounds: list[list[float]], seed: int) -> None:
    """The counting inside is checked against lists written out, rounds of unequal size included."""
    import numpy as np

    picks = np.random.default_rng(seed).integers(0, len(rounds), size=(60, len(rounds)))
    medians = [stdlib.median([s for index in line for s in rounds[index]]) for line in picks]
    low, high = np.quantile(medians, [0.025, 0.975])
    assert bootstrap_median(rounds, resamples=60, seed=seed) == pytest.approx((low, high))


def test_interval_covers_the_true_median_about_as_often_as_it_says() -> None:
    draw = random.Random(7)
    hits = 0
    for trial in range(120):
        rounds = [[draw.gauss(5.0 + shift, 0.1) for _ in range(5)] for shift in (draw.gauss(0, 0.2) for _ in range(12))]
        low, high = bootstrap_median(rounds, resamples=400, seed=trial)
        hits += low <= 5.0 <= high
    assert 0.85 <= hits / 120 <= 1.0


def test_paired_ratio_removes_a_common_drift() -> None:
    """Clocks fall by half over the rounds for both: unpaired the ratio is lost in the noise, paired it is exact."""
    drift = {("run", i): 1.0 + 0.2 * i for i in range(5)}
    ratio = paired_ratio({k: [3.0 * d] * 3 for k, d in drift.items()}, {k: [2.0 * d] * 3 for k, d in drift.items()})
    assert ratio.value == pytest.approx(1.5)
    assert ratio.interval == pytest.approx((1.5, 1.5))
    assert (ratio.rounds, ratio.sure) == (5, True)


def test_paired_ratio_uses_common_rounds_only() -> None:
    base = {("a", 0): [2.0], ("a", 1): [2.0], ("b", 0): [100.0]}
    other = {("a", 0): [1.0], ("a", 1): [1.0], ("c", 0): [0.001]}
    assert paired_ratio(base, other) == (2.0, (2.0, 2.0), 2)


def test_ratio_without_common_rounds_has_no_interval() -> None:
    ratio = paired_ratio({("a", 0): [4.0], ("a", 1): [4.0]}, {("b", 0): [2.0]})
    assert (ratio.value, ratio.rounds, ratio.sure) == (2.0, 0, False)
    assert math.isnan(ratio.interval.low)


def test_a_clear_ratio_over_few_rounds_is_not_sure() -> None:
    base = {("a", i): [2.0 + i / 100] for i in range(4)}
    assert not paired_ratio(base, {key: [1.0] for key in base}).sure
    base["a", 4] = [2.0]
    assert paired_ratio(base, {key: [1.0] for key in base}).sure


def test_ratio_near_one_is_not_sure() -> None:
    base = {("a", i): [value] for i, value in enumerate([1.0, 1.1, 0.9, 1.05, 0.95])}
    assert not paired_ratio(base, {key: [1.0] for key in base}).sure
