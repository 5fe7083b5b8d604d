"""``python -m plots [RESULTS_DIR] [--out DIR]``: draws every figure that the rows allow, and lists what it drew."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from harness.rows import RowError
from plots import catalogue, files, workers
from plots.cells import CONVENTIONS, cells_of, load_rows
from plots.folder import add_results_dir, no_rows
from plots.gallery import gallery

USAGE, BAD_DATA = 2, 4


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0 ok, 2 no folder or no rows or an unwritable one, 4 rows that are broken or do not agree."""
    parser = argparse.ArgumentParser(prog="python -m plots", description="Draw figures from recorded rows.")
    add_results_dir(parser)
    parser.add_argument("--out", type=Path, help="where figures go (default: RESULTS_DIR/plots)")
    parser.add_argument("--convention", choices=sorted(CONVENTIONS), default="exact", help="how operations are counted")
    options = parser.parse_args(arguments)
    out = options.out or options.results_dir / "plots"
    try:
        rows = load_rows(options.results_dir)
        cells = cells_of(rows)
        if not cells:
            return _complain(no_rows(options.results_dir), USAGE)
        figures = [gallery(), *catalogue.figures(cells, options.convention), *catalogue.histories(rows)]
        for stem, drawn in zip(workers.each(partial(files.save_drawn, out), figures), figures, strict=True):
            print(f"{stem}  ({', '.join(files.FORMATS)}, csv)  {drawn.title}")
    except RowError as error:
        return _complain(str(error), BAD_DATA)
    except FileNotFoundError as error:
        return _complain(str(error), USAGE)
    except OSError as error:
        return _complain(f"cannot write below {out}: {error.strerror or error}", USAGE)
    print(f"{len(figures)} figures in {out}")
    return 0


def _complain(message: str, code: int) -> int:
    print(f"plots: {message}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
