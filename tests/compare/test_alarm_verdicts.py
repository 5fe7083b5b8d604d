"""Every class from rows whose truth is known, and what may never be compared."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime, timedelta

import pytest
from alarm_rows import MASKS, NEW, baseline, candidate, case_rows, compared, grid, verdict_of
from row_factory import make_row

from harness.compare.reading import recording
from harness.compare.settings import Acknowledgement, Settings, Thresholds
from harness.compare.verdict import Kind


def test_nothing_happened() -> None:
    found = compared(candidate(), baseline())
    assert [v.kind for v in found.verdicts] == [Kind.SAME] * len(MASKS)
    assert found.exit_code == 0
    assert found.notes == ()


def test_a_slower_case_is_a_certain_regression_and_nothing_else_is() -> None:
    found = compared(candidate(slow={"document": {"slower": 0.05}}), baseline())
    one = verdict_of(found, "document")
    assert (one.kind, one.certain, found.exit_code) == (Kind.REGRESSION, True, 1)
    assert one.numbers is not None and one.numbers.ratio == pytest.approx(0.95, abs=0.01)
    assert one.numbers.rounds == (20, 40)
    assert one.numbers.interval is not None and one.numbers.interval.high < 0.98
    assert one.command is not None and "mask=document" in one.command
    assert {v.kind for v in found.verdicts if v is not one} == {Kind.SAME}
    assert found.verdicts[0] is one


def test_a_drop_just_over_the_limit_is_not_certain() -> None:
    noisy = {"noise": 0.02}
    found = compared(candidate(slow={"document": {"slower": 0.03, "seed": 2, **noisy}}), baseline(slow={"document": noisy}))
    one = verdict_of(found, "document")
    assert (one.kind, one.certain) == (Kind.REGRESSION, False)
    assert one.numbers is not None and one.numbers.interval is not None and one.numbers.interval.high > 0.98


def test_a_drop_below_two_percent_is_not_reported_however_sure() -> None:
    found = compared(candidate(slow={"document": {"slower": 0.012, "noise": 0.001}}), baseline(noise=0.001))
    one = verdict_of(found, "document")
    assert one.kind is Kind.SAME
    assert one.numbers is not None and one.numbers.probability < 0.01


def test_faster_is_improved_and_no_alarm() -> None:
    found = compared(candidate(slow={"document": {"slower": -0.06}}), baseline())
    assert (verdict_of(found, "document").kind, found.exit_code) == (Kind.IMPROVED, 0)


def test_a_slow_sitting_is_taken_out_by_the_anchor() -> None:
    """Everything 8% slower, anchor and all: no case got slower."""
    everything = candidate(slow={mask: {"slower": 0.08} for mask in MASKS}, anchor={"slower": 0.08})
    assert {v.kind for v in compared(everything, baseline()).verdicts} == {Kind.SAME}


# -- ENVIRONMENT -----------------------------------------------------------------------------------------------------


def test_a_throttled_case_is_the_environment() -> None:
    found = compared(candidate(slow={"document": {"clock": 1500.0, "throttle": 4 | 0x40}}), baseline())
    one = verdict_of(found, "document")
    assert (one.kind, found.exit_code) == (Kind.ENVIRONMENT, 0)
    assert "6.2% lower" in one.reason and "throttled for heat" in one.reason


def test_the_same_code_at_a_lower_clock_is_the_environment() -> None:
    found = compared(candidate(slow={"document": {"clock": 1500.0}}), baseline())
    assert verdict_of(found, "document").kind is Kind.ENVIRONMENT


def test_new_code_that_lowers_its_own_clock_is_a_regression() -> None:
    changed = candidate(
        slow={mask: {"source_hash": "other"} | ({"clock": 1500.0} if mask == "document" else {}) for mask in MASKS}
    )
    one = verdict_of(compared(changed, baseline()), "document")
    assert one.kind is Kind.REGRESSION
    assert "may draw more power" in one.reason


def test_a_drop_in_cycles_too_is_a_regression_at_any_clock() -> None:
    found = compared(candidate(slow={"document": {"clock": 1500.0, "slower": 0.06, "throttle": 0x40}}), baseline())
    assert verdict_of(found, "document").kind is Kind.REGRESSION


def test_a_clock_that_was_read_now_high_and_now_low_excuses_nothing() -> None:
    """A drop of 6% with clocks of two calls mixed, mostly high before and mostly low now: in cycles it would be gone."""
    sides = [candidate(slow={"document": {"slower": 0.06}}), baseline()]
    for side, low in zip(sides, (0.7, 0.3), strict=True):
        draw = random.Random(1)
        for row in side.rows:
            if row["mask"] == "document":
                row["clocks"]["sm_mhz"] = [1410.0, 1410.0 if draw.random() < low else 1635.0, 1650.0]
    assert verdict_of(compared(*sides), "document").kind is Kind.REGRESSION


def test_without_clocks_nothing_is_excused() -> None:
    found = compared(candidate(clock=None, slow={"document": {"slower": 0.06}}), baseline(clock=None))
    assert verdict_of(found, "document").kind is Kind.REGRESSION


# -- LOST and NEW ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["crash", "incorrect", "oom", "missing_backend", "unsupported"])
def test_a_case_that_fails_now_is_lost(status: str) -> None:
    rows = [row for row in candidate().rows if row["mask"] != "document"]
    rows.append(
        make_row(kernel="fm3", mask="document", status=status, run_id="run-new", time="2026-03-01T00:00:00Z", gpu_hash="card-1")
    )
    found = compared(recording("new", rows), baseline())
    one = verdict_of(found, "document")
    assert (one.kind, found.exit_code) == (Kind.LOST, 1)
    assert status in one.reason


def test_a_case_that_vanished_though_it_was_asked_for_is_lost() -> None:
    """Another kernel has the document mask, and this kernel has other masks."""
    flex = {"kernel": "flex", "run_id": "run-new", "start": NEW["start"]}
    rows = [row for row in candidate().rows if row["mask"] != "document"] + case_rows("document", **flex)
    assert verdict_of(compared(recording("new", rows), baseline()), "document").kind is Kind.LOST


def test_what_was_not_asked_for_is_told_and_only_lost_when_all_is_asked() -> None:
    few = recording("new", [row for row in candidate().rows if row["mask"] in ("full", "causal")])
    found = compared(few, baseline())
    assert {v.row["mask"]: v.kind for v in found.verdicts} == {"causal": Kind.SAME}
    assert found.notes == ("not measured by the candidate: 2 of the baseline",)
    whole = compared(few, baseline(), whole=True)
    assert whole.counts[Kind.LOST] == 2 and whole.exit_code == 1


def test_a_new_case_and_one_that_failed_before_are_new() -> None:
    base = [row for row in baseline().rows if row["mask"] != "document"] + [
        make_row(kernel="fm3", mask="document", status="crash", gpu_hash="card-1")
    ]
    found = compared(candidate(), recording("base", [row for row in base if row["mask"] != "causal"]))
    assert verdict_of(found, "document").reason == "was crash"
    assert verdict_of(found, "causal").reason == "no baseline"
    assert {v.kind for v in found.verdicts} == {Kind.NEW, Kind.SAME}
    assert found.exit_code == 0


def test_all_new_is_no_baseline() -> None:
    assert compared(candidate(), baseline(gpu="Another GPU")).exit_code == 3


# -- what is never compared ------------------------------------------------------------------------------------------


def test_another_card_of_the_kind_is_not_compared() -> None:
    found = compared(candidate(gpu_hash="card-2", slow={"document": {"slower": 0.2}}), baseline())
    assert {v.kind for v in found.verdicts} == {Kind.OTHER_MACHINE}
    assert found.exit_code == 3


def test_cards_are_never_pooled() -> None:
    """A second card in the baseline, 4% faster, changes nothing for the first."""
    both = [
        *baseline().rows,
        *grid(rounds=40, gpu_hash="card-2", run_id="run-2", slow={mask: {"slower": -0.04} for mask in MASKS}),
    ]
    found = compared(candidate(), recording("base", both))
    assert {v.kind for v in found.verdicts} == {Kind.SAME}
    assert {v.numbers.rounds for v in found.verdicts if v.numbers} == {(20, 40)}


@pytest.mark.parametrize("other", [{"gpu": "Another GPU"}, {"power_limit": 500.0}, {"protocol": "burst"}])
def test_other_machines_and_protocols_are_never_compared_and_that_is_said(other: dict) -> None:
    found = compared(candidate(slow={"document": {"slower": 0.2}}), baseline(**other))
    assert {v.kind for v in found.verdicts} == {Kind.NEW}
    assert "never compared" in found.verdicts[0].reason
    assert any("another machine or protocol" in note for note in found.notes)


def test_simulated_and_measured_rows_never_meet() -> None:
    found = compared(candidate(source="simulated"), baseline())
    assert not found.verdicts
    assert any("simulated rows were left out" in note for note in found.notes)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"timing_version": 2}, "the timing method changed"),
        ({"mask_digest": "another"}, "the mask's content changed"),
    ],
)
def test_figures_of_another_method_or_mask_do_not_compare(change: dict, reason: str) -> None:
    found = compared(candidate(slow={"document": change}), baseline())
    one = verdict_of(found, "document")
    assert one.kind is Kind.AMBIGUOUS and reason in one.reason


def test_another_version_of_the_anchor_is_not_compared() -> None:
    found = compared(candidate(anchor={"source_hash": "cuDNN next"}), baseline())
    assert {v.kind for v in found.verdicts} == {Kind.AMBIGUOUS}
    assert "the anchor itself is another version" in found.verdicts[0].reason
    assert found.exit_code == 3


def test_without_an_anchor_nothing_is_judged() -> None:
    rows = [row for row in candidate().rows if row["kernel"] != "sdpa_cudnn"]
    found = compared(recording("new", rows), baseline())
    assert "the candidate has no round of the anchor" in verdict_of(found, "document").reason


def test_an_anchor_of_a_neighbouring_run_counts_for_some_hours() -> None:
    later = {"run_id": "run-later", "start": NEW["start"] + timedelta(hours=2)}
    assert {v.kind for v in compared(candidate(anchor=later), baseline()).verdicts} == {Kind.SAME}
    late = {"run_id": "run-later", "start": NEW["start"] + timedelta(hours=30)}
    assert {v.kind for v in compared(candidate(anchor=late), baseline()).verdicts} == {Kind.AMBIGUOUS}


# -- too little to say -----------------------------------------------------------------------------------------------


def test_too_few_rounds_are_ambiguous_and_say_how_many_are_needed() -> None:
    found = compared(candidate(rounds=5), baseline(rounds=5))
    one = verdict_of(found, "document")
    assert (one.kind, found.exit_code) == (Kind.AMBIGUOUS, 3)
    assert one.numbers is not None and one.numbers.needed is not None
    new, base = one.numbers.needed
    assert one.reason.startswith("5 new and 5 baseline rounds")
    assert f"needs {new} new and {base} baseline rounds" in one.reason
    enough = compared(candidate(rounds=new), baseline(rounds=base))
    assert verdict_of(enough, "document").kind is Kind.SAME


def test_four_rounds_are_never_enough_however_calm() -> None:
    found = compared(candidate(rounds=4, slow={"document": {"slower": 0.2}}), baseline())
    assert {v.kind for v in found.verdicts} == {Kind.AMBIGUOUS}
    assert "needs 5 new and 40 baseline rounds" in verdict_of(found, "causal").reason


def test_noise_that_hides_three_percent_is_ambiguous() -> None:
    found = compared(candidate(slow={"document": {"noise": 0.05}}), baseline(slow={"document": {"noise": 0.05}}))
    assert verdict_of(found, "document").kind is Kind.AMBIGUOUS


def test_the_rows_of_the_baseline_themselves_are_the_same() -> None:
    base = baseline()
    found = compared(base, base)
    assert {v.reason for v in found.verdicts} == {"the very rows of the baseline"}
    assert found.exit_code == 0


def test_rows_that_both_sides_have_are_the_baselines() -> None:
    """A candidate that goes on in a copy of the baseline's folder is judged by what it measured itself."""
    both = recording("new", [*baseline().rows, *candidate(slow={"document": {"slower": 0.05}}).rows])
    one = verdict_of(compared(both, baseline()), "document")
    assert one.kind is Kind.REGRESSION
    assert one.numbers is not None and one.numbers.rounds == (20, 40)


# -- what is said of the rows ----------------------------------------------------------------------------------------


def test_duplicates_count_once_and_are_told() -> None:
    twice = recording("new", [*candidate().rows, *candidate().rows[:7]])
    found = compared(twice, baseline())
    assert verdict_of(found, "document").numbers.rounds == (20, 40)  # type: ignore[union-attr]
    assert found.notes == ("new: 7 rows are stored twice and count once",)


def test_a_wrong_clock_is_told() -> None:
    ahead = recording("new", candidate().rows, now=datetime(2026, 1, 1, tzinfo=UTC))
    assert any("dated in the future" in note for note in compared(ahead, baseline()).notes)
    swapped = compared(baseline(), candidate(rounds=40))
    assert any("older than the baseline's" in note for note in swapped.notes)


# -- acknowledgements ------------------------------------------------------------------------------------------------


def test_an_acknowledged_alarm_is_shown_and_does_not_fail() -> None:
    known = Acknowledgement("pays for a fix", date(2026, 6, 1), kernel="fm3", mask="document")
    settings = Settings(acknowledged=(known,))
    found = compared(candidate(slow={"document": {"slower": 0.05}}), baseline(), settings)
    one = verdict_of(found, "document")
    assert (one.kind, one.acknowledged, found.exit_code) == (Kind.REGRESSION, known, 0)
    assert compared(candidate(slow={"causal": {"slower": 0.05}}), baseline(), settings).exit_code == 1


def test_an_expired_acknowledgement_counts_for_nothing_and_an_unused_one_is_told() -> None:
    expired = Acknowledgement("old", date(2026, 5, 31), mask="document")
    unused = Acknowledgement("other", date(2026, 6, 30), mask="causal", verdict=Kind.LOST)
    settings = Settings(acknowledged=(expired, unused))
    found = compared(candidate(slow={"document": {"slower": 0.05}}), baseline(), settings)
    assert found.exit_code == 1
    assert "acknowledgement expired on 2026-05-31: mask=document (old)" in found.notes
    assert "acknowledgement of nothing: mask=causal, verdict=LOST (other)" in found.notes


def test_thresholds_are_used() -> None:
    loose = Settings(Thresholds(least_drop=0.1, visible_drop=0.15))
    found = compared(candidate(slow={"document": {"slower": 0.05}}), baseline(), loose)
    assert verdict_of(found, "document").kind is Kind.SAME
