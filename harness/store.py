"""The store: rows appended to a file of the run's own, on the disk before the next one is measured.

Every run writes ``<results_dir>/rows/<run id>.jsonl``, so two runs into one folder never touch each other's file. A
write that fails half way is cut off again, and what was recorded before stays readable.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.cases import stable_hash
from harness.rows import Row, check_row


class StoreError(RuntimeError):
    """The results folder cannot take rows: says which folder and why."""


def new_run_id() -> str:
    """A run id that sorts by time and does not collide: UTC time, process, random digits."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{os.getpid()}-{secrets.token_hex(3)}"


class Store:
    """Append-only rows of one run below ``results_dir``.

    Raises:
        StoreError: on creation or on any append, when the folder is read-only, full or not a folder.
    """

    def __init__(self, results_dir: Path, run_id: str) -> None:
        self.results_dir = results_dir
        self.run_id = run_id
        self.path = results_dir / "rows" / f"{run_id}.jsonl"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise self._refusal(error) from error

    def _refusal(self, error: OSError) -> StoreError:
        hints = {
            errno.ENOSPC: "the disk is full",
            errno.EROFS: "the file system is read-only",
            errno.EACCES: "no permission to write there",
            errno.ENOTDIR: "part of the path is a file",
            errno.EEXIST: "part of the path is a file",
            errno.EDQUOT: "the disk quota is used up",
        }
        hint = hints.get(error.errno or 0, error.strerror or str(error))
        return StoreError(f"cannot write rows below results_dir={self.results_dir}: {hint}. Recorded rows are kept.")

    def append(self, rows: Iterable[Row]) -> None:
        """Check the rows and append them together: after this returns they survive a kill."""
        checked = [check_row(row) for row in rows]
        data = "".join(json.dumps(row, sort_keys=True, allow_nan=False) + "\n" for row in checked).encode()
        size = os.fstat(self._file).st_size
        try:
            written = 0
            while written < len(data):
                written += os.write(self._file, data[written:])
            os.fsync(self._file)
        except OSError as error:
            with contextlib.suppress(OSError):  # the reader leaves out a last line that has no end
                os.ftruncate(self._file, size)
            raise self._refusal(error) from error

    def write_environment(self, record: dict[str, Any]) -> str:
        """Keep the environment record once, under its hash; returns the hash."""
        digest = stable_hash(record)
        path = self.results_dir / "environments" / f"{digest}.json"
        if path.exists():
            return digest
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = path.with_name(f".{path.name}.{self.run_id}")
            temporary.write_text(json.dumps(record, indent=2, sort_keys=True) + "\n")
            temporary.replace(path)
        except OSError as error:
            raise self._refusal(error) from error
        return digest

    def close(self) -> None:
        """Close the file; a run that recorded nothing leaves no file behind."""
        empty = os.fstat(self._file).st_size == 0
        os.close(self._file)
        if empty:
            self.path.unlink(missing_ok=True)
