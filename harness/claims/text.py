"""The judged claims as text: blocks for the terminal, a table for the README. Judges nothing."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence

from harness.claims.judge import VERDICTS, Judgement
from harness.claims.paper import SOURCE
from harness.claims.speeds import WAYS, Compared
from harness.claims.words import amount, span
from plots.style import plain

NOTE = (
    "Reproduced: every case was compared, none gains less than the paper's least and one gains its most. One case below the "
    "least is enough for not reproduced. Speeds are of forward and backward together, by 128x128-tile density."
)


def paper_range(judgement: Judgement) -> str:
    """What the paper says: +34% to +71%."""
    claim = judgement.claim
    return f"{amount(claim, claim.low)} to {amount(claim, claim.high)}"


def here(judgement: Judgement) -> str:
    """What the rows say: a range and how many cases it stands on; of single passes where both together have none."""
    if judgement.compared:
        return _range(judgement, judgement.compared)
    return "; ".join(f"{pass_} alone {_range(judgement, found)}" for pass_, found in judgement.alone.items())


def _range(judgement: Judgement, compared: Sequence[Compared]) -> str:
    cases = len({one.case for one in compared})
    return f"{span(judgement.claim, compared)} ({cases} of {len(judgement.claim.cases)} cases)"


def place(judgement: Judgement) -> str:
    """Where the rows were measured, and that the paper measured elsewhere."""
    if judgement.machine is None:
        return ""
    return f"{judgement.machine}, {judgement.protocol}" + (" (not the paper's GPU)" if judgement.elsewhere else "")


def ways(judgement: Judgement) -> str:
    """How the ratios are known: 45 each over cuDNN beside it, 3 from a published series."""
    counts = Counter(one.how for one in evidence(judgement))
    return "; ".join(f"{counts[way]} {way}" for way in WAYS if counts[way])


def behind(judgement: Judgement) -> str:
    """How the ratios are known, what the comparison is not, and how many runs its rows are from."""
    count = len(runs(judgement))
    told = f"rows of {count} run{'s' if count > 1 else ''}"
    return "; ".join([ways(judgement), *caveats(judgement), told]) if count else ""


def caveats(judgement: Judgement) -> list[str]:
    """What the comparison is not: one for figures that are rows, one for published ones, as far as they stand behind it."""
    claim = judgement.claim
    published = {bool(one.figures) for one in evidence(judgement)}
    told = [text for kind, text in ((False, claim.caveat), (True, claim.published_caveat)) if kind in published and text]
    return list(dict.fromkeys(told))


def evidence(judgement: Judgement) -> tuple[Compared, ...]:
    """The comparisons that :func:`here` is about."""
    return judgement.compared or tuple(one for found in judgement.alone.values() for one in found)


def runs(judgement: Judgement) -> list[str]:
    """The runs whose rows stand behind it."""
    rows = [row for one in evidence(judgement) for cell in one.cells for row in cell.rows]
    return sorted({plain(row["run_id"]) for row in rows})


def sources(judgement: Judgement) -> list[str]:
    """The published figures that stand behind it, by their source."""
    return sorted({figure.source for one in evidence(judgement) for figure in one.figures})


def for_terminal(judgements: Sequence[Judgement], width: int = 100) -> str:
    """A block a claim: the paper's figure, ours, the verdict, how it is known and the rows behind it."""
    blocks = []
    for one in judgements:
        facts = {
            "paper": f"{paper_range(one)}, {one.claim.gpu}",
            "here": here(one),
            "where": place(one),
            "verdict": f"{one.verdict.upper()}: {one.reason}",
            "how": ways(one),
            "note": "; ".join(caveats(one)),
            "rows": ", ".join(runs(one)),
            "figures": "; ".join(sources(one)),
        }
        lines = textwrap.wrap(one.claim.text, width)
        for name, value in facts.items():
            if value:
                lines += textwrap.wrap(value, width, initial_indent=f"  {name:8}", subsequent_indent=" " * 10)
        blocks.append("\n".join(lines))
    counts = Counter(one.verdict for one in judgements)
    total = ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS)
    return "\n\n".join([f"The claims of {SOURCE}", *blocks, textwrap.fill(NOTE, width), total])


def for_readme(judgements: Sequence[Judgement]) -> str:
    """Markdown: one line a claim, and what the verdicts mean."""
    lines = ["| claim | paper | here | verdict |", "|---|---|---|---|"]
    for one in judgements:
        figures = "<br>".join(part for part in (here(one), place(one), behind(one)) if part) or "-"
        cells = (one.claim.text, f"{paper_range(one)}, {one.claim.gpu}", figures, f"**{one.verdict}**: {one.reason}")
        lines.append("| " + " | ".join(_cell(text) for text in cells) + " |")
    return "\n".join([*lines, "", NOTE])


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
