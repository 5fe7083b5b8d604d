"""Figures as files: PDF, PNG, SVG and the CSV of the numbers behind them. Equal figures give equal bytes."""

from __future__ import annotations

import io
from pathlib import Path

import matplotlib as mpl
import pandas as pd
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from plots.catalogue import Drawn
from plots.style import context

FORMATS = ("pdf", "png", "svg")

# No dates and no library versions: the same rows give the same bytes.
_METADATA: dict[str, dict[str, str | None]] = {
    "pdf": {"Creator": "plots", "Producer": "matplotlib", "CreationDate": None, "ModDate": None},
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": "plots"},
}


def to_bytes(figure: Figure, suffix: str) -> bytes:
    """The figure as one file: pdf, png or svg. Equal figures give equal bytes.

    Raises:
        ValueError: another suffix.
    """
    if suffix not in FORMATS:
        raise ValueError(f"figure format is {suffix!r}; allowed: {', '.join(FORMATS)}")
    buffer = io.BytesIO()
    with context():
        if suffix == "svg":  # what savefig does, but for a first drawing without output: a third of the time
            figure.dpi = mpl.rcParams["savefig.dpi"]
            FigureCanvasSVG(figure).print_svg(buffer, metadata=_METADATA[suffix])
        else:
            figure.savefig(buffer, format=suffix, metadata=_METADATA[suffix])
    return buffer.getvalue()


def to_csv(frame: pd.DataFrame) -> str:
    """The numbers behind a figure, in a fixed format."""
    return str(frame.to_csv(index=False, float_format="%.6g", lineterminator="\n"))


def save(figure: Figure, frame: pd.DataFrame, stem: Path) -> list[Path]:
    """Writes ``stem``.pdf, .png, .svg and .csv; returns the paths."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    paths = []
    for suffix in FORMATS:
        path = stem.with_name(f"{stem.name}.{suffix}")
        path.write_bytes(to_bytes(figure, suffix))
        paths.append(path)
    path = stem.with_name(f"{stem.name}.csv")
    path.write_text(to_csv(frame), encoding="utf-8")
    return [*paths, path]


def save_drawn(out: Path, drawn: Drawn) -> Path:
    """Writes a figure of the catalogue below ``out``, in the folder of its setting; returns the path without suffix."""
    stem = out / drawn.folder / drawn.name
    save(drawn.figure(), drawn.frame, stem)
    return stem
