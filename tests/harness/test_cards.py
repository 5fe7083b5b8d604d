"""How far cards are apart: which rows are compared with each other, in time, in clock cycles and over the anchor."""

from __future__ import annotations

from typing import Any

import pytest
from row_factory import make_row

from harness.method import cards


def on_card(card: str, ms: float, mhz: float, **change: Any) -> dict[str, Any]:
    clocks = {"sm_mhz": [mhz - 15, mhz, mhz + 15], "throttle": 0}
    what = {"kernel": "fm3", "mask": "document", "head_dim": 128, "gpu_hash": card, "clocks": clocks, "run_id": f"run-{card}"}
    return make_row(samples_ms=[ms * 0.9, ms, ms * 1.1], **(what | change))


def spreads(case: cards.Case) -> list[float | None]:
    found = [case.spread(of) for of in (lambda s: s.ms, lambda s: s.cycles, lambda s: s.over_anchor)]
    return [None if one is None else round(one, 4) for one in found]


def test_a_slower_clock_is_apart_in_time_and_not_in_cycles() -> None:
    rows = [on_card("a", 1.0, 1500), on_card("b", 1.25, 1200)]
    assert [spreads(case) for case in cards.cases_of(rows)] == [[0.25, 0.0, None]]
    rows += [on_card(card, ms, 1500, kernel="sdpa_cudnn", mask="full") for card, ms in (("a", 4.0), ("b", 5.0))]
    assert [spreads(case) for case in cards.cases_of(rows) if not case.anchor] == [[0.25, 0.0, 0.0]]
    made = cards.text(rows)
    assert "| time | 1 | 25.0% | 25.0% |" in made and "| forward | 25.0% of 2 cards | - | - | - |" in made


@pytest.mark.parametrize(
    "change",
    [
        {"source_hash": "another"},
        {"mask_digest": "another"},
        {"gpu": "NVIDIA H100"},
        {"power_limit": 500.0},
        {"seqlen": 8192},
        {"batch": 2},
        {"pass_": "backward"},
        {"protocol": "burst"},
        {"status": "incorrect"},
        {"gpu_hash": "a"},
    ],
)
def test_only_the_same_code_on_the_same_problem_is_compared(change: dict[str, Any]) -> None:
    rows = [on_card("a", 1.0, 1500), on_card("b", 1.25, 1200)]
    assert len(cards.cases_of(rows)) == 1
    assert cards.cases_of([rows[0], on_card("b", 1.25, 1200, **change)]) == []
