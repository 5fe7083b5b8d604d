"""The readings of the experiments as CSV: one line a sample, with the machine that it was taken on."""

from __future__ import annotations

import csv
import gzip
import math
import zlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from pathlib import Path
from typing import IO


class ReadingError(ValueError):
    """A file that is not what ``python -m harness.method`` writes; names the file and the line."""


@dataclass(frozen=True)
class Reading:
    """One sample of one call under one setting of an experiment.

    repeat: readings of one repeat were taken close together, one setting after the other, and are compared with each other.
    ms: milliseconds. sm_mhz, power_w: medians over the readings taken together; None where the card does not tell.
    """

    experiment: str
    setting: str
    kernel: str
    pass_: str
    mask: str
    seqlen: int
    batch: int
    heads: int
    head_dim: int
    dtype: str
    repeat: int
    sample: int
    ms: float
    sm_mhz: float | None
    power_w: float | None

    @property
    def subject(self) -> tuple[str, str, str, int, int, int]:
        """What was called."""
        return (self.kernel, self.pass_, self.mask, self.seqlen, self.batch, self.heads)


@dataclass(frozen=True)
class Place:
    """Where and when readings were taken; ``gpu_hash`` tells two cards apart without naming one."""

    gpu: str
    gpu_hash: str | None
    power_limit: float | None
    software: str
    git_sha: str | None
    time: str


_READING = tuple(field.name for field in fields(Reading))
_PLACE = tuple(field.name for field in fields(Place))


class Book:
    """A file that readings are added to as they are taken: what a crash leaves is whole lines.

    Raises:
        FileExistsError: there is one of this name.
    """

    def __init__(self, path: Path, place: Place) -> None:
        self._place = asdict(place)
        self._file: IO[str] = path.open("x", encoding="utf-8", newline="")
        self._writer = csv.DictWriter(self._file, (*_PLACE, *_READING), lineterminator="\n")
        self._writer.writeheader()

    def add(self, readings: Iterable[Reading]) -> None:
        """Write them down, through to the disk's cache."""
        self._writer.writerows({**self._place, **_shown(one)} for one in readings)
        self._file.flush()

    def close(self) -> None:
        """Nothing comes after."""
        self._file.close()


def _shown(one: Reading) -> dict[str, object]:
    return {name: "" if value is None else value for name, value in asdict(one).items()}


def read(path: Path) -> tuple[Place, list[Reading]]:
    """What a :class:`Book` holds, gzipped where its name ends so.

    Raises:
        ReadingError: a file that cannot be read, no header, a line of another form, or two machines in one file.
    """
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8", newline="") as file:
            return _read(file, path)
    except (UnicodeDecodeError, EOFError, OSError, zlib.error, csv.Error) as error:  # not UTF-8, cut-off gzip, unreadable
        raise ReadingError(f"{path}: {error}") from error


def _read(file: IO[str], path: Path) -> tuple[Place, list[Reading]]:
    lines = csv.DictReader(file, strict=True)
    if tuple(lines.fieldnames or ()) != (*_PLACE, *_READING):
        raise ReadingError(f"{path}: the first line is not the header of method readings")
    places, readings = set(), []
    for number, line in enumerate(lines, 2):
        try:
            if None in line or None in line.values():
                raise ValueError("more or fewer columns than the header")
            places.add(_place(line))
            readings.append(_reading(line))
        except (KeyError, TypeError, ValueError) as error:
            raise ReadingError(f"{path}, line {number}: {error}") from error
    if len(places) != 1:
        raise ReadingError(f"{path}: {len(places)} machines or sittings; allowed: readings of one")
    return places.pop(), readings


def _place(line: dict[str, str]) -> Place:
    texts = {name: line[name] for name in _PLACE}
    limit = _number(texts.pop("power_limit"))
    datetime.fromisoformat(texts["time"])
    if not texts["gpu"]:
        raise ValueError("no gpu; allowed: its name")
    return Place(**{name: value or None for name, value in texts.items()}, power_limit=limit)  # type: ignore[arg-type]


def _reading(line: dict[str, str]) -> Reading:
    whole = {name: int(line[name]) for name in ("seqlen", "batch", "heads", "head_dim", "repeat", "sample")}
    texts = {name: line[name] for name in ("experiment", "setting", "kernel", "pass_", "mask", "dtype")}
    ms = float(line["ms"])
    if not 0 < ms < math.inf:
        raise ValueError(f"ms={line['ms']}; allowed: above 0")
    return Reading(**texts, **whole, ms=ms, sm_mhz=_number(line["sm_mhz"]), power_w=_number(line["power_w"]))  # type: ignore[arg-type]


def _number(text: str) -> float | None:
    value = float(text) if text else None
    if value is not None and not 0 <= value < math.inf:
        raise ValueError(f"{text}; allowed: finite numbers from 0 on")
    return value
