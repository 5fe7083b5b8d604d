"""The rule on samples with a known truth."""

from __future__ import annotations

import math

import numpy as np
import pytest

from harness.compare.power import paired_power, power, rounds_needed
from harness.compare.rule import Rounds, contrast, limit, paired
from harness.compare.settings import Thresholds

T = Thresholds()


def rounds(level: float, count: int, noise: float = 0.01, seed: int = 0, swing: float = 0.0) -> Rounds:
    draw = np.random.default_rng(seed)
    numbers = np.arange(count)
    return Rounds(level * (1 + noise * draw.standard_normal(count)) * (1 + swing * (numbers % 2)), numbers)


def test_a_drop_is_measured_and_improbable_by_chance() -> None:
    found = contrast(rounds(0.95, 20, seed=1), rounds(1.0, 40), T)
    assert found.ratio == pytest.approx(0.95, abs=0.01)
    assert found.chance < 1e-6
    assert found.rounds == (20, 40)


@pytest.mark.parametrize(("count", "off"), [(5, 0.3), (8, 0.15), (20, 0.05)])
def test_the_noise_of_a_round_is_estimated_without_bias_and_for_few_rounds_rather_too_high(count: int, off: float) -> None:
    noises = [contrast(rounds(1, count, seed=2 * s + 1), rounds(1, count, seed=2 * s), T).noise for s in range(200)]
    assert 0.0097 < np.mean(noises) < 0.01 * (1 + off)


def test_what_the_order_of_a_round_does_is_no_noise_and_no_difference() -> None:
    """Odd rounds 6% above: half of the rounds of one side, all but two of the other."""
    base = rounds(1.0, 20, 0.002, swing=0.06)
    odd = [0, 2, *range(1, 20, 2)]
    other = rounds(1.0, 20, 0.002, seed=1, swing=0.06)
    new = Rounds(other.figures[odd], other.numbers[odd])
    found = contrast(new, base, T)
    assert found.ratio == pytest.approx(1.0, abs=0.003)
    assert found.noise < 0.005
    assert found.chance > 0.01


def test_one_odd_round_moves_neither_ratio_nor_limit_much() -> None:
    new, base = rounds(1.0, 20, seed=1), rounds(1.0, 20)
    before = contrast(new, base, T)
    figures = new.figures.copy()
    figures[0] *= 0.5
    after = contrast(Rounds(figures, new.numbers), base, T)
    assert after.ratio == pytest.approx(before.ratio, abs=0.005)
    assert after.limit == pytest.approx(before.limit, rel=0.25)


def test_the_limit_is_the_least_drop_or_three_standard_errors() -> None:
    assert limit(0.001, 20, 40, T) == T.least_drop
    assert limit(0.05, 20, 20, T) == pytest.approx(3 * 0.05 * math.sqrt(0.1))


def test_a_side_that_lacks_an_order_is_compared_as_a_whole() -> None:
    even = Rounds(np.array([1.0, 1.01, 0.99]), np.array([0, 2, 4]))
    assert contrast(even, rounds(1.0, 10), T).ratio == pytest.approx(1.0, abs=0.02)


def test_one_round_a_side_has_no_noise_to_know() -> None:
    one = Rounds(np.array([1.0]), np.array([0]))
    assert math.isnan(contrast(one, one, T).noise)
    assert power(math.nan, (1, 1), 1, T) == 0.0


def test_five_rounds_against_five_never_show_a_single_drop_among_many() -> None:
    assert power(0.001, (5, 5), 96, T) == 0.0
    assert power(0.001, (20, 40), 96, T) > 0.99


def test_power_is_how_often_the_rule_fires() -> None:
    """The predicted share against the rule run on fresh draws."""
    noise, cases, sizes = 0.013, 160, (12, 24)
    fired = 0
    for seed in range(300):
        found = contrast(rounds(0.97, sizes[0], noise, 2 * seed + 1), rounds(1.0, sizes[1], noise, 2 * seed), T)
        fired += found.ratio < 1 - found.limit and found.chance < T.probability / cases
    assert power(noise, sizes, cases, T) == pytest.approx(fired / 300, abs=0.15)


def test_rounds_needed_are_enough_and_one_less_is_not() -> None:
    for noise in (0.003, 0.01, 0.02):
        needed = rounds_needed(noise, 5, 160, T)
        assert needed is not None
        new, base = needed
        assert power(noise, (new, base), 160, T) >= T.power
        assert power(noise, (new - 1, base if base == 5 else new - 1), 160, T) < T.power
    assert rounds_needed(0.5, 5, 160, T) is None


def test_pairs_take_out_any_drift() -> None:
    drift = 1 + 0.3 * np.sin(np.arange(12))
    base = Rounds(drift, np.arange(12))
    slower = Rounds(0.96 * drift * rounds(1.0, 12, 0.002).figures, np.arange(12))
    found = paired(slower, base, T)
    assert found.ratio == pytest.approx(0.96, abs=0.003)
    assert found.chance == pytest.approx(2**-12)
    assert found.limit == T.least_drop
    faster = paired(base, slower, T)
    assert faster.ratio > 1 and faster.chance == pytest.approx(2**-12)
    with pytest.raises(ValueError, match="no round in common"):
        paired(Rounds(np.ones(2), np.array([0, 1])), Rounds(np.ones(2), np.array([5, 6])), T)


def test_pairs_too_few_show_nothing() -> None:
    assert paired_power(0.002, 5, 4, T) == 0.0
    assert paired_power(0.002, 12, 4, T) > 0.99
    assert paired_power(0.05, 12, 4, T) < 0.5
