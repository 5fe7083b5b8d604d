"""``python -m harness.simulate.fit``: the rates of ``conf/cluster/rates/`` from the committed rows and link readings, and with
them the tables of docs/simulator.md.

The time of a launch is taken as a sum, ``full_ps * full tiles + partial_ps * partial tiles + outer_ps * outer tiles +
launch_us``, with no coefficient below zero, and the relative errors of all single-GPU cells of one kernel, pass and head dim
are made least in squares. ``launch_us`` can only be told from ``outer_ps`` where launches of different sizes were measured;
else it is 0 and ``outer_ps`` holds it. A pass that a kernel has no rows of is borrowed from FlexAttention: this kernel's other
pass times the ratio of FlexAttention's two, which is said in the file. The same files give the same bytes.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from harness import outputs
from harness.complaint import complain
from harness.inputs import make_mask
from harness.marked import MarkerError
from harness.provenance import ROOT, CheckoutError, of_checkout
from harness.rows import RowError
from harness.simulate.cluster import find_cluster
from harness.simulate.document import with_tables
from harness.simulate.fit_links import links
from harness.simulate.least_squares import least_squares, short
from harness.simulate.rates import FOLDER
from harness.simulate.reading import ClusterError
from harness.simulate.recorded import problem_of
from masks.column_mask import BLOCK, tile_count
from masks.tiles import tile_counts
from plots.cells import Cell, cells_of, load_rows

OK, USAGE, BAD_DATA = 0, 2, 4

KERNEL, LENDER = "fm3", "flex"
FEATURES = ("full", "partial", "outer", "launch")

FITTED = {
    "source": "measured", "cp_degree": 1, "deterministic": False, "protocol": "sustained", "l2": "cold", "dtype": "bfloat16",
}  # fmt: skip
"""What a cell must be to be fitted."""

LEAST_CELLS = 8
"""Fewer cells than this are not fitted: four coefficients need some more lines than that to be wrong about."""

HEAD = """\
# Written by `python -m harness.simulate.fit` from the rows and link readings of results/: edit those, not this.
# What the entries mean: harness/simulate/rates.py. What they are worth: docs/simulator.md.
"""


def features(cell: Cell) -> list[float] | None:
    """Full, partial and outer tiles of a cell's call over all heads, and 1 launch; None where its mask cannot be built again.

    A mask for every head is counted on one head: they are drawn alike.
    """
    problem = problem_of(cell)
    if problem is None:
        return None
    counts = tile_counts(make_mask(replace(problem, batch=1, heads=1), "cpu"))
    heads = problem.batch * problem.heads
    return [counts.full * heads, counts.partial * heads, tile_count(problem.seqlen, BLOCK) * heads, 1.0]


def fit_cells(cells: Sequence[Cell]) -> dict[str, Any] | None:
    """The rates of one kernel, pass and head dim; None where too few cells can be used."""
    pairs = [(cell, found) for cell in cells if (found := features(cell)) is not None]
    if len(pairs) < LEAST_CELLS:
        return None
    tiles, times = np.array([found for _, found in pairs]), np.array([cell.median_ms for cell, _ in pairs])
    rates, errors = least_squares(tiles, times)
    one = pairs[0][0]
    an_outer = (tiles[:, 0] + tiles[:, 1]) / tiles[:, 2]
    return {
        "kernel": one["kernel"],
        "pass": one["pass"],
        "head_dim": one["head_dim"],
        **{f"{name}_ps": short(rate * 1e9) for name, rate in zip(FEATURES[:3], rates[:3], strict=True)},
        "launch_us": short(rates[3] * 1e3),
        "worst": short(float(np.abs(errors).max())),
        "median": short(float(np.median(np.abs(errors)))),
        "rows": len(pairs),
        "outer_tiles": [float(tiles[:, 2].min()), float(tiles[:, 2].max())],
        "tiles_an_outer": [short(float(an_outer.min())), short(float(an_outer.max()))],
        "source": f"results/summary.csv: {len(pairs)} lines of {one['kernel']} {one['pass']}, source hash {one['source_hash']}",
    }


def borrow(own: dict[str, Any], lent: dict[str, Any], lender_own: dict[str, Any]) -> dict[str, Any]:
    """Rates of a pass that was not measured: ``own``, of the other pass, times the ratio of the lender's two."""
    names = [f"{name}_ps" for name in FEATURES[:3]]
    overall = sum(lent[name] for name in names) / sum(lender_own[name] for name in names)
    ratio = {name: lent[name] / lender_own[name] if lender_own[name] else overall for name in names}
    error = own["worst"] + lent["worst"] + lender_own["worst"]
    lacks, has = lent["pass"], own["pass"]
    why = f"too few rows of {own['kernel']} {lacks}: its {has} times FlexAttention's {lacks} over {has}"
    return {
        **own,
        "outer_tiles": [*own["outer_tiles"]],
        "tiles_an_outer": [*own["tiles_an_outer"]],
        "pass": lent["pass"],
        **{name: short(own[name] * factor) for name, factor in ratio.items()},
        "worst": short(error),
        "median": short(own["median"] + lent["median"] + lender_own["median"]),
        "source": f"{own['source']}; {lent['source']}; {lender_own['source']}",
        "borrowed": why,
    }


def kernels(cells: Iterable[Cell]) -> list[dict[str, Any]]:
    """Entries of all passes and head dims of this project's kernel that the measured cells of one GPU allow."""
    groups: dict[tuple[str, str, int], list[Cell]] = defaultdict(list)
    for cell in cells:
        if cell.ok and all(cell[name] == value for name, value in FITTED.items()):
            groups[cell["kernel"], cell["pass"], cell["head_dim"]].append(cell)
    fitted = {key: found for key, members in groups.items() if (found := fit_cells(members)) is not None}
    entries = [found for key, found in sorted(fitted.items()) if key[0] == KERNEL]
    for head_dim in sorted({key[2] for key in fitted if key[0] == KERNEL}):
        have = [pass_ for pass_ in ("forward", "backward") if (KERNEL, pass_, head_dim) in fitted]
        lender = [fitted.get((LENDER, pass_, head_dim)) for pass_ in ("forward", "backward")]
        if have == ["forward"] and lender[0] is not None and lender[1] is not None:
            entries.append(borrow(fitted[KERNEL, "forward", head_dim], lender[1], lender[0]))
    return entries


def rates_text(results: Path, gpu: str, cells: Sequence[Cell]) -> str:
    """The file of one GPU."""
    found = {
        "gpu": gpu,
        "kernels": kernels(cell for cell in cells if cell["gpu"] == gpu),
        "links": links(results / _slug(gpu) / "links.csv"),
    }
    return HEAD + yaml.safe_dump(found, sort_keys=False, width=120)


def _slug(gpu: str) -> str:
    return gpu.lower().replace(" ", "-")


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0, 2 no checkout, no GPU with both rows and link readings or nowhere to write, 4 rows in another form."""
    parser = argparse.ArgumentParser(prog="python -m harness.simulate.fit", description="Fit the simulator's rates to rows.")
    parser.add_argument("results_dir", type=Path, nargs="?", default=ROOT / "results", help="committed results")
    options = parser.parse_args(arguments)
    try:
        return _fit(options.results_dir)
    except RowError as error:
        return complain("fit", str(error), BAD_DATA)
    except (CheckoutError, ClusterError, MarkerError, FileNotFoundError) as error:
        return complain("fit", str(error), USAGE)
    except OSError as error:
        return complain("fit", f"cannot write {error.filename}: {error.strerror or error}", USAGE)


def _fit(results: Path) -> int:
    page = of_checkout("docs/simulator.md")  # before the rates are written, which it shows
    text = page.read_text(encoding="utf-8")
    cells = cells_of(load_rows(results))
    gpus = sorted({cell["gpu"] for cell in cells if (results / _slug(cell["gpu"]) / "links.csv").exists()})
    if not gpus:
        return complain("fit", f"no GPU below {results} has rows and links.csv", USAGE)
    for gpu in gpus:
        path = FOLDER / "rates" / f"{_slug(gpu)}.yaml"
        outputs.write({path: rates_text(results, gpu, cells)})
        print(f"{path.relative_to(ROOT)}: written")
    outputs.write({page: with_tables(text, find_cluster("h200_8"))})
    return OK


if __name__ == "__main__":
    sys.exit(main())
