"""Ranks that share a sequence, measured: every strategy checked against the oracle, rows that say how it was shared."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from harness.backends import BACKENDS, backend_of
from harness.cases import Group, MaskSpec, Problem, Sharing, Team, Timing
from harness.overlap import turn_about
from harness.provenance import environment
from harness.rows import read_rows
from harness.runner import EXIT_FAILED, EXIT_OK, RunOptions, run
from harness.team_timer import TeamTimer
from harness.timing import Call

QUICK = Timing(protocol="burst", l2="warm", rounds=2, min_samples=2, max_samples=2, target_s=0.01, heat_s=0, timeout_s=120)


def group(*strategies: str, ranks: int = 2, exchange: str = "gloo", **problem: int) -> Group:
    documents = ((100, 0, False), (28, 0, False), (300, 0, False))
    spec = MaskSpec("causal_document", "own", documents)
    sizes = {"seqlen": 428, "batch": 1, "heads": 4, "kv_heads": 2, "head_dim": 16} | problem
    names = tuple(f"reference/{strategy}" for strategy in strategies)
    team = Team(ranks, exchange)
    return Group(Problem(spec, dtype="float32", **sizes), names, ("forward", "backward"), "cpu", QUICK, False, team)


def test_rows_of_ranks(tmp_path: Path) -> None:
    """Checked, timed in turn, recorded by strategy with what each rank did; what is recorded is not measured again."""
    asked = [group("fm3", "ring", "ulysses")]
    assert run(asked, RunOptions(tmp_path)) == EXIT_OK
    rows = list(read_rows(tmp_path))
    assert [row["status"] for row in rows] == ["ok"] * 12
    assert {(row["kernel"], row["strategy"], row["exchange"]) for row in rows} == {
        ("reference", strategy, "gloo") for strategy in ("fm3", "ring", "ulysses")
    }
    # A B C, then C B A.
    order = {(row["round"], row["order"]): row["strategy"] for row in rows}
    assert [order[0, i] for i in range(3)] == ["fm3", "ring", "ulysses"] == [order[1, 2 - i] for i in range(3)]
    for row in rows:
        assert max(row["errors"].values()) <= 1 and len(row["errors"]) > 8
        for name in ("samples_ms", "comp_samples_ms", "comm_samples_ms"):
            assert len(row[name]) == 2 and min(row[name]) > 0
        assert (row["bare_samples_ms"] is not None) == (row["strategy"] == "fm3")
        assert row["cp_degree"] == 2 and row["plan_ms"] > 0 and row["recv_share"] > 0
        assert set(row["ranks"]) == {"recv_bytes", "tiles", "full_ms", "comp_ms", "comm_ms"}
        assert all(len(vector) == 2 for vector in row["ranks"].values())
    assert len({row["case_id"] for row in rows}) == 6
    sent = {row["strategy"]: sum(row["ranks"]["recv_bytes"]) for row in rows}
    assert sent["fm3"] < sent["ring"] == 2 * 2 * 428 * 16 * 4
    assert run(asked, RunOptions(tmp_path)) == EXIT_OK
    assert len(list(read_rows(tmp_path))) == 12


def test_what_a_strategy_cannot_do_is_unsupported_on_all_ranks(tmp_path: Path) -> None:
    """Heads that do not divide: a row that says so, and the others go on."""
    assert run([group("ulysses", "all_gather", ranks=3)], RunOptions(tmp_path)) == EXIT_OK
    rows = list(read_rows(tmp_path))
    told = {(row["strategy"], row["status"]) for row in rows}
    assert told == {("ulysses", "unsupported"), ("all_gather", "ok")}
    assert all("do not divide by 3 ranks" in row["reason"] for row in rows if row["status"] != "ok")


def test_a_figure_above_the_peak_is_refused_with_all_its_parts(tmp_path: Path) -> None:
    assert run([group("fm3")], RunOptions(tmp_path, peak_tflops=1e-9)) == EXIT_FAILED
    rows = list(read_rows(tmp_path))
    assert {row["status"] for row in rows} == {"incorrect"}
    assert not any(row[f"{part}samples_ms"] for row in rows for part in ("", "comp_", "comm_", "bare_"))


def test_a_rank_that_cannot_begin_is_a_crash_and_no_hang(tmp_path: Path) -> None:
    """A group that no process can carry: all ranks end, the row says so."""
    broken = replace(group("fm3", ranks=2), device="cuda")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("harness.runner.environment", lambda device: environment("cpu"))
        assert run([broken], RunOptions(tmp_path)) == EXIT_FAILED
    rows = list(read_rows(tmp_path))
    assert {(row["status"], row["pass"]) for row in rows} == {("crash", "forward"), ("crash", "backward")}


@pytest.mark.parametrize(
    ("way", "status", "reason"),
    [
        ("before", "oom", "rank 1 of 2: MemoryError: there is no room on this rank"),  # the first one waits for it
        ("after", "oom", "rank 1 of 2: MemoryError: there is no room on this rank"),  # the first one is through
        ("die", "crash", "rank 1 of 2 died of signal 9 during check"),
    ],
)
def test_who_fails_on_one_rank_has_failed_and_the_others_go_on(
    way: str, status: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for the rank until the time limit, and nobody else is blamed."""
    monkeypatch.setenv("STUMBLE", way)
    worker = (sys.executable, str(Path(__file__).parent / "stumbling_worker.py"))
    begin = time.monotonic()
    assert run([group("fm3", "ring", "all_gather")], RunOptions(tmp_path, worker=worker)) == EXIT_FAILED
    assert time.monotonic() - begin < QUICK.timeout_s / 2
    rows = list(read_rows(tmp_path))
    told = {(row["strategy"], row["status"], row["reason"]) for row in rows}
    assert told == {("fm3", "ok", None), ("ring", status, reason), ("all_gather", "ok", None)}
    assert sum(row["status"] == "ok" for row in rows) == 2 * 2 * QUICK.rounds


def stumbled(way: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, str], list[tuple[int, str, str]]]:
    """(round, status, reason) of the rows of a run in which a rank stumbles, by strategy and pass."""
    monkeypatch.setenv("STUMBLE", way)
    worker = (sys.executable, str(Path(__file__).parent / "stumbling_worker.py"))
    assert run([group("fm3", "ring", "all_gather")], RunOptions(folder, worker=worker)) == EXIT_FAILED
    found: dict[tuple[str, str], list[tuple[int, str, str]]] = {}
    for row in read_rows(folder):
        found.setdefault((row["strategy"], row["pass"]), []).append((row["round"], row["status"], row["reason"]))
    return {key: sorted(rows) for key, rows in found.items()}


ALL = [(0, "ok", None), (1, "ok", None)]


def test_a_pass_that_fails_on_one_rank_in_a_round_takes_nothing_else_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No round is lost, and none recorded twice."""
    found = stumbled("round", tmp_path, monkeypatch)
    assert found.pop(("ring", "backward")) == [(0, "oom", "rank 1 of 2: MemoryError: there is no room on this rank")]
    passes = [(name, pass_) for name in ("fm3", "ring", "all_gather") for pass_ in ("forward", "backward")]
    assert found == {one: ALL for one in passes if one != ("ring", "backward")}


def test_a_rank_that_dies_in_a_round_takes_its_competitor_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = stumbled("round_die", tmp_path, monkeypatch)
    for pass_ in ("forward", "backward"):
        assert (0, "crash", "rank 1 of 2 died of signal 9 during round 0") in found.pop(("ring", pass_))
    assert found == {(name, pass_): ALL for name in ("fm3", "all_gather") for pass_ in ("forward", "backward")}


def test_a_rank_that_is_never_there_is_told_of_every_competitor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = stumbled("start", tmp_path, monkeypatch)
    reason = "rank 1 of 2 ended with exit code 3 during the start"
    assert set(map(tuple, found.values())) == {((0, "crash", reason),)} and len(found) == 6


def test_a_group_travels_as_json() -> None:
    for one in (group("fm3"), replace(group("fm3"), team=None)):
        assert Group.from_json(one.to_json()) == one


def test_cases_of_one_device_keep_their_ids() -> None:
    """Old rows know nothing of sharing."""
    alone = replace(group("fm3"), kernels=("reference",), team=None)
    ids = {one.case(one.kernels[0], "forward").id for one in (alone, group("fm3"), group("ring"), group("fm3", ranks=3))}
    assert len(ids) == 4
    # As they were when a group had one strategy.
    assert group("fm3").case("reference/fm3", "forward").sharing == Sharing(2, "fm3", "gloo")
    assert "CP=2" in group("fm3").title and "CP" not in alone.title


def test_the_source_of_a_shared_case_is_the_runtime_too() -> None:
    shared = group("fm3")
    names = {path.as_posix() for path in backend_of("reference/fm3", shared).sources_of("forward")}
    assert any(name.endswith("/context_parallel") for name in names)
    assert backend_of("reference/fm3", shared).source_hash("cpu", "forward") != BACKENDS["reference"].source_hash(
        "cpu", "forward"
    )


def test_a_sample_is_the_longest_of_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch.distributed as dist

    def gather(samples: list[torch.Tensor], mine: torch.Tensor) -> None:
        for rank, sample in enumerate(samples):
            sample.copy_(mine * (rank + 1))

    monkeypatch.setattr(dist, "barrier", lambda: None)
    monkeypatch.setattr(dist, "get_world_size", lambda: 3)
    monkeypatch.setattr(dist, "all_gather", gather)
    monkeypatch.setattr("harness.timing.Timer.measure", lambda self, call, count: [2.0])
    timer = TeamTimer("cpu", QUICK, dist.HashStore(), lambda **event: None)
    assert timer.by_rank(lambda: None) == [2.0, 4.0, 6.0]
    assert timer.measure(lambda: None, 4) == [6.0] * 4


def test_a_round_takes_all_parts_once_an_iteration() -> None:
    """The medians of each rank, and the longest rank of every iteration."""
    said: list[str] = []

    class Fake:
        def samples_for(self, seconds: float) -> int:
            return 3

        def once(self, call: Call) -> float:
            return max(self.by_rank(call))

        def by_rank(self, call: Call) -> list[float]:
            name = str(call())
            said.append(name)
            return [float(len(said)), float(len(said) + (10 if name == "comp" else 0))]

    parts = {"comp": lambda: "comp", "bare": lambda: "bare"}
    found = turn_about(Fake(), lambda: "full", parts)
    assert said == ["full", "comp", "bare"] * 4
    assert found["samples_ms"] == [4.0, 7.0, 10.0] and found["comp_samples_ms"] == [15.0, 18.0, 21.0]
    assert found["bare_samples_ms"] == [6.0, 9.0, 12.0]
    assert found["ranks"] == {"full_ms": [7.0, 7.0], "comp_ms": [8.0, 18.0]}
