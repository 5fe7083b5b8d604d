"""The row schema: what is accepted, what is refused, and how files are read."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path

import pytest
from row_factory import make_row

from harness.rows import FIELDS, RowError, check_row, read_rows, row_files


def test_a_valid_row_is_returned_as_it_is() -> None:
    row = make_row()
    assert check_row(row) is row and set(row) == set(FIELDS)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema_version": 99}, "schema_version is 99; this reader knows 2"),
        ({"status": "fine"}, "status is 'fine'; allowed: ok, incorrect"),
        ({"pass": "sideways"}, "pass is 'sideways'"),
        ({"samples_ms": []}, "samples_ms"),
        ({"samples_ms": [1.0, -1.0]}, "samples_ms"),
        ({"samples_ms": [1.0, math.inf]}, "samples_ms"),
        ({"samples_ms": [1.0, True]}, "samples_ms"),
        ({"samples_ms": None}, "samples_ms is null"),
        ({"density": math.nan}, "density is nan"),
        ({"density": 10**400}, "density is 0x"),
        ({"seqlen": 2**63}, "seqlen is 0x"),
        ({"samples_ms": [10**400]}, "samples_ms"),
        ({"simulation": {"interval_ms": [1.0, 2.0]}}, "simulation must be null on rows that are measured"),
        ({"source": "simulated", "simulation": {}}, "simulation.interval_ms must be two positive numbers"),
        ({"schema_version": 1.0}, "schema_version is 1.0; this reader knows 2"),
        ({"mask": "\ud800"}, "mask holds text that is not Unicode"),
        ({"seqlen": 4096.5}, "seqlen is 4096.5; expected int"),
        ({"seqlen": True}, "seqlen is True"),
        ({"deterministic": 1}, "deterministic is 1; expected bool"),
        ({"kernel": None}, "kernel is null"),
        ({"status": "oom"}, "status oom must not carry samples_ms"),
        ({"surprise": 1}, "unknown fields .'surprise'."),
    ],
)
def test_a_broken_row_is_refused_by_field(change: dict, message: str) -> None:
    with pytest.raises(RowError, match=message):
        check_row(make_row() | change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"comp_samples_ms": [0.0]}, "comp_samples_ms must be null or, with status ok, positive numbers"),
        ({"ranks": {"speed": [1, 2]}}, "ranks has 'speed'; allowed: recv_bytes, tiles, full_ms"),
        ({"ranks": {"tiles": [1]}}, "ranks.tiles must be 2 numbers >= 0, found .1."),
        ({"ranks": {"comp_ms": [1.0, -1.0]}}, "ranks.comp_ms must be 2 numbers >= 0"),
    ],
)
def test_what_ranks_did_is_checked_too(change: dict, message: str) -> None:
    row = make_row(cp_degree=2, strategy="fm3", exchange="gloo", comp_samples_ms=[0.8], ranks={"tiles": [3, 4]})
    with pytest.raises(RowError, match=message):
        check_row(row | change)


def test_rows_of_the_first_version_are_read_as_golden_files_say() -> None:
    """The files are never written anew: a migration that changes what old rows mean fails here."""
    golden = Path(__file__).parent / "golden"
    old = [json.loads(line) for line in (golden / "rows_v1.jsonl").read_text().splitlines()]
    new = [json.loads(line) for line in (golden / "rows_v2.jsonl").read_text().splitlines()]
    assert {row["schema_version"] for row in old} == {1} and {row["status"] for row in old} == {"ok", "unsupported"}
    assert [check_row(row) for row in old] == new == [check_row(row) for row in new]
    # A row that says 1 and has fields of 2 is neither.
    with pytest.raises(RowError, match="schema_version is 1; this reader knows 2"):
        check_row(new[0] | {"schema_version": 1})


def test_a_missing_field_is_named() -> None:
    row = make_row()
    del row["gpu"]
    with pytest.raises(RowError, match="missing fields .'gpu'."):
        check_row(row)
    with pytest.raises(RowError, match="expected a JSON object, found list"):
        check_row([])


def test_plain_and_gzipped_files_are_read_in_order(tmp_path: Path) -> None:
    folder = tmp_path / "h200" / "rows"
    folder.mkdir(parents=True)
    (folder / "a.jsonl").write_text(json.dumps(make_row(round=0)) + "\n")
    with gzip.open(folder / "b.jsonl.gz", "wt") as stream:
        stream.write(json.dumps(make_row(round=1)) + "\n")
    (tmp_path / "not_rows.jsonl").write_text("garbage\n")
    assert [path.name for path in row_files(tmp_path)] == ["a.jsonl", "b.jsonl.gz"]
    assert [row["round"] for row in read_rows(tmp_path)] == [0, 1]


def test_a_bad_line_in_the_middle_is_named(tmp_path: Path) -> None:
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "a.jsonl").write_text(json.dumps(make_row()) + "\n{]\n" + json.dumps(make_row()) + "\n")
    with pytest.raises(RowError, match="a.jsonl:2: not JSON"):
        read_rows(tmp_path)


@pytest.mark.parametrize("line", ["[" * 100_000, "1" * 10_000])
def test_json_that_exhausts_its_reader_is_a_bad_row(tmp_path: Path, line: str) -> None:
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "a.jsonl").write_text(line + "\n")
    with pytest.raises(RowError, match="a.jsonl:1"):
        read_rows(tmp_path)


_CUT_OFF = gzip.compress(json.dumps(make_row()).encode() + b"\n", mtime=0)[:-9]


@pytest.mark.parametrize(
    ("name", "content"), [("a.jsonl", b"\xff\xfe\n"), ("a.jsonl.gz", _CUT_OFF), ("b.jsonl.gz", b"not gzip")]
)
def test_files_that_cannot_be_read_are_named(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / name).write_bytes(content)
    with pytest.raises(RowError, match=f"{name}: cannot be read"):
        read_rows(tmp_path)
