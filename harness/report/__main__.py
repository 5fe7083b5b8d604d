"""One self-contained HTML file about a folder of rows: ``python -m harness.report [RESULTS_DIR] [--out FILE]``.

What is fastest, by how much and how sure; the paper's claims; the figures, and those over commits; every case; what has
no figures and why; where it ran and how to run it again. No script and nothing loaded from elsewhere. Rows are data of
unknown origin: every string is escaped (``harness.report.html``). Which rows count is decided in ``plots.cells``, what
claims are worth in ``harness.claims``; nothing is measured or judged here.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness import findings, outputs
from harness.claims.judge import Judgement, judge
from harness.complaint import complain
from harness.report import cases, claims, pictures, ratings, where
from harness.report.html import Markup, element, fold, join, page
from harness.rows import RowError
from plots import captions, catalogue, history
from plots.catalogue import Drawn
from plots.cells import Cell, cells_of, load_rows
from plots.changepoints import ENOUGH
from plots.folder import add_results_dir, no_rows
from plots.gallery import gallery
from plots.published import PublishedError, read_published
from plots.slots import settings

OK, USAGE, BAD_DATA = 0, 2, 4

_SECTIONS = {
    "short": "In short",
    "fastest": "Fastest per mask",
    "claims": "The paper's claims",
    "dense": "Reference against dense",
    "figures": "Figures",
    "history": "From commit to commit",
    "cases": "Every case",
    "without": "Without figures",
    "where": "Environment and commands",
}


_NO_STEPS = f"No steps were found; they are looked for from {ENOUGH} commits on."


def build(
    cells: Sequence[Cell],
    environments: dict[str, dict[str, Any] | None],
    judgements: Sequence[Judgement] = (),
    past: Sequence[Drawn] = (),
) -> str:
    """The document.

    Args:
        cells: at least one.
        environments: environment records by their hash; None where the record is missing.
        judgements: the paper's claims, judged.
        past: history figures.
    """
    now = _of_now(cells)
    drawn = pictures.begin([(f"f{number}", item) for number, item in enumerate(now)]
                           + [(f"p{number}", item) for number, item in enumerate(past)])  # fmt: skip
    groups = list(settings(cells).values())
    parts: dict[str, list[Markup]] = {name: [] for name in _SECTIONS}
    for members in groups:
        heading = _setting_heading(members) if len(groups) > 1 else Markup("")
        found = findings.places(members)
        duels = findings.duels(members, "reference", "dense")
        parts["short"].append(element("div", heading, ratings.short(members, found, duels), class_="card"))
        parts["fastest"].append(join([heading, *ratings.fastest(found)]))
        if duels:
            parts["dense"].append(element("div", heading, ratings.duel_table(duels), class_="card"))
        parts["cases"].append(join([heading, *cases.case_tables(found)]))
        parts["without"].append(join([heading, cases.without_figures(members, found)]))
    if judgements:
        parts["short"].append(element("p", claims.in_one_line(judgements), class_="card"))
        parts["claims"] = [claims.claims(judgements)]
    made = drawn()
    parts["figures"] = _figures(now, made[: len(now)])
    parts["history"] = _history(past, made[len(now) :])
    parts["where"] = [where.environment(cells, environments), where.runs(cells)]
    shown = {name: title for name, title in _SECTIONS.items() if parts[name]}
    body = [
        element("section", element("h2", title, id=name), *parts[name], aria_labelledby=name) for name, title in shown.items()
    ]
    return page("Attention under column masks", _header(cells, shown), *body)


def _header(cells: Sequence[Cell], shown: dict[str, str]) -> Markup:
    rows = [row for cell in cells for row in (cell.rows or (cell.row,))]
    days = sorted({row["time"][:10] for row in rows})
    good = sum(cell.ok for cell in cells)
    chips = [element("span", source.upper(), class_="chip stamp") for source in captions.sources(cells)]
    chips += [element("span", name, class_="chip") for name in sorted({captions.machine(cell) for cell in cells})]
    names = [f"{protocol} protocol" for protocol in sorted({cell["protocol"] for cell in cells})]
    names.append(days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}")
    chips += [element("span", name, class_="chip") for name in names]
    rounds = sum(len(cell.rows) for cell in cells)
    counts = f"{len(cells)} cases, {good} with figures, {len(cells) - good} without; {rounds} timed rounds."
    links = element("nav", *(element("a", title, href=f"#{name}") for name, title in shown.items()), aria_label="sections")
    return element("header", element("h1", "Attention under column masks"), *chips, element("p", counts, class_="sub"), links)


def _setting_heading(members: Sequence[Cell]) -> Markup:
    told = captions.facts(members)
    return element("h3", captions.stamp(members) + " · ".join(told[name] for name in ("machine", "protocol", "shape")))


def _of_now(cells: Sequence[Cell]) -> list[Drawn]:
    """The figures of how things are, and the masks in them."""
    measured = {cell["mask"] for cell in cells}
    masks = gallery([name for name in gallery().frame["mask"] if name in measured]) if measured else None
    return [*catalogue.figures(cells), *([masks] if masks is not None else [])]


def _figures(items: Sequence[Drawn], made: Sequence[Markup]) -> list[Markup]:
    """Lengths and heat maps at once, bars and pictures to be opened; without lengths the bars come at once."""
    several = any(item.kind == "lengths" for item in items)
    lines, maps, bars, folded = [], [], [], []
    for item, figure in zip(items, made, strict=True):
        if item.kind == "lengths":
            lines.append(figure)
        elif item.kind == "heatmap":
            maps.append(figure)
        elif item.kind == "bars" and not several:
            bars.append(figure)
        else:
            folded.append(fold(item.title, figure))
    return [*bars, *lines, element("div", *maps, class_="grid"), *folded]


def _history(past: Sequence[Drawn], made: Sequence[Markup]) -> list[Markup]:
    """The steps that were found at once, the figures to be opened."""
    steps = [element("li", note) for item in past for note in history.notes(item.frame)]
    told = element("ul", *steps) if steps else element("p", _NO_STEPS, class_="sub")
    figures = [fold(item.title, figure) for item, figure in zip(past, made, strict=True)]
    return [element("div", told, class_="card"), *figures] if past else []


def load_environments(folder: Path, cells: Sequence[Cell]) -> dict[str, dict[str, Any] | None]:
    """The environment records that the cells refer to, from any ``environments`` folder below ``folder``."""
    return where.load_environments(folder, {row["environment"] for cell in cells for row in (cell.rows or (cell.row,))})


def write(results_dir: Path, out: Path) -> int:
    """Writes the report; returns the number of its cases (0: no rows, nothing written).

    Raises:
        FileNotFoundError: no such folder. RowError: rows that do not follow the schema. OSError: ``out`` not writable.
    """
    rows = load_rows(results_dir)
    cells = cells_of(rows)
    if cells:
        judgements = judge(cells, read_published())
        text = build(cells, load_environments(results_dir, cells), judgements, list(catalogue.histories(rows)))
        out.parent.mkdir(parents=True, exist_ok=True)
        outputs.write({out: text})
    return len(cells)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0 ok, 2 no folder, no rows or nowhere to write, 4 rows that do not follow the schema."""
    parser = argparse.ArgumentParser(prog="python -m harness.report", description="Write the report of recorded rows.")
    add_results_dir(parser)
    parser.add_argument("--out", type=Path, help="the HTML file (default: RESULTS_DIR/report.html)")
    options = parser.parse_args(arguments)
    out = options.out or options.results_dir / "report.html"
    try:
        count = write(options.results_dir, out)
    except (RowError, PublishedError) as error:
        return complain("report", str(error), BAD_DATA)
    except FileNotFoundError as error:
        return complain("report", str(error), USAGE)
    except OSError as error:
        return complain("report", f"cannot write {out}: {error.strerror or error}", USAGE)
    if not count:
        return complain("report", no_rows(options.results_dir), USAGE)
    print(f"{out}: {count} cases")
    return OK


if __name__ == "__main__":
    sys.exit(main())
