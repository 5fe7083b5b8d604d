"""Where the rows of a side come from: a results folder, or the results that a git ref has committed.

A ref's rows are read out of git (``git archive``); nothing is checked out. What a reader must know of the rows themselves
(half a line at the end, rows stored twice, dates to come) is kept as notes. Judges nothing.
"""

from __future__ import annotations

import gc
import io
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path

from harness.provenance import ROOT
from harness.rows import Row
from masks.spelling import allowed_names
from plots.cells import load_rows, time_of, unique

RESULTS = "results"


class SideError(ValueError):
    """A side of a comparison that cannot be found; the message says what was looked for and where."""


@dataclass(frozen=True)
class Recording:
    """Rows and where they are from. ``notes``: one line each."""

    label: str
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()

    @cached_property
    def newest(self) -> datetime | None:
        """When the newest row was recorded."""
        return max(map(time_of, self.rows), default=None)


def from_folder(folder: Path, label: str | None = None, name: str | None = None) -> Recording:
    """The rows below a folder (without its ``local`` subfolder, which is the user's own).

    Args:
        folder: where they lie.
        label: what a comparison calls the side; the folder where it is not given.
        name: what errors call the folder, where its path would say nothing.

    Raises:
        SideError: no such folder. RowError: a file that is not made of rows of a schema that is known here, or rows of one
            round that say different things.
    """
    if not folder.is_dir():
        raise SideError(f"no folder {folder}")
    cut: list[str] = []
    return recording(label or str(folder), load_rows(folder, cut.append, name), cut)


@contextmanager
def collector_at_rest() -> Iterator[None]:
    """Rows have no cycles, and the collector would look through all of them again and again: a third of the whole time."""
    worked = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if worked:
            gc.enable()


def recording(label: str, rows: Sequence[Row], cut: Sequence[str] = (), now: datetime | None = None) -> Recording:
    """Rows, each once, with what is to be said of them. ``cut``: files that end in half a line.

    Raises:
        RowError: rows of one round that say different things, or a time that is not ISO 8601.
    """
    notes = [f"{label}: {name} ends in half a line, which was left out" for name in cut]
    measured = [row for row in rows if row["source"] == "measured"]
    if len(measured) < len(rows):
        notes.append(f"{label}: {len(rows) - len(measured)} simulated rows were left out: nothing of them was measured")
    rows = unique(measured)
    twice = len(measured) - len(rows)
    if twice:
        notes.append(f"{label}: {twice} rows are stored twice and count once")
    late = (now or datetime.now(UTC)) + timedelta(days=1)
    ahead = sum(time_of(row) > late for row in rows)
    if ahead:
        notes.append(f"{label}: {ahead} rows are dated in the future: a clock is wrong, and the newest code is told by time")
    return Recording(label, tuple(rows), tuple(notes))


def from_ref(ref: str, root: Path = ROOT, folder: str = RESULTS) -> Recording:
    """The rows that a commit has below ``folder``.

    Raises:
        SideError: not a git checkout, no such ref, no results in it. RowError: as :func:`from_folder`.
    """
    sha = commit_of(ref, root)
    label = f"{ref} ({sha[:10]})" if not sha.startswith(ref) else sha[:10]
    if not _git(root, "ls-tree", "--name-only", sha, "--", folder).strip():
        raise SideError(f"{label} has no folder {folder}: no baseline there")
    with tempfile.TemporaryDirectory() as place:
        extract(root, sha, [folder], Path(place))
        return from_folder(Path(place) / folder, label, f"{ref}:{folder}")


def extract(root: Path, sha: str, folders: Sequence[str], place: Path) -> None:
    """Write folders of a commit below ``place``.

    Raises:
        SideError: git cannot read them.
    """
    archive = _git(root, "archive", "--format=tar", sha, "--", *folders)
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(place, filter="data")


def commit_of(ref: str, root: Path = ROOT) -> str:
    """The full hash of a ref's commit.

    Raises:
        SideError: not a git checkout, or no such ref; the nearest branch or tag is named.
    """
    try:
        found = _git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}")
    except SideError as error:
        if "not a git" in str(error):
            raise
        names = ["HEAD", *_git(root, "for-each-ref", "--format=%(refname:short)").decode().split()]
        raise SideError(f"{ref!r} is neither a folder nor a commit; branches and tags: {allowed_names(ref, names)}") from error
    return found.decode().strip()


def side(said: str, root: Path = ROOT) -> Recording:
    """What a person means by ``--against``: a folder if there is one of that name, else a git ref.

    Raises:
        SideError, RowError: see :func:`from_folder` and :func:`from_ref`.
    """
    path = Path(said)
    return from_folder(path) if path.is_dir() else from_ref(said, root)


def _git(root: Path, *arguments: str) -> bytes:
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, timeout=120)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SideError(f"git cannot be asked: {error}") from error
    if done.returncode:
        said = " ".join(done.stderr.decode(errors="replace").split())
        raise SideError(f"git {arguments[0]}: {said or 'failed'}")
    return done.stdout
