"""Which folder of rows a command reads: the one that is named, else where ``python -m harness`` puts its own.

Only the question; rows are read in ``plots.cells``. Commands about the committed rows alone do not ask it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

RESULTS_DIR = "results/local"
"""Where rows are recorded and read from when nothing else is said, below the current folder."""


def add_results_dir(parser: argparse.ArgumentParser, name: str = "results_dir") -> None:
    """The argument that names the folder, as every command that reads rows has it; :class:`pathlib.Path` under ``name``."""
    told = f"folder with rows (default: {RESULTS_DIR}, where python -m harness and make reproduce put them; committed: results)"
    parser.add_argument(name, type=Path, nargs="?", default=Path(RESULTS_DIR), help=told)


def no_rows(folder: object) -> str:
    """What a command says of a folder without rows."""
    return f"no rows below {folder}: measure first (python -m harness ...); rows lie in a folder called rows"
