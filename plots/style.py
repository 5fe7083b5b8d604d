"""How every figure looks: one fixed colour, hatch and marker a kernel, one set of rc values.

Colours are from the Okabe-Ito and Paul Tol palettes, which stay apart under the common colour vision deficiencies;
hatch and marker carry the same information without colour. Draws nothing by itself.
"""

from __future__ import annotations

import textwrap
import unicodedata
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

INK = "#24292f"
MUTED = "#6a737d"
GRID = "#dfe3e8"
PAPER = "#ffffff"

TIMES = "\N{MULTIPLICATION SIGN}"

_RC: dict[Any, Any] = {
    "font.family": "DejaVu Sans",  # shipped with matplotlib: the same glyphs on every machine
    "font.size": 9.0,
    "text.color": INK,
    "text.parse_math": False,  # labels come from rows, a dollar sign in one must not be read as a formula
    "text.usetex": False,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.titlesize": 10.0,
    "axes.titlelocation": "left",
    "axes.facecolor": "none",
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "legend.fontsize": 9.0,
    "hatch.linewidth": 0.7,
    "figure.facecolor": PAPER,
    "savefig.facecolor": PAPER,
    "figure.constrained_layout.use": True,
    "figure.dpi": 100.0,
    "savefig.dpi": 160.0,
    "pdf.fonttype": 42,  # TrueType, embedded: selectable text, accepted by publishers
    "ps.fonttype": 42,
    "svg.fonttype": "path",  # a report must look the same without the font
    "svg.hashsalt": "plots",
    "path.simplify": False,
}


class Look(NamedTuple):
    """How one kernel is drawn, and its name in a legend."""

    title: str
    colour: str
    hatch: str
    marker: str


KERNELS: dict[str, Look] = {
    "fm3": Look("FM3", "#D55E00", "", "o"),
    "reference": Look("reference", "#0072B2", "", "s"),
    "dense": Look("dense SDPA", "#9AA0A6", "", "D"),
    "sdpa_flash": Look("SDPA FA2", "#56B4E9", "", "^"),
    "sdpa_cudnn": Look("SDPA cuDNN", "#009E73", "", "v"),
    "flex": Look("FlexAttention", "#E69F00", "", "P"),
    "flex_tuned": Look("FlexAttention tuned", "#E69F00", "///", "X"),
    "flex_flash": Look("FlexAttention FLASH", "#F0E442", "", "p"),
    "flash_attn_2": Look("FlashAttention-2", "#56B4E9", "\\\\\\", "<"),
    "flash_attn_3": Look("FlashAttention-3", "#44AA99", "///", ">"),
    "flash_attn_4": Look("FlashAttention-4", "#785EF0", "", "h"),
    "flashmask_3": Look("FlashMask-3 (published)", "#CC79A7", "///", "H"),
    "flashmask": Look("FlashMask", "#CC79A7", "", "d"),
    "magi": Look("MagiAttention", "#AA3377", "...", "*"),
}

STRATEGIES: dict[str, tuple[str, str, str]] = {
    "fm3": ("#D55E00", "", "o"),
    "dual_chunk": ("#009E73", "", "v"),
    "all_gather": ("#56B4E9", "", "^"),
    "ring": ("#CC79A7", "", "d"),
    "ring_skip": ("#CC79A7", "///", "D"),
}
"""Colour, hatch and marker of a context-parallel strategy: series of ranks that share a sequence differ by it."""

_FALLBACK_COLOURS = ("#C3C7CC", "#8D949B", "#6B7280")
_FALLBACK_HATCHES = ("xx", "++", "oo", "--", "||")
_FALLBACK_MARKERS = ("8", "H", "s", "D", "^")


def look(kernel: str) -> Look:
    """The look of a kernel. An unknown one is grey, with a hatch and marker that depend on its name only."""
    if kernel in KERNELS:
        return KERNELS[kernel]
    code = zlib.crc32(kernel.encode())
    colour, hatch, marker = (names[code % len(names)] for names in (_FALLBACK_COLOURS, _FALLBACK_HATCHES, _FALLBACK_MARKERS))
    return Look(plain(kernel, 24), colour, hatch, marker)


def look_of(series: str, kernel: str) -> Look:
    """The look of a series: of its strategy where ranks share a sequence by one that is known, else of its kernel."""
    strategy = dict(enumerate(series.split())).get(1, "")
    found = look(kernel)
    return Look(found.title, *STRATEGIES[strategy]) if strategy in STRATEGIES else found


def title_of(series: str) -> str:
    """A series as a legend names it: a known kernel's name in words, and whatever else tells the series apart."""
    kernel, space, rest = series.partition(" ")
    return f"{KERNELS[kernel].title}{space}{plain(rest, 40)}" if kernel in KERNELS else plain(series, 40)


def rank(kernel: str) -> tuple[int, str]:
    """Place of a kernel in legends and groups: the order of KERNELS, unknown ones last by name."""
    names = list(KERNELS)
    return (names.index(kernel) if kernel in KERNELS else len(names), kernel)


def plain(text: object, longest: int = 60) -> str:
    """A string from a row, fit to be drawn or printed: no control characters, not longer than ``longest``."""
    clean = "".join(" " if unicodedata.category(c)[0] in "CZ" else c for c in str(text))
    return clean if len(clean) <= longest else clean[: longest - 1] + "\N{HORIZONTAL ELLIPSIS}"


def times(ratio: float) -> str:
    """A ratio as text: 1.25 times."""
    return f"{ratio:.2f}{TIMES}"


def length_label(tokens: float) -> str:
    """4096 -> 4K, 1000 -> 1000, 1048576 -> 1M."""
    whole = int(tokens)
    for size, unit in ((1 << 20, "M"), (1 << 10, "K")):
        if whole >= size and whole % size == 0:
            return f"{whole // size}{unit}"
    return str(whole)


class Scale(NamedTuple):
    """Unit of a throughput axis: figures are drawn as TFLOP/s times ``factor``."""

    factor: float
    unit: str


def scale_for(largest: float) -> Scale:
    """TFLOP/s, or GFLOP/s when nothing reaches one TFLOP/s (a CPU)."""
    return Scale(1.0, "TFLOP/s") if not largest < 1.0 else Scale(1000.0, "GFLOP/s")


def formatter() -> FuncFormatter:
    """Tick labels without exponents."""
    return FuncFormatter(lambda value, _: f"{value:g}")


@contextmanager
def context() -> Iterator[None]:
    """The rc values of this project, whatever the user's own matplotlibrc says."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_RC)
        yield


def title_and_legend(figure: Figure, title: str, handles: Sequence[Any], labels: Sequence[str]) -> None:
    """Title and legend above the axes, left-aligned, the title on a line of its own."""
    columns = max(1, min(len(handles), int(figure.get_figwidth() / 1.6)))
    figure.legend(
        handles, labels, loc="outside upper left", ncols=columns, handlelength=1.4, columnspacing=1.4, borderaxespad=0.2,
        title=title, alignment="left", title_fontproperties={"weight": "bold", "size": 11},
    )  # fmt: skip


def caption_below(figure: Figure, text: str, *, watermark: bool = False) -> None:
    """The caption under the axes, wrapped to the figure's width, and SIMULATED across a figure that was not measured."""
    if text:
        width = int(figure.get_figwidth() * 18.5)  # characters of 7.5 points an inch
        wrapped = "\n".join(line for part in text.split("\n") for line in textwrap.wrap(part, width))
        figure.supxlabel(wrapped, x=0.01, ha="left", fontsize=7.5, color=MUTED, linespacing=1.4)
    if watermark:
        stamp: dict[str, Any] = {"fontsize": 54, "color": MUTED, "alpha": 0.22, "rotation": 24, "zorder": 9}
        figure.text(0.5, 0.5, "SIMULATED", ha="center", va="center", **stamp)
