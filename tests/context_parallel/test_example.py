"""The example runs over two ranks, and docs/context-parallel.md says what its plan says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from processes import run_ranks

from context_parallel import ContextParallel
from context_parallel.strategies import plan_of
from examples import context_parallel as example

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "context-parallel.md").read_text()


def block(name: str) -> list[str]:
    (text,) = re.findall(rf"<!-- {name}: begin -->\n(.*?)<!-- {name}: end -->", PAGE, re.DOTALL)
    return text.splitlines()


def test_the_page_shows_the_plan_of_the_example() -> None:
    mask = example.mask_of_the_example()
    assert block("plan") == example.table(plan_of(mask, 4))
    assert block("totals") == example.totals(mask, 4)


def equals_one_device(rank: int) -> None:
    assert example.largest_difference(ContextParallel(None, example.mask_of_the_example())) < 1e-4


def test_the_example_equals_one_device(tmp_path: Path) -> None:
    run_ranks(equals_one_device, 2, tmp_path)


def test_the_example_alone_prints_its_tables(capsys: pytest.CaptureFixture[str]) -> None:
    example.main()
    printed = capsys.readouterr().out
    assert "| 0 | 0-8192 |" in printed and "largest difference: 0.0e+00" in printed
