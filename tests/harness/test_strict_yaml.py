"""The one reader of YAML: what it refuses, and that every file of the project's own forms goes through it."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from harness.compare import settings
from harness.compare.settings import SettingsError
from harness.provenance import ROOT
from harness.simulate import rates
from harness.simulate.cluster import find_cluster
from harness.simulate.rates import Rates
from harness.simulate.reading import ClusterError
from harness.strict_yaml import YamlError, load

CONF = ROOT / "conf"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 1\n", "line 3: a is there twice, first in line 1"),
        ("a:\n  - b: {c: 1, d: 2, c: 3}\n", "line 2: c is there twice, first in line 2"),
        ("1: a\n1.0: b\n", "line 2: 1.0 is there twice"),
        ("? [a]\n: b\n", "line 1: .'a'. cannot be a key"),
        ("a: [1\n", r"not YAML \(line 2: "),
        ("a: !!python/object/apply:os.getcwd []\n", r"not YAML \(line 1: could not determine a constructor"),
        ("a: 1\n---\nb: 2\n", "not YAML .*expected a single document|not YAML .*but found another document"),
        ("a: 2027-02-30\n", "not YAML that can be read"),
        ("a: \x00\n", "not YAML"),
    ],
)
def test_what_is_not_strict_is_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "file.yaml").write_text(text)
    with pytest.raises(YamlError, match=f"^file.yaml: {message}"):
        load(tmp_path / "file.yaml")


def test_what_is_strict_is_read(tmp_path: Path) -> None:
    (tmp_path / "file.yaml").write_text("a: {b: [1, 2]}\nc: {b: x}\n")
    assert load(tmp_path / "file.yaml") == {"a": {"b": [1, 2]}, "c": {"b": "x"}}
    (tmp_path / "empty.yaml").write_text("")
    assert load(tmp_path / "empty.yaml") is None
    with pytest.raises(YamlError, match=r"none.yaml: cannot be read \(No such file"):
        load(tmp_path / "none.yaml")


@pytest.mark.parametrize("path", sorted(CONF.rglob("*.yaml")), ids=lambda path: path.name)
def test_every_file_of_the_project_is_strict(path: Path) -> None:
    assert load(path)


def doubled(source: Path, target: Path, line: str) -> Path:
    """A copy of a file with one of its lines a second time, right below."""
    text = source.read_text()
    assert text.count(f"{line}\n") == 1, line
    target.write_text(text.replace(f"{line}\n", f"{line}\n{line}\n"))
    return target


def test_doubled_keys_are_refused_in_clusters_and_alarms(tmp_path: Path) -> None:
    mine = doubled(CONF / "cluster" / "h200_8.yaml", tmp_path / "mine.yaml", "gpus_per_node: 8")
    with pytest.raises(ClusterError, match="mine.yaml: line .*: gpus_per_node is there twice"):
        find_cluster(str(mine))
    alarms = tmp_path / "alarms.yaml"
    alarms.write_text("acknowledged:\n  - {kernel: fm3, reason: x, until: 2027-03-01, reason: y}\n")
    with pytest.raises(SettingsError, match="alarms.yaml: line 2: reason is there twice"):
        settings.load(alarms)


def test_doubled_keys_are_refused_in_rates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(CONF / "cluster", tmp_path / "cluster")
    fitted = tmp_path / "cluster" / "rates" / "nvidia-h200.yaml"
    doubled(CONF / "cluster" / "rates" / "nvidia-h200.yaml", fitted, "gpu: NVIDIA H200")
    monkeypatch.setattr(rates, "FOLDER", tmp_path / "cluster")
    with pytest.raises(ClusterError, match="nvidia-h200.yaml: line .*: gpu is there twice"):
        Rates.of("nvidia-h200")


def test_nothing_else_reads_yaml() -> None:
    """Of those that import the package, ``fit`` writes rates and ``compose`` names an error of Hydra's."""
    found = {
        path.relative_to(ROOT / "harness").as_posix()
        for path in (ROOT / "harness").rglob("*.py")
        if re.search(r"^(import yaml|from yaml import)", path.read_text(), re.MULTILINE)
    }
    assert found == {"strict_yaml.py", "simulate/fit.py", "config/compose.py"}
    assert not any("yaml.load" in (ROOT / "harness" / name).read_text() for name in found - {"strict_yaml.py"})
