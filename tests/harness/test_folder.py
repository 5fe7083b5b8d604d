"""Every command that reads rows means the same folder when none is named: the one that rows are recorded into."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from row_factory import make_rounds, write_rows

import harness.claims.__main__ as claims
import harness.compare.__main__ as compare
import harness.report.__main__ as report
import plots.__main__ as draw
from harness import summary
from harness.config import RunConfig
from harness.config.compose import load
from plots.folder import RESULTS_DIR

COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "plots": draw.main,
    "claims": claims.main,
    "report": report.main,
    "summary": summary.main,
    "compare": compare.main,
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_without_a_folder_a_users_own_rows_are_read(name: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is there; then no rows; then rows. The committed ones, which lie above, are never taken for them."""
    write_rows(here / "results", make_rounds(1.0, gpu="Committed GPU"))
    for there, said in ((False, f"no folder {RESULTS_DIR}"), (True, f"no rows below {RESULTS_DIR}: measure first")):
        if there:
            (here / RESULTS_DIR).mkdir()
        assert COMMANDS[name]([]) == 2
        assert capsys.readouterr().err.startswith(f"{name}: {said}")
    write_rows(here / RESULTS_DIR, make_rounds(1.0, gpu="My GPU"))
    # No committed rows of this GPU are there to be compared with: exit code 3.
    assert COMMANDS[name]([]) == (3 if name == "compare" else 0)
    assert not (here / "results" / "summary.csv").exists()


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_the_help_says_so(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        COMMANDS[name](["--help"])
    assert re.search(rf"folder with rows \(default: {RESULTS_DIR},", " ".join(capsys.readouterr().out.split()))


def test_rows_are_recorded_there() -> None:
    assert load([]).results_dir == RunConfig.__dataclass_fields__["results_dir"].default == RESULTS_DIR
