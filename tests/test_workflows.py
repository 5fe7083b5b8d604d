"""The workflow file: it parses, what it calls exists, and a fork's code never reaches a self-hosted runner."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
FILES = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
MAKEFILE = (ROOT / "Makefile").read_text()


def jobs(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(path.read_text())["jobs"]
    return found


def commands(path: Path) -> list[str]:
    return [step["run"] for job in jobs(path).values() for step in job["steps"] if "run" in step]


def test_there_is_one() -> None:
    assert FILES


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_step_is_a_make_target_that_exists_with_variables_that_exist(path: Path) -> None:
    for command in commands(path):
        words = re.sub(r'"[^"]*"', "", command).split()
        assert words[0] == "make", command
        assert re.search(rf"^{words[1]}:", MAKEFILE, re.M), words[1]
        for name in re.findall(r"\b([A-Z]+)=", command):
            assert re.search(rf"^{name} +\?=", MAKEFILE, re.M), name


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_flags_of_the_comparison_exist(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from harness.compare.__main__ import main

    with pytest.raises(SystemExit):
        main(["--help"])
    known = capsys.readouterr().out
    flags = [flag for command in commands(path) for flag in re.findall(r"(--[a-z]+)", command)]
    assert flags
    assert not [flag for flag in flags if flag not in known]


def test_modules_that_make_runs_exist() -> None:
    for module in re.findall(r"\$\(PY\) -m ([\w.]+)", MAKEFILE):
        assert importlib.util.find_spec(module) is not None, module


def test_targets_of_the_makefile_are_declared() -> None:
    phony = re.search(r"^\.PHONY: ((?:.*\\\n)*.*)$", MAKEFILE, re.M)
    assert phony is not None
    assert set(re.findall(r"^([a-z-]+):.*##", MAKEFILE, re.M)) == set(phony[1].replace("\\\n", " ").split())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_self_hosted_runners_are_asked_for_and_never_run_a_fork(path: Path) -> None:
    own = {name: job for name, job in jobs(path).items() if "self-hosted" in job["runs-on"]}
    assert own
    for job in own.values():
        assert "vars.GPU_RUNNER == 'true'" in job["if"]
        closed = "head.repo.full_name == github.repository" in job["if"] or "!= 'pull_request'" in job["if"].split("(")[0]
        assert closed
    assert yaml.safe_load(path.read_text())["permissions"] == {"contents": "read"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_job_ends_by_itself(path: Path) -> None:
    assert all(job.get("timeout-minutes") for job in jobs(path).values())
