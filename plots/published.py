"""Figures that other people published, or that were measured apart from the rows: ``results/published/*.csv``.

They never mix with rows: a figure of theirs has a source, a GPU and a way of counting operations of its own. Reading is
strict, because nothing else checks these files. Draws nothing.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from masks.families import FAMILIES

FOLDER = Path(__file__).resolve().parent.parent / "results" / "published"

COLUMNS = (
    *("source", "gpu", "convention", "note"),
    *("kernel", "mask", "pass", "seqlen", "batch", "heads", "head_dim", "dtype"),
    *("tflops", "ms", "density", "tile_density"),
)
CONVENTIONS = ("tile128", "causal_halved")
"""``tile128``: 128x128 tiles that are not skipped, each whole. ``causal_halved``: all pairs, half of them when causal."""

_ALLOWED = {
    "convention": CONVENTIONS,
    "mask": tuple(FAMILIES),
    "pass": ("forward", "backward"),
    "dtype": ("bfloat16", "float16"),
}
_NEEDED = ("source", "gpu", "kernel")
_WHOLE = ("seqlen", "batch", "heads", "head_dim")
_SAME = 0.01  # tflops and ms of a row are the same measurement, rounded by its source


class PublishedError(ValueError):
    """A file of published figures breaks its form; says which line and how."""


@dataclass(frozen=True)
class Published:
    """One published figure. ``tflops`` counts by ``convention``; what the source does not give is None."""

    source: str
    gpu: str
    convention: str
    note: str
    kernel: str
    mask: str
    pass_: str
    seqlen: int
    batch: int
    heads: int
    head_dim: int
    dtype: str
    tflops: float
    ms: float | None
    density: float | None
    tile_density: float | None


def read_published(folder: Path = FOLDER) -> list[Published]:
    """All figures of a folder, file by file.

    Raises:
        PublishedError: other columns than :data:`COLUMNS`, a value that is missing or not allowed, a figure that is there
            twice, or ``tflops`` and ``ms`` that contradict each other.
    """
    return [figure for path in sorted(folder.glob("*.csv")) for figure in read_published_file(path)]


def read_published_file(path: Path) -> list[Published]:
    """The figures of one file; raises as :func:`read_published`."""
    found: dict[tuple[object, ...], int] = {}
    figures = []
    for line, raw in _lines(path):
        try:
            figure = _figure(raw)
        except PublishedError as error:
            raise PublishedError(f"{path.name}, line {line}: {error}") from None
        what = tuple(raw[name] for name in COLUMNS if name not in ("note", "tflops", "ms", "density", "tile_density"))
        if what in found:
            raise PublishedError(f"{path.name}, line {line}: the figure of line {found[what]} again")
        found[what] = line
        figures.append(figure)
    return figures


def _lines(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.reader(file, strict=True)
        header = tuple(next(reader, ()))
        if header != COLUMNS:
            raise PublishedError(f"{path.name} has the columns {', '.join(header) or 'none'}; expected {', '.join(COLUMNS)}")
        for values in reader:
            if len(values) != len(COLUMNS):
                raise PublishedError(f"{path.name}, line {reader.line_num}: {len(values)} values, expected {len(COLUMNS)}")
            yield reader.line_num, dict(zip(COLUMNS, values, strict=True))


def _figure(raw: dict[str, str]) -> Published:
    for name in _NEEDED:
        if not raw[name].strip():
            raise PublishedError(f"{name} is empty")
    for name, allowed in _ALLOWED.items():
        if raw[name] not in allowed:
            raise PublishedError(f"{name} is {raw[name]!r}; allowed: {', '.join(allowed)}")
    whole = {name: _whole(name, raw[name]) for name in _WHOLE}
    tflops = _number("tflops", raw["tflops"])
    ms, density, tile_density = (_number(name, raw[name]) if raw[name] else None for name in ("ms", "density", "tile_density"))
    for name, share in (("density", density), ("tile_density", tile_density)):
        if share is not None and share > 1:
            raise PublishedError(f"{name} is {share}; at most 1")
    if raw["convention"] == "tile128" and ms is not None and tile_density is not None:
        pairs = whole["batch"] * whole["heads"] * whole["seqlen"] ** 2 * whole["head_dim"] * tile_density
        implied = (4 if raw["pass"] == "forward" else 10) * pairs / ms / 1e9
        if abs(implied / tflops - 1) > _SAME:
            raise PublishedError(f"tflops is {tflops}, but ms and tile_density make {implied:.1f}")
    return Published(
        source=raw["source"],
        gpu=raw["gpu"],
        convention=raw["convention"],
        note=raw["note"],
        kernel=raw["kernel"],
        mask=raw["mask"],
        pass_=raw["pass"],
        dtype=raw["dtype"],
        tflops=tflops,
        ms=ms,
        density=density,
        tile_density=tile_density,
        **whole,
    )


def _whole(name: str, text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise PublishedError(f"{name} is {text!r}; expected a whole number of at least 1")
    return int(text)


def _number(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise PublishedError(f"{name} is {text!r}; expected a number above 0")
    return value
