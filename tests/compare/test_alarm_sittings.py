"""Two sittings with the same code on one H200, five minutes apart, as committed: the truth about them is known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from alarm_rows import compared

from harness.compare.reading import Recording, recording
from harness.compare.verdict import Kind
from harness.provenance import ROOT
from harness.rows import Row, read_file

FIRST, SECOND = "20261201T141446Z-1029-e15eb4", "20261201T141924Z-1931-38d5d5"
"""48 and 20 rounds of ``experiment=alarms``."""


def sitting(run: str) -> list[Row]:
    return list(read_file(ROOT / "results/nvidia-h200/rows" / f"{run}.jsonl.gz"))


def slower(rows: list[Row], share: float, code: dict[str, str]) -> Iterator[Row]:
    """As if this kernel had lost that share of its throughput."""
    for row in rows:
        if row["kernel"] == "fm3" and row["samples_ms"]:
            row = row | {"samples_ms": [ms / (1 - share) for ms in row["samples_ms"]]} | code
        yield row


@pytest.fixture(scope="module", params=[(FIRST, SECOND), (SECOND, FIRST)], ids=["as it was", "swapped"])
def sides(request: pytest.FixtureRequest) -> tuple[Recording, list[Row]]:
    base, new = request.param
    return recording("base", sitting(base)), sitting(new)


def test_nothing_is_found_slower_between_two_sittings(sides: tuple[Recording, list[Row]]) -> None:
    base, new = sides
    found = compared(recording("new", new), base)
    assert Counter(one.kind for one in found.verdicts) == {Kind.SAME: 11, Kind.AMBIGUOUS: 1}
    assert "at 2.6% noise; needs" in next(one.reason for one in found.verdicts if one.kind is Kind.AMBIGUOUS)


@pytest.mark.parametrize("code", [{"source_hash": "new"}, {}], ids=["new code", "the same code"])
@pytest.mark.parametrize("share", [0.03, 0.05, 0.1])
def test_a_drop_between_two_sittings_is_found_in_every_case(
    sides: tuple[Recording, list[Row]], share: float, code: dict[str, str]
) -> None:
    """Whose readings of the clock differ by 14% in one case, at the same speed."""
    base, new = sides
    found = compared(recording("new", list(slower(new, share, code))), base)
    kinds = Counter((one.row["kernel"], one.kind) for one in found.verdicts)
    assert kinds == {("fm3", Kind.REGRESSION): 10, ("sdpa_cudnn", Kind.SAME): 2}
    assert found.exit_code == 1
