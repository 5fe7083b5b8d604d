"""The report's part about the paper: every claim with its verdict, and to be opened, the cases behind it. Judges nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from harness.claims import figure
from harness.claims.judge import NOT_REPRODUCED, REPRODUCED, VERDICTS, Judgement
from harness.claims.paper import SOURCE
from harness.claims.speeds import Compared
from harness.claims.text import NOTE, behind, evidence, here, paper_range, place, runs, sources
from harness.claims.words import amount
from harness.report.html import Markup, element, fold, inline_svg, join, scrolling, table
from plots.style import length_label

_CLASSES = {REPRODUCED: "chip good", NOT_REPRODUCED: "chip bad"}


def in_one_line(judgements: Sequence[Judgement]) -> Markup:
    """How many claims have which verdict, with a link to the table."""
    counts = Counter(one.verdict for one in judgements)
    words = ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS)
    return join([element("a", f"The claims of {SOURCE}", href="#claims"), f": {words}."])


def claims(judgements: Sequence[Judgement]) -> Markup:
    """The figure, the table, and for every claim with figures the cases behind it."""
    drawn = figure.drawn(judgements)
    picture = element("figure", scrolling(inline_svg(drawn.bare(), "claims", drawn.title), drawn.title))
    lines = []
    for one in judgements:
        verdict = element("span", one.verdict, class_=_CLASSES.get(one.verdict, "chip"))
        parts = [here(one), *(element("small", text) for text in (place(one), behind(one)) if text)]
        shown = join([part for part in parts if part], Markup("<br>")) or "-"
        lines.append(
            [
                one.claim.text,
                join([paper_range(one), element("small", one.claim.gpu)], Markup("<br>")),
                shown,
                join([verdict, element("small", one.reason)], Markup("<br>")),
            ]
        )
    counted = [(one, len(evidence(one))) for one in judgements]
    cases = [fold(f"{one.claim.text}: what is behind it ({count})", _cases(one)) for one, count in counted if count]
    head = ["claim", "paper", "here", "verdict"]
    return element("div", table(head, lines, stacked=True), element("p", NOTE, class_="note"), picture, *cases, class_="card")


def _cases(judgement: Judgement) -> Markup:
    groups = {"forward and backward": judgement.compared} if judgement.compared else judgement.alone
    lines = [_case(judgement, pass_, one) for pass_, found in groups.items() for one in found]
    head = ["mask", "tokens", "GPUs", "pass", "ours over theirs", "95% interval", "how it is known", "cases behind it"]
    told = [f"Runs: {', '.join(runs(judgement))}."]
    told += [f"Published figures: {'; '.join(sources(judgement))}."] if sources(judgement) else []
    return join([table(head, lines, numbers=(1, 2, 4)), *(element("p", text, class_="note") for text in told)])


def _case(judgement: Judgement, pass_: str, one: Compared) -> list[object]:
    mask, tokens, ranks = one.case
    interval = one.ratio.interval
    bounds = f"{amount(judgement.claim, interval.low)} to {amount(judgement.claim, interval.high)}" if interval.known else ""
    ids = ", ".join(sorted({f"{cell['kernel']} {cell['case_id']}" for cell in one.cells}))
    return [
        mask.replace("_", " "),
        length_label(tokens),
        ranks,
        pass_,
        amount(judgement.claim, one.ratio.value),
        bounds,
        one.how,
        element("small", ids),
    ]
