"""Whatever a competitor, the machine or the user does to a run: every recorded row survives, every case has a status."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import fake_backends
import pytest
from fake_problem import group, options

from harness.backends import BACKENDS
from harness.cases import Group
from harness.rows import read_rows
from harness.runner import EXIT_BAD_DATA, EXIT_FAILED, EXIT_OK, EXIT_USAGE, run

TESTS = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def fakes() -> Iterator[None]:
    before = dict(BACKENDS)
    fake_backends.install()
    yield
    BACKENDS.clear()
    BACKENDS.update(before)


def statuses(results: Path) -> dict[tuple[str, str], set[str]]:
    found: dict[tuple[str, str], set[str]] = {}
    for row in read_rows(results):
        found.setdefault((row["kernel"], row["pass"]), set()).add(row["status"])
    return found


def keys(results: Path) -> Counter[tuple[str, str, int]]:
    return Counter((row["kernel"], row["pass"], row["round"]) for row in read_rows(results))


def test_a_row_does_not_say_where_on_the_machine_it_was_put(tmp_path: Path) -> None:
    typed = ("mask=full", f"results_dir={tmp_path}", "results_dir=near")
    assert run([group(("good",), rounds=1)], replace(options(tmp_path), overrides=typed)) == EXIT_OK
    assert {tuple(row["overrides"]) for row in read_rows(tmp_path)} == {("mask=full", "results_dir=near")}


def test_a_good_run_records_every_round_once_in_alternating_order(tmp_path: Path) -> None:
    assert run([group(("good", "other"), rounds=3)], options(tmp_path)) == EXIT_OK
    rows = read_rows(tmp_path)
    assert keys(tmp_path) == Counter(
        {(k, p, r): 1 for k in ("good", "other") for p in ("forward", "backward") for r in range(3)}
    )
    order = {(row["kernel"], row["round"]): row["order"] for row in rows}
    assert [order["good", r] for r in range(3)] == [0, 1, 0]
    assert {row["density"] for row in rows} == {(64 * 65 / 2) / 64**2}
    assert all(row["flops"] == (4 if row["pass"] == "forward" else 10) * 64**2 * 16 * row["density"] for row in rows)
    assert all(len(row["samples_ms"]) == 2 and row["errors"]["out_max"] <= 1 for row in rows)
    assert (tmp_path / "environments" / f"{rows[0]['environment']}.json").exists()


def test_every_fault_gets_its_status_and_the_rest_goes_on(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    kernels = ("wrong", "raises", "dies", "oom", "cannot", "missing", "good")
    assert run([group(kernels)], options(tmp_path)) == EXIT_FAILED
    found = statuses(tmp_path)
    for pass_ in ("forward", "backward"):
        assert found["wrong", pass_] == {"incorrect"}
        assert found["raises", pass_] == {"crash"}
        assert found["dies", pass_] == {"crash"}
        assert found["oom", pass_] == {"oom"}
        assert found["missing", pass_] == {"missing_backend"}
        assert found["good", pass_] == {"ok"}
    assert found["cannot", "forward"] == {"ok"} and found["cannot", "backward"] == {"unsupported"}
    rows = {row["kernel"]: row for row in read_rows(tmp_path) if row["status"] != "ok"}
    assert rows["raises"]["reason"] == "ValueError: no luck"
    assert "signal 6" in rows["dies"]["reason"] and "check" in rows["dies"]["reason"]
    assert "pip install it" in rows["missing"]["reason"]
    assert rows["wrong"]["errors"]["out_max"] > 1 and rows["wrong"]["samples_ms"] is None
    assert "not every case went well" in capfd.readouterr().err


def test_death_in_a_later_round_keeps_the_rounds_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_DIES_AT", "30")
    assert run([group(("good", "dies"), rounds=9)], options(tmp_path)) == EXIT_FAILED
    found = keys(tmp_path)
    assert all(found["good", "forward", r] == 1 for r in range(9))
    assert statuses(tmp_path)["dies", "forward"] == {"ok", "crash"}


def test_a_hang_ends_with_its_timeout(tmp_path: Path) -> None:
    began = time.monotonic()
    assert run([group(("hangs", "good"), timeout_s=20)], options(tmp_path)) == EXIT_FAILED
    assert statuses(tmp_path) == {
        ("hangs", "forward"): {"timeout"},
        ("hangs", "backward"): {"timeout"},
        ("good", "forward"): {"ok"},
        ("good", "backward"): {"ok"},
    }
    assert time.monotonic() - began < 90


def test_resume_repeats_nothing_and_retries_what_may_go_well_now(tmp_path: Path) -> None:
    assert run([group(("good", "oom", "wrong"))], options(tmp_path)) == EXIT_FAILED
    assert run([group(("good", "oom", "wrong", "other"))], options(tmp_path)) == EXIT_FAILED
    found = keys(tmp_path)
    assert found["good", "forward", 0] == found["other", "forward", 0] == found["wrong", "forward", 0] == 1
    assert found["oom", "forward", 0] == 2
    assert run([group(("good", "other"))], options(tmp_path)) == EXIT_OK
    assert keys(tmp_path) == found


def test_a_pass_that_fails_does_not_make_the_other_one_repeat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every process gets through a few backward calls: each run adds what is missing and repeats nothing."""
    monkeypatch.setenv("FAKE_DIES_AT", "12")
    codes = [run([group(("no_backward",), rounds=6)], options(tmp_path)) for _ in range(3)]
    assert codes == [EXIT_FAILED, EXIT_FAILED, EXIT_OK]
    good = Counter((row["pass"], row["round"]) for row in read_rows(tmp_path) if row["status"] == "ok")
    assert good == Counter({(pass_, number): 1 for pass_ in ("forward", "backward") for number in range(6)})
    failed = [(row["pass"], row["round"]) for row in read_rows(tmp_path) if row["status"] == "oom"]
    assert failed == [("backward", 2), ("backward", 4)], "a failure names the round it happened in"


def test_a_forward_pass_alone_is_the_same_case(tmp_path: Path) -> None:
    alone = replace(group(("good",), rounds=1), passes=("forward",))
    for asked in (alone, group(("good",), rounds=1)):
        assert run([asked], options(tmp_path)) == EXIT_OK
    assert keys(tmp_path) == Counter({("good", "forward", 0): 1, ("good", "backward", 0): 1})


def test_a_missing_competitor_is_told_once(tmp_path: Path) -> None:
    for _ in range(2):
        assert run([group(("missing",))], options(tmp_path)) == EXIT_FAILED
    assert keys(tmp_path) == Counter({("missing", "forward", 0): 1, ("missing", "backward", 0): 1})


def test_deterministic_is_asked_of_every_competitor(tmp_path: Path) -> None:
    """An operator without a deterministic form makes the case unsupported, not wrong and not a crash."""
    wanted = replace(group(("good", "histogram"), rounds=1), deterministic=True, passes=("forward",))
    assert run([wanted], options(tmp_path)) == EXIT_OK
    assert statuses(tmp_path) == {("good", "forward"): {"ok"}, ("histogram", "forward"): {"unsupported"}}


def test_more_rounds_add_to_those_recorded(tmp_path: Path) -> None:
    run([group(("good",), rounds=1)], options(tmp_path))
    run([group(("good",), rounds=3)], options(tmp_path))
    assert keys(tmp_path) == Counter({("good", p, r): 1 for p in ("forward", "backward") for r in range(3)})


def test_new_sources_make_old_rows_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run([group(("good",), rounds=1)], options(tmp_path))
    monkeypatch.setattr(type(BACKENDS["good"]), "source_hash", lambda self, device, pass_: "another")
    run([group(("good",), rounds=1)], options(tmp_path))
    assert keys(tmp_path)["good", "forward", 0] == 2


def fake_run(results: Path, kernels: str = "good,other", rounds: int = 6, pause: str = "0.03") -> subprocess.Popen[bytes]:
    env = os.environ | {"FAKE_PAUSE": pause, "PYTHONPATH": f"{TESTS.parent}{os.pathsep}{TESTS}"}
    command = [sys.executable, str(TESTS / "fake_run.py"), str(results), kernels, str(rounds)]
    return subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL)


def wait_for_rows(results: Path, count: int) -> None:
    deadline = time.monotonic() + 60
    while len(read_rows(results)) < count:
        assert time.monotonic() < deadline, "no rows appeared"
        time.sleep(0.05)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_run_loses_nothing_and_goes_on(tmp_path: Path, how: signal.Signals) -> None:
    process = fake_run(tmp_path)
    wait_for_rows(tmp_path, 5)
    process.send_signal(how)
    process.wait(timeout=30)
    kept = [row for row in read_rows(tmp_path) if row["status"] == "ok"]
    assert 4 <= len(kept) < 24
    assert fake_run(tmp_path).wait(timeout=100) == 0
    done = [row for row in read_rows(tmp_path) if row["status"] == "ok"]
    assert done[: len(kept)] == kept
    counted = Counter((row["kernel"], row["pass"], row["round"]) for row in done)
    assert len(counted) == 24 and set(counted.values()) == {1}


def test_the_worker_dies_with_its_parent(tmp_path: Path) -> None:
    process = fake_run(tmp_path, "good", 500)
    wait_for_rows(tmp_path, 2)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert children
    process.kill()
    process.wait()
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{child}/stat").exists() for child in children):
        assert time.monotonic() < deadline, "the worker outlived its parent"
        time.sleep(0.05)


def test_two_runs_at_once_into_one_folder_both_survive(tmp_path: Path) -> None:
    both = [fake_run(tmp_path, "good", 3), fake_run(tmp_path, "other", 3)]
    assert [process.wait(timeout=100) for process in both] == [0, 0]
    assert len(list((tmp_path / "rows").iterdir())) == 2
    assert len(read_rows(tmp_path)) == 12


def test_a_half_written_last_line_is_left_out(tmp_path: Path) -> None:
    run([group(("good",), rounds=1)], options(tmp_path))
    path = next((tmp_path / "rows").iterdir())
    with path.open("a") as stream:
        stream.write('{"schema_version": 1, "case')
    assert len(read_rows(tmp_path)) == 2


def test_a_damaged_row_stops_the_run_before_anything_starts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run([group(("good",), rounds=1)], options(tmp_path))
    path = next((tmp_path / "rows").iterdir())
    path.write_text("not json\n" + path.read_text())
    assert run([group(("good",))], options(tmp_path)) == EXIT_BAD_DATA
    assert f"{path.name}:1: not JSON" in capsys.readouterr().err


def test_a_results_folder_that_is_a_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "taken").write_text("")
    assert run([group(("good",))], options(tmp_path / "taken")) == EXIT_USAGE
    assert "part of the path is a file" in capsys.readouterr().err


def test_dry_run_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([group(("good", "other"))], options(tmp_path / "new", dry_run=True)) == EXIT_OK
    assert "4 of 4 rounds" in capsys.readouterr().out
    assert not (tmp_path / "new").exists()


def test_a_figure_above_the_peak_is_refused(tmp_path: Path) -> None:
    assert run([group(("good",), rounds=1)], options(tmp_path, peak_tflops=1e-9)) == EXIT_FAILED
    rows = read_rows(tmp_path)
    assert {row["status"] for row in rows} == {"incorrect"}
    assert "above this machine's peak" in rows[0]["reason"]


def test_a_group_survives_json() -> None:
    original = group(("good",), rounds=7)
    assert Group.from_json(original.to_json()) == original
