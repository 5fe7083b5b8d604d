"""The row schema: what is accepted, what is refused, and how files are read."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import pytest
from row_factory import make_row

from harness.provenance import ROOT
from harness.rows import FIELDS, RowError, check_row, read_rows, row_files


def test_a_valid_row_is_returned_as_it_is() -> None:
    row = make_row()
    assert check_row(row) is row and set(row) == set(FIELDS)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema_version": 99}, "schema_version is 99; this reader knows 3"),
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
        ({"source": "simulated", "simulation": {}}, "simulation lacks interval_ms, overlap, cluster"),
        ({"schema_version": 1.0}, "schema_version is 1.0; this reader knows 3"),
        ({"mask": "\ud800"}, "mask holds text that is not Unicode"),
        ({"seqlen": 4096.5}, "seqlen is 4096.5; allowed: a whole number, at least 1"),
        ({"seqlen": True}, "seqlen is True"),
        ({"deterministic": 1}, "deterministic is 1; allowed: true or false"),
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
        ({"comp_samples_ms": [0.0]}, "comp_samples_ms is .0.0.; allowed: numbers above 0"),
        ({"ranks": {"speed": [1, 2]}}, "ranks has 'speed'; allowed: recv_bytes, tiles, full_ms"),
        ({"ranks": {"tiles": [1]}}, "ranks.tiles is .1.; allowed: 2 numbers, at least 0"),
        ({"ranks": {"comp_ms": [1.0, -1.0]}}, "ranks.comp_ms is .1.0, -1.0.; allowed: 2 numbers, at least 0"),
    ],
)
def test_what_ranks_did_is_checked_too(change: dict, message: str) -> None:
    row = make_row(cp_degree=2, strategy="fm3", exchange="gloo", comp_samples_ms=[0.8], ranks={"tiles": [3, 4]})
    with pytest.raises(RowError, match=message):
        check_row(row | change)


NUMBERS = [name for name, field in FIELDS.items() if int in field.kind.types and name != "schema_version"]


@pytest.mark.parametrize("name", NUMBERS)
def test_no_number_is_outside_its_limits(name: str) -> None:
    """Every number has some, and what is allowed stands in the message."""
    row = make_row(power_limit=700.0, mask_heads=1)
    for wrong in (-1, math.nan, math.inf, 10**400, "7", True):
        with pytest.raises(RowError, match=rf"{name} is .*; allowed: a (whole )?number"):
            check_row(row | {name: wrong})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"density": 7}, "density is 7; allowed: a number above 0, at most 1"),
        ({"density": 0.0}, "density is 0; allowed: a number above 0"),
        ({"tile_density": 0.2}, "density is 0.25; allowed: at most 0.2, with a tile_density of 0.2"),
        ({"flops": 0}, "flops is 0; allowed: a number above 0"),
        ({"flops": 1e9}, "flops_tile128 is .*; allowed: flops x tile_density / density, 1.2e"),
        ({"round": -1}, "round is -1; allowed: a whole number, at least 0"),
        ({"recv_share": 1.5, "strategy": "ring", "cp_degree": 2}, "recv_share is 1.5; allowed: at most 1, unless"),
        ({"kv_heads": 4}, "kv_heads is 4; allowed: what divides heads, 2"),
        ({"dtype": "bf16"}, "dtype is 'bf16'; allowed: bfloat16, float16, float32"),
        ({"l2": "hot"}, "l2 is 'hot'; allowed: cold, warm"),
        ({"device": "tpu"}, "device is 'tpu'; allowed: cuda, cpu"),
        ({"errors": {"out_max": 1.5}}, "errors.out_max is 1.5; allowed: a number from 0 to 1, as the correctness gate"),
        ({"clocks": {"sm_mhz": [1.0, math.nan, 2.0]}}, "clocks.sm_mhz is .*nan.*; allowed: numbers, at least 0"),
        ({"clocks": {"throttle": "hot"}}, "clocks.throttle is 'hot'"),
        ({"mask_params": {"window": math.nan}}, "mask_params.window is nan; allowed: a finite number"),
        ({"overrides": [1]}, r"overrides is \[1\]; allowed: texts"),
    ],
)
def test_figures_that_no_run_can_give_are_refused(change: dict, message: str) -> None:
    with pytest.raises(RowError, match=message):
        check_row(make_row() | change)


def test_what_only_looks_impossible_is_read() -> None:
    """A whole tile of 128 rows and one of a single row: two of four tiles hold 98% of the pairs. Ulysses moves queries too."""
    check_row(make_row(seqlen=129, density=16385 / 16641, tile_density=0.5))
    check_row(make_row(strategy="ulysses", exchange="gloo", cp_degree=2, recv_share=1.02))
    check_row(make_row(status="incorrect", errors={"out_max": 1e9}))


SIMULATION: dict[str, Any] = {
    "cluster": "c", "rates": "r", "validated": False, "doubts": ["assumed: x"], "ranks_per_node": 2, "interval_ms": [1.0, 2.0],
    "t_full_ms": 1.5, "t_comp_ms": 1.0, "t_comm_ms": 0.5, "exposed_ms": 0.5, "overlap": 0.0, "balance": 1.0, "recv_bytes": 4,
    "recv_bytes_max": 2, "recv_share": 0.5, "scaling": 0.6, "least_ms": 0.9, "held_bytes": 100,
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"interval_ms": [2.0, 1.0]},
            r"simulation.interval_ms is \[2.0, 1.0\]; allowed: two numbers above 0, the lower one first",
        ),
        ({"interval_ms": [1.0]}, "simulation.interval_ms is"),
        ({"balance": 1.5}, "simulation.balance is 1.5; allowed: a number from 0 to 1"),
        ({"overlap": "all"}, "simulation.overlap is 'all'; allowed: null, or a finite number"),
        ({"doubts": [1]}, "simulation.doubts is .1.; allowed: texts"),
        ({"validated": "yes"}, "simulation.validated is 'yes'; allowed: true or false"),
        ({"t_comm_ms": -1.0}, "simulation.t_comm_ms is -1; allowed: a number, at least 0"),
    ],
)
def test_what_a_model_says_is_checked_too(change: dict, message: str) -> None:
    row = make_row(source="simulated", simulation=SIMULATION, strategy="fm3", cp_degree=2)
    with pytest.raises(RowError, match=message):
        check_row(row | {"simulation": SIMULATION | change})


def test_all_committed_rows_are_possible() -> None:
    assert len(read_rows(ROOT / "results")) > 1000


def test_rows_of_older_versions_are_read_as_golden_files_say() -> None:
    """The files are never written anew: a migration that changes what old rows mean fails here."""
    golden = Path(__file__).parent / "golden"
    texts = [(golden / f"rows_v{number}.jsonl").read_text() for number in (1, 2, 3)]
    first, second, third = ([json.loads(line) for line in text.splitlines()] for text in texts)
    assert {row["schema_version"] for row in first} == {1} and {row["status"] for row in first} == {"ok", "unsupported"}
    assert {row["schema_version"] for row in second} == {2}
    assert [check_row(row) for row in first] == [check_row(row) for row in second] == third == [check_row(row) for row in third]
    # A row that says 1 and has fields of 2 is neither.
    with pytest.raises(RowError, match="schema_version is 1; this reader knows 3"):
        check_row(second[0] | {"schema_version": 1})


def test_a_backward_pass_keeps_its_rows_when_its_hash_covers_less() -> None:
    """One pair of hashes of the same sources; any other hash stays, and one that is no text is refused, not migrated."""
    row = make_row() | {"schema_version": 2}
    assert check_row(row | {"source_hash": "108976f376045c29"})["source_hash"] == "7de378c1ff57fd19"
    assert check_row(row)["source_hash"] == row["source_hash"]
    assert check_row(make_row(source_hash="108976f376045c29"))["source_hash"] == "108976f376045c29"
    for wrong in (None, ["a"]):
        with pytest.raises(RowError, match="source_hash is"):
            check_row(row | {"source_hash": wrong})


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
