"""All figures that a set of rows allows, each with its name, its data and its caption. Writes nothing."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from harness.rows import Row
from plots import balance, bars, captions, heatmap, history, lengths, overlap, roofline, style
from plots.cells import Cell, series_of
from plots.slots import SETTING_FIELDS, settings

PASSES = ("forward", "backward", "both")


@dataclass(frozen=True)
class Drawn:
    """One figure. ``folder`` names its setting (machine, protocol, shape), ``name`` the figure within it.

    Where nothing of it was measured, title, caption and watermark say SIMULATED; the folder has the cluster's name.
    """

    folder: str
    name: str
    kind: str
    title: str
    caption: str
    frame: pd.DataFrame
    paint: Callable[[str, str], Figure]

    def figure(self) -> Figure:
        """The figure with its title and caption."""
        return self.paint(self.title, self.caption)

    def bare(self) -> Figure:
        """The figure alone, for a page that sets title and caption as text."""
        return self.paint("", "")


def figures(cells: Sequence[Cell], convention: str = "exact") -> Iterator[Drawn]:
    """Every figure of every setting that shows how things are now, in a fixed order: lengths, heat maps, bars, of ranks overlap
    and balance, roofs.

    ``convention``: how operations are counted, a key of ``cells.CONVENTIONS``.
    """
    names = setting_names(list(settings(cells)))
    for key, members in settings(cells).items():
        for pass_ in PASSES:
            mine = [cell for cell in members if cell["pass"] == pass_]
            if any(cell.ok for cell in mine):
                yield from _of_pass(names[key], mine, pass_, convention)


def _of_pass(folder: str, cells: Sequence[Cell], pass_: str, convention: str) -> Iterator[Drawn]:
    simulated = captions.is_simulated(cells)
    told = _told(pass_)
    counted = "" if convention == "exact" else "Operations by 128x128-tile density, not by exact density."
    good = sorted({cell["seqlen"] for cell in cells if cell.ok})
    if len(good) > 1:
        frame = lengths.data(cells, pass_, convention)
        text = captions.caption(cells, lengths.note(frame), counted)
        title = f"Throughput against length, {told}"
        yield _drawn(lengths, folder, f"lengths_{pass_}", "lengths", title, text, frame, simulated)
        for own, rival in heatmap.pairs(cells):
            both = [cell for cell in cells if series_of(cell) in (own, rival)]
            try:
                frame = heatmap.data(both, pass_, own, rival)
            except captions.FigureError:
                continue  # the two never met on one mask and length
            text = captions.caption(both, heatmap.note(frame))
            title = f"{style.title_of(own)} over {style.title_of(rival)}, {told}"
            name = f"speedup_{_slug(own)}_over_{_slug(rival)}_{pass_}"
            yield _drawn(heatmap, folder, name, "heatmap", title, text, frame, simulated)
    for seqlen in good:
        mine = [cell for cell in cells if cell["seqlen"] == seqlen]
        frame = bars.data(mine, seqlen, pass_, convention)
        text = captions.caption(mine, bars.note(frame), counted)
        title = f"{style.length_label(seqlen)} tokens, {told}"
        yield _drawn(bars, folder, f"bars_{pass_}_{seqlen}", "bars", title, text, frame, simulated)
        for module, kind, shown in _OF_RANKS:
            able = module.able(mine)
            if able:
                frame = module.data(able)
                title = f"{style.length_label(seqlen)} tokens, {told}: {shown}"
                text = captions.caption(able, module.note(frame))
                yield _drawn(module, folder, f"{kind}_{pass_}_{seqlen}", kind, title, text, frame, simulated)
    yield from _roofline(folder, cells, pass_)


def _roofline(folder: str, cells: Sequence[Cell], pass_: str) -> Iterator[Drawn]:
    if roofline.roof_of(cells) is None:
        return
    frame = roofline.data(cells, pass_)
    text = captions.caption(cells, roofline.note(cells, frame))
    title = f"Roofline, {_told(pass_)}"
    yield _drawn(roofline, folder, f"roofline_{pass_}", "roofline", title, text, frame, captions.is_simulated(cells))


def histories(rows: Iterable[Row]) -> Iterator[Drawn]:
    """A history figure for every setting, pass and length in which something was measured at two commits."""
    past = history.commits(rows)
    everything = [cell for _, cells in past for cell in cells]
    names = setting_names(list(settings(everything)))
    for key, members in settings(everything).items():
        mine = [(name, tuple(settings(cells).get(key, ()))) for name, cells in past]
        mine = [(name, cells) for name, cells in mine if cells]
        for pass_ in PASSES:
            for seqlen in sorted({cell["seqlen"] for cell in members if cell.ok and cell["pass"] == pass_}):
                frame = history.data(mine, seqlen, pass_)
                if len(frame):
                    cells = [cell for cell in members if (cell["seqlen"], cell["pass"]) == (seqlen, pass_)]
                    text = captions.caption(cells, history.note(frame))
                    title = f"From commit to commit: {style.length_label(seqlen)} tokens, {_told(pass_)}"
                    simulated = captions.is_simulated(cells)
                    name = f"history_{pass_}_{seqlen}"
                    yield _drawn(history, names[key], name, "history", title, text, frame, simulated)


def _told(pass_: str) -> str:
    return "forward and backward" if pass_ == "both" else pass_


_OF_RANKS: tuple[tuple[Any, str, str], ...] = (
    (overlap, "overlap", "computing and exchanging"),
    (balance, "balance", "load of the ranks"),
)
"""Figures of ranks that share a sequence: module, kind, what the title says."""


def _drawn(
    module: Any, folder: str, name: str, kind: str, title: str, text: str, frame: pd.DataFrame, simulated: bool
) -> Drawn:
    paint = partial(_paint, module.__name__, frame, simulated)
    return Drawn(folder, name, kind, f"SIMULATED · {title}" if simulated else title, text, frame, paint)


def _paint(module: str, frame: pd.DataFrame, simulated: bool, heading: str, below: str) -> Figure:
    """By the module's name, since a figure may be drawn in another process (``plots.workers``)."""
    figure: Figure = importlib.import_module(module).draw(frame, below, title=heading, simulated=simulated)
    return figure


def setting_names(keys: Sequence[tuple[Any, ...]]) -> dict[tuple[Any, ...], str]:
    """A folder name for every setting: safe on any file system, different for different settings."""
    names: dict[tuple[Any, ...], str] = {}
    for key in keys:
        fields = dict(zip(SETTING_FIELDS, key, strict=True))
        parts = [_slug(fields["gpu"]), fields["protocol"], _slug(fields["l2"]), _slug(fields["dtype"])]
        parts += [f"h{fields['heads']}-{fields['kv_heads']}", f"d{fields['head_dim']}"]
        parts += ["" if fields["power_limit"] is None else f"{fields['power_limit']:.0f}w"]
        parts += [
            "deterministic" if fields["deterministic"] else "",
            f"cp{fields['cp_degree']}" if fields["cp_degree"] > 1 else "",
        ]
        name = "_".join(part for part in parts if part)
        taken = sum(1 for other in names.values() if other == name or other.startswith(f"{name}_n"))
        names[key] = f"{name}_n{taken + 1}" if taken else name
    return names


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:40] or "unnamed"
