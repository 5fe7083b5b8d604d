"""Ranks that share a sequence, measured: every strategy checked against the oracle, rows that say how it was shared."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.backends import BACKENDS, backend_of
from harness.cases import Group, MaskSpec, Problem, Sharing, Timing
from harness.rows import read_rows
from harness.runner import EXIT_FAILED, EXIT_OK, RunOptions, run
from harness.team import TeamTimer

QUICK = Timing(protocol="burst", l2="warm", rounds=2, min_samples=2, max_samples=2, target_s=0.01, heat_s=0, timeout_s=120)


def group(strategy: str, ranks: int = 2, **problem: int) -> Group:
    documents = ((100, 0, False), (28, 0, False), (300, 0, False))
    spec = MaskSpec("causal_document", "own", documents)
    sizes = {"seqlen": 428, "batch": 1, "heads": 4, "kv_heads": 2, "head_dim": 16} | problem
    shared = Sharing(ranks, strategy, "gloo")
    return Group(Problem(spec, dtype="float32", **sizes), ("reference",), ("forward", "backward"), "cpu", QUICK, False, shared)


def test_rows_of_ranks(tmp_path: Path) -> None:
    """Checked, timed, recorded by strategy; what is recorded is not measured again."""
    groups = [group("fm3"), group("ring", ranks=3)]
    assert run(groups, RunOptions(tmp_path)) == EXIT_OK
    rows = list(read_rows(tmp_path))
    assert [row["status"] for row in rows] == ["ok"] * 8
    assert {(row["cp_degree"], row["strategy"], row["exchange"]) for row in rows} == {(2, "fm3", "gloo"), (3, "ring", "gloo")}
    assert all(len(row["samples_ms"]) == 2 and min(row["samples_ms"]) > 0 for row in rows)
    assert all(max(row["errors"].values()) <= 1 and len(row["errors"]) > 8 for row in rows)
    assert len({row["case_id"] for row in rows}) == 4
    assert run(groups, RunOptions(tmp_path)) == EXIT_OK
    assert len(list(read_rows(tmp_path))) == 8


def test_a_rank_that_cannot_begin_is_a_crash_and_no_hang(tmp_path: Path) -> None:
    """A group that no process can carry: all ranks end, the row says so."""
    broken = replace(group("fm3"), sharing=Sharing(2, "fm3", "nccl"))
    assert run([broken], RunOptions(tmp_path)) == EXIT_FAILED
    rows = list(read_rows(tmp_path))
    assert {(row["status"], row["pass"]) for row in rows} == {("crash", "forward"), ("crash", "backward")}


def test_a_group_travels_as_json() -> None:
    for one in (group("fm3"), replace(group("fm3"), sharing=None)):
        assert Group.from_json(one.to_json()) == one


def test_cases_of_one_device_keep_their_ids() -> None:
    """Old rows know nothing of sharing."""
    alone = replace(group("fm3"), sharing=None)
    assert alone.case("reference", "forward").id != group("fm3").case("reference", "forward").id
    assert "sharing" not in alone.title and "CP=2 fm3" in group("fm3").title


def test_the_source_of_a_shared_case_is_the_runtime_too() -> None:
    shared = group("fm3")
    names = {path.as_posix() for path in backend_of("reference", shared).sources_of("forward")}
    assert any(name.endswith("/context_parallel") for name in names)
    assert backend_of("reference", shared).source_hash("cpu", "forward") != BACKENDS["reference"].source_hash("cpu", "forward")


def test_a_sample_is_the_longest_of_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch.distributed as dist

    def reduce(samples: object, op: object) -> None:
        samples *= 3  # type: ignore[operator]

    monkeypatch.setattr(dist, "barrier", lambda: None)
    monkeypatch.setattr(dist, "all_reduce", reduce)
    monkeypatch.setattr("harness.timing.Timer.measure", lambda self, call, count: [2.0])
    assert TeamTimer("cpu", QUICK).measure(lambda: None, 4) == [6.0] * 4
