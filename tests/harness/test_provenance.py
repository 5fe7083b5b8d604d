"""Identity of code and machine."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from harness import device, provenance
from harness.backends import BACKENDS
from harness.device import ClockSampler


def test_the_hash_follows_content_and_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.py").write_text("1")
    first = provenance.hash_files([tmp_path / "a"])
    (tmp_path / "a" / "note.txt").write_text("not source")
    assert provenance.hash_files([tmp_path / "a"]) == first
    (tmp_path / "a" / "x.py").write_text("2")
    second = provenance.hash_files([tmp_path / "a"])
    (tmp_path / "a" / "x.py").rename(tmp_path / "a" / "y.py")
    assert len({first, second, provenance.hash_files([tmp_path / "a"])}) == 3
    assert provenance.hash_files([tmp_path / "a"], "salt") != provenance.hash_files([tmp_path / "a"])


def test_a_copy_without_git_knows_its_commit_while_its_code_is_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    monkeypatch.setattr(provenance, "_COPIED", tmp_path / "provenance.json")
    (tmp_path / "masks").mkdir()
    (tmp_path / "masks" / "x.py").write_text("1")

    def state() -> tuple[str | None, bool | None]:
        provenance.git_state.cache_clear()
        provenance.tree_hash.cache_clear()
        return provenance.git_state()

    assert state() == (None, None)
    record = {"git_sha": "abc", "git_dirty": False, "tree_hash": provenance.tree_hash()}
    (tmp_path / "provenance.json").write_text(json.dumps(record))
    assert state() == ("abc", False)
    # On top of an older checkout, which sees changes; then on a clean one.
    answers = {"rev-parse": "old", "status": " M masks/x.py"}
    monkeypatch.setattr(provenance, "_git", lambda *arguments: answers[arguments[0]])
    assert state() == ("abc", False)
    answers["status"] = ""
    assert state() == ("old", False)
    (tmp_path / "masks" / "x.py").write_text("2")
    answers["status"] = " M masks/x.py"
    assert state() == ("old", True)

    def hangs(*arguments: str) -> str:
        raise subprocess.TimeoutExpired("git", 30)

    monkeypatch.setattr(provenance, "_git", hangs)
    assert state() == ("abc", True)
    monkeypatch.undo()
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    monkeypatch.setattr(provenance, "_COPIED", tmp_path / "provenance.json")
    assert state() == ("abc", True)
    provenance.git_state.cache_clear()
    provenance.tree_hash.cache_clear()


def test_where_no_commit_is_known_none_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in an installed copy. With a commit, a place that cannot be written is said in one line too."""
    copied = tmp_path / "build" / "provenance.json"
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    monkeypatch.setattr(provenance, "_COPIED", copied)
    monkeypatch.setattr(provenance, "git_state", lambda: (None, None))
    assert provenance.main([]) == 2
    assert capsys.readouterr().err.startswith(f"provenance: no commit is known of {tmp_path}: ")
    assert not copied.parent.exists()
    monkeypatch.setattr(provenance, "git_state", lambda: ("abc", False))
    copied.parent.write_text("a file in the folder's place")
    assert provenance.main([]) == 2
    assert capsys.readouterr().err.startswith(f"provenance: cannot write {copied}: ")
    copied.parent.unlink()
    assert provenance.main([]) == 0
    assert json.loads(copied.read_text())["git_sha"] == "abc"


def test_environment_holds_no_names_of_machines_or_people() -> None:
    record = provenance.environment("cpu")
    assert {"torch", "python", "os", "cpu", "cores", "variables"} <= set(record)
    text = json.dumps(record)
    import getpass
    import socket

    for name in (socket.gethostname(), getpass.getuser()):
        assert name not in text.split('"')


def test_every_competitor_has_a_hash_of_its_own() -> None:
    hashes = {name: backend.source_hash("cpu", "forward") for name, backend in BACKENDS.items()}
    assert len(set(hashes.values())) == len(hashes)


def test_a_cpu_tells_how_busy_others_keep_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """4 s of busy cores, of which this process used 1.5, in 2 s: others kept 1.25 cores busy."""
    readings = iter([(100.0, 10.0), (104.0, 11.5)])
    moments = iter([50.0, 52.0])
    monkeypatch.setattr(device, "_processor_seconds", lambda: next(readings))
    monkeypatch.setattr(device.time, "monotonic", lambda: next(moments))
    with ClockSampler("cpu") as clocks:
        pass
    assert clocks.summary == {"other_busy_cores": 1.25}


def test_a_cpu_that_does_not_tell_has_no_summary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_processor_seconds", lambda: None)
    with ClockSampler("cpu") as clocks:
        pass
    assert clocks.summary is None


@pytest.mark.gpu
def test_a_gpu_reports_clocks_power_and_temperature() -> None:
    with ClockSampler("cuda") as clocks:
        pass
    assert clocks.summary is not None
    assert clocks.summary["sm_mhz"][0] > 0 and clocks.summary["power_w"][0] > 0 and clocks.summary["temp_c"][0] > 0


def test_a_pass_of_fm3_keeps_its_rows_when_the_other_one_changes() -> None:
    names = {pass_: {path.name for path in BACKENDS["fm3"].sources_of(pass_)} for pass_ in ("forward", "backward", "both")}
    assert {"prepare.cu", "forward_d64.cu", "multiply_role.cuh", "hopper_forward.py"} <= names["forward"]
    assert {"prepare.cu", "backward_d64.cu", "backward_multiply.cuh", "hopper_backward.py"} <= names["backward"]
    assert not {"backward_d64.cu", "backward_multiply.cuh", "hopper_backward.py"} & names["forward"]
    assert not {"forward_d64.cu", "multiply_role.cuh", "hopper_forward.py"} & names["backward"]
    assert names["both"] == names["forward"] | names["backward"]
