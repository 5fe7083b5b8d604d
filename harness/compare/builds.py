"""The kernels of another commit or checkout in a folder of their own, timed by this tree's harness.

Only what computes is taken from there (``KERNELS``); what measures is copied from here, so that both builds are timed by the
same code. Kernels that are called in another way than this harness calls them fail on their first turn.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from harness.compare.reading import SideError, commit_of, extract
from harness.provenance import ROOT, hash_files

KERNELS = ("csrc", "fm3_kernel", "masks", "context_parallel")
"""Rooms that decide what the kernels do: taken from the commit or checkout."""
MEASURING = ("harness", "plots", "conf")
"""Rooms that time and record: taken from this tree."""


def tree_of(said: str, below: Path, root: Path = ROOT) -> tuple[Path, str]:
    """The folder with the other kernels, made anew below ``below``, and what they are called.

    Compiled kernels stay in its ``build`` folder from one time to the next.

    Args:
        said: a folder if there is one of that name, a checkout with changes of its own for instance; else a git ref.

    Raises:
        SideError: not a git checkout, no such ref, a commit or folder without these rooms, a folder that cannot be written.
    """
    folder = Path(said)
    sha = None if folder.is_dir() else commit_of(said, root)
    if sha is None:
        missing = [room for room in KERNELS if not (folder / room).is_dir()]
        if missing:
            raise SideError(f"{said} has no folder {', '.join(missing)}; allowed: a checkout, or a git ref")
    key = sha or hash_files((folder / room for room in KERNELS), root=folder)
    place = below / key[:12]
    try:
        for room in (*KERNELS, *MEASURING):
            shutil.rmtree(place / room, ignore_errors=True)
        place.mkdir(parents=True, exist_ok=True)
        if sha is None:
            _copy(folder, KERNELS, place)
        else:
            extract(root, sha, KERNELS, place)
        _copy(root, MEASURING, place)
        provenance = place / "build" / "provenance.json"
        provenance.parent.mkdir(exist_ok=True)
        # Rows of it say that it is this commit and something else: the harness may be a newer one.
        provenance.write_text(json.dumps({"git_sha": sha, "git_dirty": True, "tree_hash": None}) + "\n")
    except OSError as error:
        raise SideError(f"cannot put the kernels of {said} into {place}: {error.strerror or error}") from error
    return place, key[:10] if sha else f"{folder.resolve().name} ({key[:10]})"


def _copy(source: Path, rooms: tuple[str, ...], place: Path) -> None:
    for room in rooms:
        shutil.copytree(source / room, place / room, ignore=shutil.ignore_patterns("__pycache__"))
