"""The tests of significance against counting every arrangement, and their correction against the definition."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.compare.significance import EXACT_UP_TO, bootstrap_ratio, chance_by_wins, corrected, rank_sum, signed_rank


def _ranks(values: list[float]) -> list[float]:
    return [sum(other < value for other in values) + (sum(other == value for other in values) + 1) / 2 for value in values]


def counted(strata: list[tuple[list[float], list[float]]]) -> float:
    """The definition: every way to give the labels within the strata, and how many are as low as this one."""
    observed, ways = 0.0, []
    for first, second in strata:
        ranks = _ranks([*first, *second])
        observed += sum(ranks[: len(first)])
        ways.append([sum(ranks[i] for i in some) for some in itertools.combinations(range(len(ranks)), len(first))])
    sums = [sum(one) for one in itertools.product(*ways)]
    return sum(value <= observed + 1e-9 for value in sums) / len(sums)


few = st.lists(st.integers(0, 6).map(float), min_size=1, max_size=4)


@given(st.lists(st.tuples(few, few), min_size=1, max_size=2))
@settings(max_examples=60, deadline=None)
def test_rank_sum_is_the_share_of_all_arrangements_ties_and_strata_included(
    strata: list[tuple[list[float], list[float]]],
) -> None:
    found = rank_sum([(np.array(first), np.array(second)) for first, second in strata])
    assert found == pytest.approx(counted(strata))


def test_the_clearest_order_has_the_chance_of_one_arrangement() -> None:
    low, high = np.arange(5.0), np.arange(5.0) + 10
    assert rank_sum([(low, high)]) == pytest.approx(1 / 252)
    assert rank_sum([(high, low)]) == pytest.approx(1.0)
    assert rank_sum([(low[:2], high[:3]), (low[:3], high[:2])]) == pytest.approx(1 / 100)


def test_many_values_go_over_to_the_normal_curve_without_a_step() -> None:
    draw = np.random.default_rng(3)
    for shift in (0.0, 0.3, 0.6):
        a, b = draw.normal(0, 1, 63), draw.normal(shift, 1, 63)
        exact = rank_sum([(a, b)])
        wider = rank_sum([(np.append(a, 0.0), np.append(b, 0.01))])
        assert len(a) * len(b) <= EXACT_UP_TO < (len(a) + 1) * (len(b) + 1)
        assert wider == pytest.approx(exact, rel=0.25, abs=0.02)


def test_equal_values_say_nothing() -> None:
    assert rank_sum([(np.ones(4), np.ones(5))]) == 1.0
    assert rank_sum([(np.ones(80), np.ones(80))]) == 1.0
    assert signed_rank([0.0, 0.0]) == 1.0


def test_chance_by_wins_agrees_with_rank_sum() -> None:
    a, b = np.array([1.0, 4.0, 6.0]), np.array([2.0, 3.0, 5.0, 7.0])
    wins = sum(x > y for x in a for y in b)
    assert chance_by_wins([(3, 4)])[wins] == pytest.approx(rank_sum([(a, b)]))
    assert len(chance_by_wins([(3, 4)])) == 13
    assert chance_by_wins([(3, 4), (2, 2)])[0] == pytest.approx(1 / (35 * 6))
    many, more = chance_by_wins([(63, 63)]), chance_by_wins([(63, 64)])
    assert len(more) == 63 * 64 + 1
    assert more[1700] == pytest.approx(many[1668], rel=0.1)


def test_rank_sum_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="one value at least"):
        rank_sum([(np.array([]), np.ones(3))])
    with pytest.raises(ValueError, match="one value at least"):
        rank_sum([])


@given(st.lists(st.integers(-4, 4).map(float), min_size=1, max_size=7))
@settings(max_examples=60, deadline=None)
def test_signed_rank_is_the_share_of_all_signs(differences: list[float]) -> None:
    values = [value for value in differences if value]
    ranks = _ranks([abs(value) for value in values])
    observed = sum(rank for rank, value in zip(ranks, values, strict=True) if value > 0)
    sums = [sum(itertools.compress(ranks, signs)) for signs in itertools.product((0, 1), repeat=len(values))]
    expected = sum(value <= observed + 1e-9 for value in sums) / len(sums) if values else 1.0
    assert signed_rank(differences) == pytest.approx(expected)


def test_signed_rank_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="no differences"):
        signed_rank([])


def test_correction_follows_the_definition_and_keeps_the_order() -> None:
    raw = [0.04, 0.001, 0.5, 0.012]
    assert corrected(raw) == pytest.approx([0.04 * 4 / 3, 0.004, 0.5, 0.024])
    assert corrected([0.02, 0.02]) == [0.02, 0.02]
    assert corrected([0.9, 0.8]) == [0.9, 0.9]
    assert corrected([]) == []


def test_bootstrap_covers_a_known_ratio() -> None:
    draw = np.random.default_rng(1)
    inside = 0
    for _ in range(100):
        new, base = 0.95 * draw.normal(1, 0.01, 20), draw.normal(1, 0.01, 20)
        low, high = bootstrap_ratio(new, base, 0.95, resamples=400)
        inside += low <= 0.95 <= high
    assert 88 <= inside <= 100
