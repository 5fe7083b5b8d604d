"""``python -m harness.claims [RESULTS_DIR] [--out DIR]``: every claim of the paper against the rows below a folder.

Prints the verdicts with their figures, and the rows behind them; ``--out`` also saves the claims figure. Which rows count
is decided in ``plots.cells``, what they are worth in ``harness.claims.judge``.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from harness.claims import figure, text
from harness.claims.judge import judge
from harness.complaint import complain
from harness.rows import RowError
from plots import files
from plots.cells import cells_of, load_rows
from plots.folder import add_results_dir, no_rows
from plots.published import PublishedError, read_published

OK, USAGE, BAD_DATA = 0, 2, 4


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0 whatever the verdicts, 2 no folder, no rows or nowhere to write, 4 rows or figures in another form."""
    parser = argparse.ArgumentParser(prog="python -m harness.claims", description="Judge the paper's claims by recorded rows.")
    add_results_dir(parser)
    parser.add_argument("--out", type=Path, help="folder for the claims figure (default: none is drawn)")
    options = parser.parse_args(arguments)
    try:
        cells = cells_of(load_rows(options.results_dir))
        judgements = judge(cells, read_published())
    except (RowError, PublishedError) as error:
        return complain("claims", str(error), BAD_DATA)
    except FileNotFoundError as error:
        return complain("claims", str(error), USAGE)
    if not cells:
        return complain("claims", no_rows(options.results_dir), USAGE)
    print(text.for_terminal(judgements, min(100, shutil.get_terminal_size((100, 24)).columns)))
    if options.out is not None:
        drawn = figure.drawn(judgements)
        try:
            files.save_drawn(options.out, drawn)
        except OSError as error:
            return complain("claims", f"cannot write below {options.out}: {error.strerror or error}", USAGE)
        print(f"{options.out / drawn.name}  ({', '.join(files.FORMATS)}, csv)  {drawn.title}")
    return OK


if __name__ == "__main__":
    sys.exit(main())
