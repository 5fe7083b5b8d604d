"""What is installed is all of it: the kernels' sources, the configuration, published figures, not only the Python."""

from __future__ import annotations

import tomllib
from fnmatch import fnmatch
from pathlib import Path

from harness.provenance import ROOT


def test_every_file_beside_the_python_is_packaged() -> None:
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    folders, patterns = setuptools["packages"]["find"]["include"], setuptools["package-data"]["*"]
    files = [path for name in ("csrc", "conf", "results/published") for path in (ROOT / name).rglob("*") if path.is_file()]
    assert len(files) > 100
    left = [path.relative_to(ROOT) for path in files if not _packaged(path.relative_to(ROOT), folders, patterns)]
    assert not left


def _packaged(path: Path, folders: list[str], patterns: list[str]) -> bool:
    package = ".".join(path.parent.parts)
    return any(fnmatch(package, folder) for folder in folders) and any(fnmatch(path.name, one) for one in patterns)
