"""Figures on several processes: the same order, the same results, the errors of the first that fails."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest

from plots.workers import WORTH, each

MANY = list(range(2 * WORTH))


def doubled_and_where(number: int) -> tuple[int, int]:
    return 2 * number, os.getpid()


def fails_from(first: int, number: int) -> int:
    if number >= first:
        raise ValueError(f"item {number}")
    return number


def dies_once(mark: Path, number: int) -> int:
    if number == 3 and not mark.exists():
        mark.touch()
        os._exit(1)
    return number


def test_many_are_made_by_other_processes_and_come_in_order() -> None:
    found = each(doubled_and_where, MANY, cores=2)
    assert [value for value, _ in found] == [2 * number for number in MANY]
    assert os.getpid() not in {where for _, where in found}


@pytest.mark.parametrize(("count", "cores"), [(2 * WORTH - 1, 2), (2 * WORTH, 1), (0, 2)])
def test_few_or_one_core_are_made_here(count: int, cores: int) -> None:
    found = each(doubled_and_where, list(range(count)), cores)
    assert len(found) == count and {where for _, where in found} <= {os.getpid()}


def test_the_first_that_fails_is_raised() -> None:
    with pytest.raises(ValueError, match=f"item {WORTH}"):
        each(partial(fails_from, WORTH), MANY, cores=2)


def test_where_a_process_is_killed_the_rest_is_made_here(tmp_path: Path) -> None:
    assert each(partial(dies_once, tmp_path / "died"), MANY, cores=2) == MANY
    assert (tmp_path / "died").exists()
