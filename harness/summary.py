"""The summary table: all rows below a folder as one CSV file, one line a (case, protocol, GPU).

``python -m harness.summary [RESULTS_DIR] [--out FILE] [--table]``. The same rows give the same bytes.

Which rows count is decided in ``plots.cells``, so that table and figures never disagree: only the newest source hash of
each kernel and pass on each GPU (newest by the time of its latest row), all its rounds pooled, never the best of history; a
case takes the status of its newest row, and a wrong result stands until the code changes. A line whose status is not ``ok``
has no figures. Columns of context-parallel runs stay empty where they do not apply. A simulated line says so in ``source``;
its interval is the model's.
"""

from __future__ import annotations

import argparse
import csv
import io
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.complaint import complain
from harness.outputs import write
from harness.rows import RowError
from harness.terminal import for_terminal
from plots.cells import Cell, cells_of, load_rows
from plots.folder import add_results_dir, no_rows
from plots.ranks import balance_of, by_rank, overlap_of

OK, USAGE, BAD_DATA = 0, 2, 4

COLUMNS = (
    "gpu", "power_limit", "protocol", "source", "kernel", "kernel_version", "source_hash", "strategy", "exchange",
    "mask", "mask_variant", "seed", "mask_digest", "seqlen", "batch", "heads", "kv_heads", "head_dim", "dtype", "pass",
    "deterministic", "cp_degree", "status", "rounds", "samples", "median_ms", "q25_ms", "q75_ms", "ci_low_ms",
    "ci_high_ms", "setup_ms", "tflops", "tflops_tile128", "density", "tile_density", "t_full_ms", "t_comp_ms",
    "t_comm_ms", "exposed_ms", "bare_comm_ms", "overlap", "balance", "recv_bytes", "recv_bytes_max", "recv_share",
    "plan_ms", "scaling", "host_us", "l2", "git_sha",
)  # fmt: skip

# Columns that are a field of the row as it stands.
_COPIED = (*COLUMNS[: COLUMNS.index("status")], "density", "tile_density", "l2")


_OF_A_MODEL = (
    "t_full_ms", "t_comp_ms", "t_comm_ms", "exposed_ms", "overlap", "balance", "recv_bytes", "recv_bytes_max", "recv_share",
    "scaling",
)  # fmt: skip


def summary_line(cell: Cell) -> dict[str, str]:
    """One line of the table as text, every column of COLUMNS."""
    values: dict[str, Any] = dict.fromkeys(COLUMNS)
    values |= {name: cell[name] for name in _COPIED}
    values["status"] = cell.status
    sha = cell["git_sha"]
    values["git_sha"] = f"{sha}-dirty" if sha and cell["git_dirty"] else sha
    if cell.ok:
        low, high = cell.quartiles_ms
        values |= {
            "rounds": len(cell.rows),
            "samples": len(cell.samples),
            "median_ms": cell.median_ms,
            "q25_ms": low,
            "q75_ms": high,
            "ci_low_ms": cell.interval_ms.low,
            "ci_high_ms": cell.interval_ms.high,
            "setup_ms": cell.middle("setup_ms"),
            "host_us": cell.middle("host_us"),
            "tflops": cell.tflops(),
            "tflops_tile128": cell.tflops("tile128"),
            **_of_ranks(cell),
        }
        # Of a simulated cell the model says more, by the names of the columns.
        values |= {name: value for name, value in (cell["simulation"] or {}).items() if name in _OF_A_MODEL}
    return {name: _text(value) for name, value in values.items()}


def _of_ranks(cell: Cell) -> dict[str, Any]:
    """The columns of ranks that share a sequence. Bytes are those that ranks receive in a forward pass."""
    values: dict[str, Any] = {"plan_ms": cell.middle("plan_ms"), "recv_share": cell.middle("recv_share")}
    received = by_rank(cell, "recv_bytes")
    if received is not None:
        values |= {"recv_bytes": round(sum(received)), "recv_bytes_max": round(max(received))}
    three = overlap_of(cell)
    if three is not None:
        values |= {
            "t_full_ms": three.full_ms,
            "t_comp_ms": three.comp_ms,
            "t_comm_ms": three.comm_ms,
            "exposed_ms": three.exposed_ms,
            "bare_comm_ms": three.bare_ms,
            "overlap": three.overlap,
            "balance": balance_of(cell),
        }
    return values


def summary_csv(cells: Sequence[Cell]) -> str:
    """The whole table, in the order of ``cells``."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(summary_line(cell) for cell in cells)
    return buffer.getvalue()


def _text(value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0 ok, 2 no folder, no rows or nowhere to write, 4 rows that are broken or do not agree."""
    parser = argparse.ArgumentParser(prog="python -m harness.summary", description="Summarise recorded rows as one CSV file.")
    add_results_dir(parser)
    parser.add_argument("--out", type=Path, help="the CSV file (default: RESULTS_DIR/summary.csv)")
    parser.add_argument("--table", action="store_true", help="also print the figures as tables")
    options = parser.parse_args(arguments)
    out = options.out or options.results_dir / "summary.csv"
    try:
        cells = cells_of(load_rows(options.results_dir))
    except RowError as error:
        return complain("summary", str(error), BAD_DATA)
    except FileNotFoundError as error:
        return complain("summary", str(error), USAGE)
    if not cells:
        return complain("summary", no_rows(options.results_dir), USAGE)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write({out: summary_csv(cells)})
    except OSError as error:
        return complain("summary", f"cannot write {out}: {error.strerror or error}", USAGE)
    if options.table:
        print(for_terminal(cells))
    print(f"{out}: {len(cells)} lines, {sum(cell.ok for cell in cells)} with figures")
    return OK


if __name__ == "__main__":
    sys.exit(main())
