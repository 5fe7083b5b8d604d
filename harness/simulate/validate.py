"""``python -m harness.simulate.validate``: predictions held against measured runs of several GPUs. Nothing is fitted to them.

Half of the (mask family, length) pairs, chosen by a hash with a committed seed, are the *unseen* half: nobody looks at them
while the model is worked on, and the limits hold for them. The other half serves to find errors. Errors are predicted over
measured time, less one. Also: whether measured times lie in the predicted intervals, and whether strategies come in the
measured order wherever measured times differ by more than a twentieth.

There are no such rows yet, and the command says so (exit code 3).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from harness.complaint import complain
from harness.provenance import ROOT
from harness.rows import RowError
from harness.simulate.cluster import find_cluster
from harness.simulate.comparison import compare, misses, table, wrong_orders
from harness.simulate.reading import ClusterError
from plots import simulated_errors
from plots.cells import cells_of, load_rows
from plots.files import save

OK, MISSED, USAGE, NO_ROWS, BAD_DATA = 0, 1, 2, 3, 4


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0 within the limits, 1 beyond, 2 wrong question, 3 no measured rows of several GPUs, 4 damaged rows."""
    parser = argparse.ArgumentParser(
        prog="python -m harness.simulate.validate", description="Hold predictions against measured runs of several GPUs."
    )
    parser.add_argument("results_dir", type=Path, nargs="?", default=ROOT / "results", help="rows (default: results)")
    parser.add_argument("--cluster", help="what they ran on: a name of conf/cluster or a file (default: that of the GPU)")
    parser.add_argument("--out", type=Path, help="folder of the table and the figure (default: RESULTS_DIR/validation)")
    options = parser.parse_args(arguments)
    try:
        cells = cells_of(load_rows(options.results_dir))
        cluster = None if options.cluster is None else find_cluster(options.cluster)
    except RowError as error:
        return complain("validate", str(error), BAD_DATA)
    except (ClusterError, FileNotFoundError) as error:
        return complain("validate", str(error), USAGE)
    found, left_out = compare(cells, cluster)
    for line in left_out:
        print(f"left out: {line}", file=sys.stderr)
    if not found:
        return complain(
            "validate", f"no measured runs of several GPUs below {options.results_dir}: nothing is validated", NO_ROWS
        )
    lines, (clear, wrong), told = table(found), wrong_orders(found), misses(found)
    print(lines.to_string(index=False, float_format=lambda value: f"{value:.3f}"))
    print(f"order of strategies: {clear - len(wrong)} of {clear} clear pairs right")
    print("\n".join([f"missed: {one}" for one in told] or ["all limits hold for the unseen half"]))
    out = options.out or options.results_dir / "validation"
    frame = simulated_errors.data(
        {"mask": one.cell["mask"], "half": "unseen" if one.unseen else "seen", "error": one.error} for one in found
    )
    machines = ", ".join(sorted({one.cell["gpu"] for one in found}))
    caption = f"Predicted over measured time, less one; {len(found)} measured cells of {machines}. {simulated_errors.note()}"
    try:
        save(simulated_errors.draw(frame, caption, title="Predictions against measured runs"), frame, out / "errors")
        lines.to_csv(out / "table.csv", index=False, float_format="%.4f", lineterminator="\n")
    except OSError as error:
        return complain("validate", f"cannot write {out}: {error.strerror or error}", USAGE)
    return MISSED if told else OK


if __name__ == "__main__":
    sys.exit(main())
