"""From commit to commit: steps that are there are noted, noise is not, and what cannot be compared is left out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest
from row_factory import make_rounds, make_row

from harness.rows import Row
from plots import catalogue, files, history
from plots.changepoints import ENOUGH, LEAST, steps


def series(levels: Sequence[float], noise: float = 0.0, seed: int = 0) -> list[float]:
    draws = np.random.default_rng(seed).normal(0.0, noise, len(levels))
    return [float(level * np.exp(draw)) for level, draw in zip(levels, draws, strict=True)]


# -- steps -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [ENOUGH, 12, 30])
@pytest.mark.parametrize("noise", [0.002, 0.01, 0.03])
def test_noise_gets_no_note(count: int, noise: float) -> None:
    """At most 1 of 100 series of pure noise, whatever its size."""
    assert sum(bool(steps(series([1.0] * count, noise, seed))) for seed in range(300)) <= 3


@pytest.mark.parametrize("ratio", [0.95, 1.05])
def test_a_step_of_five_percent_is_found_where_it_is(ratio: float) -> None:
    found = [steps(series([1.0] * 8 + [ratio] * 6, 0.005, seed)) for seed in range(100)]
    assert sum([step.first for step in one] == [8] for one in found) >= 99
    assert all(one[0].ratio == pytest.approx(ratio, rel=0.015) for one in found if one)


def test_several_steps_are_found_in_order() -> None:
    levels = [1.0] * 6 + [1.1] * 7 + [0.9] * 6
    assert [(step.first, round(step.ratio, 2)) for step in steps(series(levels, 0.002))] == [(6, 1.1), (13, 0.82)]


def test_what_is_no_step() -> None:
    assert steps([]) == []
    assert steps([1.0] * (ENOUGH - 2) + [2.0]) == []  # too few commits, however large
    assert steps([1.0] * 9 + [1.5]) == []  # a single commit
    assert steps([1.0] * 6 + [1.0 + 0.9 * LEAST] * 6) == []  # below the least, however clean
    assert steps([1.0] * 12) == []
    assert [step.first for step in steps([1.0] * 6 + [1.0 + 1.1 * LEAST] * 6)] == [6]


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_medians_that_are_none_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="positive"):
        steps([1.0] * 6 + [bad])


# -- the figure --------------------------------------------------------------------------------------------------------


def at_commit(number: int, ms: float, **fields: Any) -> list[Row]:
    """Rounds measured on day ``number`` at a commit of that number."""
    run = f"run-{number}-{fields.get('gpu')}"
    rows = make_rounds(ms, noise=number, run_id=run, git_sha=f"{number:010d}" + "f" * 30, **fields)
    return [row | {"time": f"2026-01-{number + 1:02d}T00:{row['round']:02d}:00Z"} for row in rows]


def of(rows: list[Row], seqlen: int = 4096, pass_: str = "forward") -> pd.DataFrame:
    return history.data(history.commits(rows), seqlen, pass_)


def test_one_line_a_mask_series_and_commit_in_the_order_of_measuring() -> None:
    rows = [row for number in (2, 0, 1) for row in at_commit(number, 1.0 + number, kernel="fm3")]
    rows += at_commit(1, 9.0, kernel="flex") + at_commit(0, 5.0, kernel="flex", mask="causal")
    frame = of(rows)
    assert list(frame.columns) == history.COLUMNS
    assert set(frame["mask"]) == {"document"}  # nothing was measured twice on the causal mask
    ours = frame[frame["series"] == "fm3"]
    assert list(ours["commit"]) == ["0000000000", "0000000001", "0000000002"]
    assert list(ours["place"]) == [0, 1, 2]
    assert ours["median_ms"].to_numpy() == pytest.approx([1.0, 2.0, 3.0], rel=0.01)
    assert (ours["low_ms"] <= ours["median_ms"]).all() and (ours["median_ms"] <= ours["high_ms"]).all()
    assert f"from {ENOUGH} commits on" in history.note(frame)


def test_a_tree_with_changes_is_a_commit_of_its_own() -> None:
    rows = at_commit(0, 1.0) + [row | {"git_dirty": True, "time": "2026-02-01T00:00:00Z"} for row in at_commit(0, 2.0)]
    assert list(of(rows)["commit"]) == ["0000000000", "0000000000+"]


@pytest.mark.parametrize("change", [{"timing_version": 2}, {"mask_digest": "other"}, {"seed": 1}, {"batch": 2}])
def test_what_is_another_measurement_is_left_out(change: dict[str, Any]) -> None:
    assert len(of(at_commit(0, 1.0) + at_commit(1, 2.0, **change))) == 0
    assert list(catalogue.histories(at_commit(0, 1.0) + at_commit(1, 2.0, **change))) == []


def test_a_step_is_drawn_and_noted_with_the_card_that_changed() -> None:
    rows = []
    for number in range(12):
        late = number >= 7
        rows += at_commit(number, 1.06 if late else 1.0, kernel="fm3", spread=0.004, gpu_hash="new" if late else "old")
        rows += at_commit(number, 2.0, kernel="flex", spread=0.004, gpu_hash="old")
    (drawn,) = catalogue.histories(rows)
    assert (drawn.name, drawn.kind) == ("history_forward_4096", "history")
    assert [note.split(":")[0] for note in history.notes(drawn.frame)] == ["FM3 on document"]
    assert "(slower) from 0000000007 on, and on other cards from there on." in drawn.caption
    texts = [text.get_text() for axes in drawn.figure().axes for text in axes.texts]
    assert len(texts) == 1 and float(texts[0].strip("+%")) == pytest.approx(6.0, abs=0.4)


def test_a_failure_keeps_its_place_without_a_figure() -> None:
    rows = at_commit(0, 1.0) + at_commit(2, 1.0)
    failed = make_row(status="crash", git_sha="0000000001" + "f" * 30, time="2026-01-02T00:00:00Z", run_id="run-1")
    frame = of([*rows, failed])
    assert list(frame["status"]) == ["ok", "crash", "ok"]
    assert frame["median_ms"].isna().tolist() == [False, True, False]
    (drawn,) = catalogue.histories([*rows, failed])
    assert drawn.figure().axes


def test_a_single_round_has_a_point_without_an_interval() -> None:
    (drawn,) = catalogue.histories(at_commit(0, 1.0, rounds=1) + at_commit(1, 1.0, rounds=1))
    assert drawn.frame["low_ms"].isna().all()
    assert b"nan" not in files.to_bytes(drawn.figure(), "svg").lower()


def test_machines_and_protocols_have_histories_of_their_own() -> None:
    rows = at_commit(0, 1.0) + at_commit(1, 1.0)
    rows += at_commit(0, 1.0, gpu="Other") + at_commit(1, 1.0, gpu="Other") + at_commit(1, 1.0, protocol="burst")
    assert [drawn.folder.split("_")[0] for drawn in catalogue.histories(rows)] == ["other", "test-gpu"]
