"""The kernels of another commit in a folder of their own, timed by this tree's harness.

Only what computes is taken from the commit (``KERNELS``); what measures is copied from here, so that both builds are timed by
the same code. A commit whose kernels are called in another way than this harness calls them fails on its first turn.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from harness.compare.reading import SideError, commit_of, extract
from harness.provenance import ROOT

KERNELS = ("csrc", "fm3_kernel", "masks", "context_parallel")
"""Rooms that decide what the kernels do: taken from the commit."""
MEASURING = ("harness", "plots", "conf")
"""Rooms that time and record: taken from this tree."""


def tree_of(ref: str, below: Path, root: Path = ROOT) -> tuple[Path, str]:
    """The folder with the commit's kernels, made anew below ``below``, and the commit's hash.

    Compiled kernels stay in its ``build`` folder from one time to the next.

    Raises:
        SideError: not a git checkout, no such ref, a commit without these rooms, a folder that cannot be written.
    """
    sha = commit_of(ref, root)
    place = below / sha[:12]
    try:
        for room in (*KERNELS, *MEASURING):
            shutil.rmtree(place / room, ignore_errors=True)
        place.mkdir(parents=True, exist_ok=True)
        extract(root, sha, KERNELS, place)
        for room in MEASURING:
            shutil.copytree(root / room, place / room, ignore=shutil.ignore_patterns("__pycache__"))
        provenance = place / "build" / "provenance.json"
        provenance.parent.mkdir(exist_ok=True)
        # Rows of it say that it is this commit and something else: the harness may be a newer one.
        provenance.write_text(json.dumps({"git_sha": sha, "git_dirty": True, "tree_hash": None}) + "\n")
    except OSError as error:
        raise SideError(f"cannot put the kernels of {ref} into {place}: {error.strerror or error}") from error
    return place, sha
