"""The store's promises: checked rows, whole or not at all, clear words when the disk says no."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
from row_factory import make_row

from harness.rows import RowError, read_file, read_rows
from harness.store import Store, StoreError, new_run_id


def test_rows_come_back_as_they_went_in(tmp_path: Path) -> None:
    rows = [make_row(round=n) for n in range(3)]
    store = Store(tmp_path, "run")
    store.append(rows[:2])
    store.append(rows[2:])
    store.close()
    assert read_rows(tmp_path) == rows


def test_a_bad_row_is_never_written(tmp_path: Path) -> None:
    store = Store(tmp_path, "run")
    bad = make_row() | {"samples_ms": [0.0]}
    with pytest.raises(RowError, match="samples_ms"):
        store.append([make_row(), bad])
    store.close()
    assert not store.path.exists()


def test_a_full_disk_keeps_what_was_there_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path, "run")
    store.append([make_row(round=0)])
    real = os.write
    budget = [50]

    def almost_full(file: int, data: bytes) -> int:
        if budget[0] == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        part = data[: budget[0]]
        budget[0] -= len(part)
        return real(file, part)

    monkeypatch.setattr(os, "write", almost_full)
    with pytest.raises(StoreError, match="the disk is full"):
        store.append([make_row(round=1)])
    monkeypatch.setattr(os, "write", real)
    store.append([make_row(round=2)])
    store.close()
    assert [row["round"] for row in read_file(store.path)] == [0, 2]


def test_a_read_only_folder_is_refused_before_anything_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: object, flags: int, mode: int = 0o777) -> int:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(StoreError, match=r"results_dir=.*read-only"):
        Store(tmp_path, "run")


def test_environment_is_written_once_under_its_hash(tmp_path: Path) -> None:
    store = Store(tmp_path, "run")
    first = store.write_environment({"torch": "1", "gpu": "x"})
    second = store.write_environment({"gpu": "x", "torch": "1"})
    store.close()
    assert first == second
    assert json.loads((tmp_path / "environments" / f"{first}.json").read_text()) == {"torch": "1", "gpu": "x"}
    assert len(list((tmp_path / "environments").iterdir())) == 1


def test_run_ids_do_not_collide() -> None:
    assert len({new_run_id() for _ in range(200)}) == 200
