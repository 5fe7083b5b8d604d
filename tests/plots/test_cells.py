"""Which rows count, and what may stand side by side."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import pytest
from row_factory import make_rounds, make_row, write_rows

from harness.rows import Row, RowError
from plots.cells import Cell, cells_of, load_rows, mask_rank
from plots.slots import same_problem, settings, slot_labels


def one(rows: list[Row]) -> Cell:
    (cell,) = cells_of(rows)
    return cell


def test_all_rounds_of_all_runs_are_pooled() -> None:
    rows = make_rounds(1.0, rounds=3) + make_rounds(2.0, rounds=2, run_id="run-2", time="2026-01-03T00:00:00Z")
    cell = one(rows)
    assert len(cell.rows) == 5
    assert sorted(cell.samples) == sorted(s for row in rows for s in row["samples_ms"])
    assert cell.rounds.keys() == {("run-1", 0), ("run-1", 1), ("run-1", 2), ("run-2", 0), ("run-2", 1)}


def test_only_the_newest_source_hash_counts_even_when_it_is_slower() -> None:
    old = make_rounds(1.0, source_hash="old", time="2026-01-01T00:00:00Z")
    new = make_rounds(9.0, source_hash="new", run_id="run-2", time="2026-01-02T00:00:00Z")
    cell = one(new + old)
    assert cell["source_hash"] == "new"
    assert cell.median_ms == pytest.approx(9.0, rel=0.02)


def test_a_case_measured_with_an_older_source_hash_only_has_no_line() -> None:
    old = make_row(mask="causal", source_hash="old", time="2026-01-01T00:00:00Z")
    new = make_row(mask="document", source_hash="new", time="2026-01-02T00:00:00Z")
    assert [cell["mask"] for cell in cells_of([old, new])] == ["document"]


def test_newest_is_by_time_across_time_zones() -> None:
    """09:30+02:00 is 07:30 UTC, before 08:00Z, though its text sorts after."""
    early = make_row(source_hash="early", time="2026-01-02T09:30:00+02:00")
    late = make_row(source_hash="late", time="2026-01-02T08:00:00Z", run_id="run-2")
    assert one([late, early])["source_hash"] == "late"


def test_a_time_that_is_none_raises() -> None:
    with pytest.raises(RowError, match="yesterday"):
        cells_of([make_row(time="yesterday")])


@pytest.mark.parametrize("field", ["gpu", "kernel"])
def test_each_kernel_and_gpu_has_its_own_newest_source_hash(field: str) -> None:
    first = make_row(**{field: "one", "source_hash": "a", "time": "2026-01-01T00:00:00Z"})
    second = make_row(**{field: "two", "source_hash": "b", "time": "2026-01-02T00:00:00Z"})
    assert len(cells_of([first, second])) == 2


def test_power_limits_are_machines_apart() -> None:
    assert len(cells_of([make_row(power_limit=700.0), make_row(power_limit=600.0)])) == 2


@pytest.mark.parametrize("status", ["missing_backend", "interrupted"])
def test_rows_that_say_nothing_about_the_code_change_nothing(status: str) -> None:
    good = make_rounds(1.0, rounds=2)
    silent = make_row(status=status, source_hash="other", time="2027-01-01T00:00:00Z")
    cell = one([*good, silent])
    assert (cell.status, len(cell.rows)) == ("ok", 2)
    assert one([silent]).status == status


@pytest.mark.parametrize("status", ["crash", "timeout", "oom", "compile_error"])
def test_a_later_failure_takes_the_figures_away_and_a_later_success_returns_them(status: str) -> None:
    good = make_rounds(1.0, rounds=2)
    failed = make_row(status=status, round=2, time="2026-01-02T04:00:00Z")
    cell = one([*good, failed])
    assert (cell.status, cell.reason, cell.rows) == (status, f"{status} for a test", ())
    again = make_row(round=2, run_id="run-2", time="2026-01-02T05:00:00Z")
    assert len(one([*good, failed, again]).rows) == 3


def test_a_wrong_result_is_not_outvoted_until_the_code_changes() -> None:
    wrong = make_row(status="incorrect", time="2026-01-02T00:00:00Z")
    later = make_row(run_id="run-2", time="2026-01-03T00:00:00Z")
    assert one([wrong, later]).status == "incorrect"
    fixed = make_row(run_id="run-3", time="2026-01-04T00:00:00Z", tree_hash="tree-2")
    assert one([wrong, later, fixed]).status == "ok"


@pytest.mark.parametrize("change", [{"timing_version": 2}, {"mask_digest": "another"}])
def test_rows_of_another_timing_or_mask_content_are_left_out(change: dict[str, object]) -> None:
    old = make_row(time="2026-01-01T00:00:00Z", samples_ms=[5.0])
    new = make_row(time="2026-01-02T00:00:00Z", run_id="run-2", samples_ms=[1.0], **change)
    assert one([old, new]).samples == [1.0]


def test_a_row_stored_twice_counts_once(tmp_path: Path) -> None:
    path = write_rows(tmp_path, make_rounds(1.0, rounds=3))
    with gzip.open(path.with_suffix(".jsonl.gz"), "wb") as stream:
        stream.write(path.read_bytes())
    rows = load_rows(tmp_path)
    assert len(rows) == 6
    assert len(one(rows).rows) == 3


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"samples_ms": [0.5]}, r"samples_ms is \[.*\.\.\. and \[0.5\]"),
        ({"time": "2027-01-01T00:00:00Z"}, 'time is ".*" and "2027-01-01T00:00:00Z"'),
        ({"gpu": "Another"}, 'gpu is "Test GPU" and "Another"'),
        ({"order": 1, "source_hash": "x"}, "order is 0 and 1; source_hash differ too"),
    ],
)
def test_two_rows_of_one_round_that_do_not_agree_are_refused_with_both_places(
    tmp_path: Path, change: dict[str, object], told: str
) -> None:
    """One of them was edited, or files of two runs were mixed: whichever was kept, figures would be silently wrong."""
    rows = make_rounds(1.0, rounds=3)
    write_rows(tmp_path / "h200", rows)
    edited = write_rows(tmp_path / "later", [rows[0], rows[1] | change])
    with pytest.raises(RowError, match=rf"{tmp_path}/h200/rows/run-1.jsonl:2 and {edited}:2 are both round 1 .*: {told}"):
        cells_of(load_rows(tmp_path))
    with pytest.raises(RowError, match="run 'run-1', case '.*', round 1 and run 'run-1'"):  # rows that were never stored
        cells_of([*rows, rows[1] | change])


def test_a_round_may_fail_beside_its_figures_and_fail_again() -> None:
    """A competitor that dies after its round, or is tried again by a fresh worker, has several rows of one round."""
    again = [make_row(status="oom", time=f"2026-01-02T04:0{minute}:00Z") for minute in (0, 1)]
    assert one([make_row(), *again]).status == "oom"
    with pytest.raises(RowError, match="reason"):
        cells_of([again[0], again[0] | {"reason": "another"}])


def test_the_order_of_rows_does_not_matter() -> None:
    rows = [
        *make_rounds(1.0),
        *make_rounds(2.0, kernel="dense"),
        *make_rounds(3.0, mask="full"),
        make_row(kernel="dense", mask="full", status="oom"),
    ]
    shuffled = rows.copy()
    random.Random(1).shuffle(shuffled)
    before, after = cells_of(rows), cells_of(shuffled)
    assert [(c["case_id"], c.status, c.samples) for c in before] == [(c["case_id"], c.status, c.samples) for c in after]
    assert [c["mask"] for c in before] == ["full", "full", "document", "document"]  # the registry's order


def test_local_rows_are_read_only_when_named(tmp_path: Path) -> None:
    write_rows(tmp_path / "h200", [make_row()])
    write_rows(tmp_path / "local", [make_row(kernel="dense")])
    assert [row["kernel"] for row in load_rows(tmp_path)] == ["flex"]
    assert [row["kernel"] for row in load_rows(tmp_path / "local")] == ["dense"]


def test_unreadable_files_are_row_errors(tmp_path: Path) -> None:
    folder = tmp_path / "rows"
    folder.mkdir()
    (folder / "broken.jsonl.gz").write_bytes(b"not gzip at all")
    with pytest.raises(RowError, match=r"broken\.jsonl\.gz"):
        load_rows(tmp_path)
    with pytest.raises(FileNotFoundError):
        load_rows(tmp_path / "nowhere")


def test_throughput_by_both_conventions() -> None:
    cell = one([make_row(samples_ms=[2.0], flops=4e12, flops_tile128=6e12, tile_density=0.375)])
    assert cell.tflops() == pytest.approx(2000.0)
    assert cell.tflops("tile128") == pytest.approx(3000.0)
    cell = one(make_rounds(2.0, flops=4e12, flops_tile128=4.8e12))
    low, high = cell.tflops_interval()
    assert low < cell.tflops() < high


def test_labels_grow_only_where_masks_would_be_confused() -> None:
    plain = cells_of([make_row(mask="causal"), make_row(mask="document", variant="a"), make_row(kernel="dense", mask="causal")])
    assert sorted(slot_labels(plain)) == ["causal", "causal", "document"]
    lists = cells_of([make_row(variant="a", mask_digest="1"), make_row(variant="b", mask_digest="2"), make_row(mask="causal")])
    assert sorted(slot_labels(lists)) == ["causal", "document (a)", "document (b)"]
    seeds = cells_of([make_row(seed=1, mask_digest="1"), make_row(seed=2, mask_digest="2")])
    assert sorted(slot_labels(seeds)) == ["document seed 1", "document seed 2"]
    windows = cells_of([make_row(mask_params={"window": w}, mask_digest=str(w)) for w in (8, 16)])
    assert sorted(slot_labels(windows)) == ["document window=16", "document window=8"]


def test_competitors_with_different_batches_do_not_share_a_label() -> None:
    cells = cells_of([make_row(kernel="flex", batch=1), make_row(kernel="dense", batch=4)])
    assert sorted(slot_labels(cells)) == ["document B=1", "document B=4"]
    assert not same_problem(*cells)


def test_one_more_batch_does_not_part_the_lengths_of_a_sweep() -> None:
    """Whose batch shrinks as the length grows, so that by batch each length would be apart."""
    rows = [make_row(seqlen=1024 << n, batch=8 >> n, case_id=f"c{n}", mask="document") for n in range(4)]
    assert slot_labels(cells_of(rows)) == ["document"] * 4
    rows.append(make_row(seqlen=1024, batch=1, case_id="alone", mask="document"))
    assert sorted(slot_labels(cells_of(rows))) == ["document B*S=1K", *["document B*S=8K"] * 4]


def test_a_failure_without_digest_stands_beside_its_competitors() -> None:
    cells = cells_of([make_row(), make_row(kernel="dense", status="crash", mask_digest=None)])
    assert slot_labels(cells) == ["document", "document"]
    assert same_problem(*cells)


def test_simulated_and_measured_are_never_one_problem() -> None:
    assert not same_problem(*cells_of([make_row(), make_row(kernel="fm3", source="simulated")]))


def test_settings_part_what_one_figure_cannot_hold() -> None:
    rows = [make_row(), make_row(kernel="dense"), make_row(protocol="burst"), make_row(head_dim=128), make_row(gpu="Other")]
    assert sorted(len(members) for members in settings(cells_of(rows)).values()) == [1, 1, 1, 2]


def test_unknown_masks_come_last() -> None:
    assert sorted(["zebra", "document", "full", "apple"], key=mask_rank) == ["full", "document", "apple", "zebra"]
