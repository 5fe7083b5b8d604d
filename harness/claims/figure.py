"""The judged claims as a figure, with the lines behind it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from harness.claims.judge import Judgement
from harness.claims.paper import SOURCE
from harness.claims.text import NOTE, ways
from harness.claims.words import extremes
from plots import claims
from plots.catalogue import Drawn


def lines(judgements: Sequence[Judgement]) -> list[dict[str, Any]]:
    """One line a judgement, with the columns of ``plots.claims``; a single pass stands in where both together have none."""
    found = []
    for one in judgements:
        passes, compared = next(iter([("both", one.compared)] if one.compared else one.alone.items()), ("", ()))
        bounds = [edge.ratio.value for edge in extremes(compared)] if compared else [None, None]
        found.append(
            {
                "claim": one.claim.name,
                "text": one.claim.text,
                "verdict": one.verdict,
                "paper_low": one.claim.low,
                "paper_high": one.claim.high,
                "drawn": one.claim.unit != "share",
                "passes": passes,
                "low": bounds[0],
                "high": bounds[1],
                "cases": len({compared.case for compared in one.compared}),
                "of": len(one.claim.cases) if one.claim.untold is None else 0,
                "machine": one.machine,
                "protocol": one.protocol,
                "reason": one.reason,
            }
        )
    return found


def drawn(judgements: Sequence[Judgement]) -> Drawn:
    """The claims figure, ready to be saved or set into a page."""
    frame = claims.data(lines(judgements))
    machines = sorted({f"{one.machine}, {one.protocol}" for one in judgements if one.machine is not None})
    told = [f"{one.claim.name}: {way}." for one in judgements if (way := ways(one))]
    heading = " · ".join(["MEASURED", *machines] if machines else ["nothing measured yet"])
    caption = "\n".join([heading, *told, NOTE])
    title = f"The claims of {SOURCE}"

    def paint(head: str, below: str) -> Figure:
        return claims.draw(frame, below, title=head)

    return Drawn("", "claims", "claims", title, caption, frame, paint)
