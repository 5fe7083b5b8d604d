"""What pages say from the committed rows: ``python -m harness.readme``. README.md has the results and the claims,
docs/kernel-log.md how the Hopper kernels stand beside the best ones known, docs/method.md what its experiments gave.

The text between two markers is replaced, everything else stays. A test fails when it is not what the rows say.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from harness import outputs
from harness.claims import peers
from harness.claims.judge import judge
from harness.claims.text import for_readme
from harness.complaint import complain
from harness.marked import MarkerError, with_part
from harness.method import cards
from harness.method import table as method
from harness.method.readings import ReadingError, read
from harness.provenance import CheckoutError, of_checkout
from harness.rows import Row, RowError
from plots import captions
from plots.cells import Cell, cells_of, load_rows
from plots.folder import no_rows
from plots.published import PublishedError, read_published
from plots.style import length_label, rank, title_of

OK, USAGE, BAD_DATA = 0, 2, 4

RESULTS, CLAIMS = "results", "claims"
"""Names of README.md's parts, as in ``<!-- results: begin -->`` and ``<!-- results: end -->``."""
LOG = "docs/kernel-log.md"
METHOD, EXPERIMENTS, CARDS = "docs/method.md", "experiments", "cards"
LENGTHS = (8192, 32768)


def table(cells: Sequence[Cell]) -> str:
    """Markdown: mask by kernel, ``forward / backward`` TFLOP/s by exact density, one table a length, caption below."""
    chosen = [c for c in cells if c["seqlen"] in LENGTHS and all(c[name] == value for name, value in peers.SETTING.items())]
    parts, told = [], []
    for seqlen in LENGTHS:
        members = [cell for cell in chosen if cell["seqlen"] == seqlen]
        kernels = sorted({cell["kernel"] for cell in members if cell.ok}, key=rank)
        masks = list(dict.fromkeys(cell["mask"] for cell in members))
        lines = [
            f"| {length_label(seqlen)} tokens | density | " + " | ".join(map(title_of, kernels)) + " |",
            "|---|---|" + "---|" * len(kernels),
        ]
        for mask in masks:
            of_mask = _one_problem([cell for cell in members if cell["mask"] == mask])
            told += [cell for cell in of_mask if cell.ok]
            density = next((f"{cell['density']:.3f}" for cell in of_mask if cell.ok), "-")
            shown = [_pair([cell for cell in of_mask if cell["kernel"] == kernel]) for kernel in kernels]
            lines.append(f"| {mask} | {density} | " + " | ".join(shown) + " |")
        parts.append("\n".join(lines))
    return "\n\n".join([*parts, captions.caption(told) if told else ""])


def _one_problem(cells: Sequence[Cell]) -> list[Cell]:
    """The cells of the problem that most of them have figures of: another batch or variant of the mask is another problem.

    Two draws of a random mask are not, as in the claims: their densities are alike.
    """
    problems: dict[tuple[object, ...], list[Cell]] = {}
    for cell in cells:
        problems.setdefault((cell["batch"], cell["mask_variant"], str(cell["mask_params"])), []).append(cell)
    return max(problems.values(), key=lambda members: sum(cell.ok for cell in members))


def _pair(cells: Sequence[Cell]) -> str:
    speeds = {cell["pass"]: cell.tflops() for cell in cells if cell.ok}
    if not speeds:
        return "-"
    return " / ".join(f"{speeds[name]:.0f}" if name in speeds else "-" for name in ("forward", "backward"))


def updated(text: str, cells: Sequence[Cell]) -> str:
    """The README's text with both parts as the cells have them.

    Raises:
        MarkerError: a marker is missing.
    """
    return with_part(with_part(text, RESULTS, table(cells)), CLAIMS, for_readme(judge(cells, read_published())))


def updated_log(text: str, cells: Sequence[Cell]) -> str:
    """The kernel log's text with a part for each pass, ``forward`` and ``backward``.

    Raises:
        MarkerError: a marker is missing.
    """
    published = read_published()
    for pass_ in ("forward", "backward"):
        text = with_part(text, pass_, peers.table(peers.standings(cells, published, pass_)))
    return text


def updated_method(text: str, rows: Sequence[Row], results: Path) -> str:
    """The method page's text: how far cards are apart, and a table for each ``method.csv.gz`` of a machine in the results.

    Raises:
        MarkerError: a marker is missing. ReadingError: a file that is not what ``python -m harness.method`` writes.
    """
    found = [method.table(*read(path)) for path in sorted(results.glob("*/method.csv.gz"))]
    return with_part(with_part(text, CARDS, cards.text(rows)), EXPERIMENTS, "\n\n".join(found) or method.NOTHING)


def main(arguments: Sequence[str] | None = None) -> int:
    """Rewrite the pages in place.

    Exit code: 0, 2 no checkout, no rows, a missing marker or a page that cannot be written, 4 rows or figures in another form.
    """
    parser = argparse.ArgumentParser(
        prog="python -m harness.readme",
        description="Rewrite the tables of README.md, of the kernel log and of the method page from what is committed.",
    )
    parser.parse_args(arguments)
    try:
        path, log, how, results = map(of_checkout, ("README.md", LOG, METHOD, "results"))
        rows = load_rows(results)
        cells = cells_of(rows)
        if not cells:
            return complain("readme", no_rows(results), USAGE)
        pages = {path: updated(path.read_text(encoding="utf-8"), cells)}
        pages[log] = updated_log(log.read_text(encoding="utf-8"), cells)
        pages[how] = updated_method(how.read_text(encoding="utf-8"), rows, results)
        outputs.write(pages)
    except (RowError, PublishedError, ReadingError) as error:
        return complain("readme", str(error), BAD_DATA)
    except (CheckoutError, MarkerError) as error:
        return complain("readme", str(error), USAGE)
    except OSError as error:
        return complain("readme", f"cannot write {error.filename}: {error.strerror or error}", USAGE)
    return OK


if __name__ == "__main__":
    sys.exit(main())
