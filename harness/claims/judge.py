"""The verdicts: what each claim of the paper is worth on the rows at hand.

A claim states a range of gains. It is *reproduced* when every case of it was compared, none gains less than the lower
end and one gains at least the upper end. One case below the lower end is enough for *not reproduced*, whatever is missing,
and so is a whole set of cases that never reaches the upper end. Anything else is *not run here*, with the reason. Values
decide, not intervals: nobody gets the benefit of the doubt. Only measured rows of this project's kernel count.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.claims.anchor import Evidence
from harness.claims.paper import CLAIMS, Claim, Who
from harness.claims.speeds import WAYS, Compared, compare
from harness.claims.words import amount, extremes, summed_up, where
from masks.families import FAMILIES
from masks.paper_lists import VARIANTS
from plots.captions import machine
from plots.cells import Cell
from plots.published import Published
from plots.style import plain, title_of

REPRODUCED, NOT_REPRODUCED, NOT_RUN = "reproduced", "not reproduced", "not run here"
VERDICTS = (REPRODUCED, NOT_REPRODUCED, NOT_RUN)

TOGETHER = (("both",), ("forward", "backward"))
"""The two ways in which forward and backward together are measured: as one call, or one after the other."""

_PAPERS_SHAPE = {"source": "measured", "device": "cuda", "dtype": "bfloat16", "head_dim": 128, "deterministic": False}
_PAPERS_LISTS = {None, *VARIANTS}
_MACHINE = ("gpu", "power_limit", "protocol", "l2", "heads", "kv_heads")


@dataclass(frozen=True)
class Judgement:
    """One claim on one machine and protocol; ``machine`` is None where this project's kernel has no rows for it.

    ``compared``: forward and backward together. ``alone``: each pass by itself, which decides nothing.
    """

    claim: Claim
    verdict: str
    reason: str
    machine: str | None = None
    protocol: str | None = None
    compared: tuple[Compared, ...] = ()
    alone: dict[str, tuple[Compared, ...]] = field(default_factory=dict)

    @property
    def elsewhere(self) -> bool:
        """Whether the paper measured on another GPU than these rows."""
        return self.machine is not None and not self.machine.startswith(self.claim.gpu)


def judge(cells: Sequence[Cell], published: Sequence[Published] = (), claims: Sequence[Claim] = CLAIMS) -> list[Judgement]:
    """Every claim, once for each machine and protocol with rows for it, in the claims' order."""
    groups: dict[tuple[Any, ...], list[Cell]] = defaultdict(list)
    for cell in cells:
        if _is_the_papers(cell):
            groups[tuple(cell[name] for name in _MACHINE)].append(cell)
    found = []
    for claim in claims:
        if claim.untold is not None:
            found.append(Judgement(claim, NOT_RUN, claim.untold))
            continue
        judged = [_on_machine(claim, Evidence(members, published)) for members in groups.values() if _asked(claim, members)]
        name = title_of(claim.ours.kernel)
        sharing = " sharing a sequence" if claim.shared else ""
        found += judged or [Judgement(claim, NOT_RUN, f"no measured rows of {name}{sharing} on a GPU in the paper's shape")]
    return found


def _is_the_papers(cell: Cell) -> bool:
    """Whether it was measured, in the paper's shape, on a mask of the paper: parameters at their defaults, its documents."""
    defaults = FAMILIES[cell["mask"]].params if cell["mask"] in FAMILIES else {}
    return (
        all(cell[name] == value for name, value in _PAPERS_SHAPE.items())
        and all(defaults.get(name) == value for name, value in cell["mask_params"].items())
        and cell["mask_variant"] in _PAPERS_LISTS
    )


def _asked(claim: Claim, cells: Sequence[Cell]) -> bool:
    ours = {"kernel": claim.ours.kernel, "strategy": claim.ours.strategy}
    return any(cell.ok and all(cell[name] == value for name, value in ours.items()) for cell in cells)


def _on_machine(claim: Claim, evidence: Evidence) -> Judgement:
    compared = _compare(claim, evidence, TOGETHER)
    alone = {pass_: found for pass_ in ("forward", "backward") if (found := _compare(claim, evidence, ((pass_,),)))}
    verdict, reason = _verdict(claim, compared) if compared else (NOT_RUN, _why_nothing(claim, evidence, alone))
    one = evidence.cells[0]
    protocol = f"{one['protocol']}, {plain(one['l2'])} L2"
    return Judgement(claim, verdict, reason, machine(one), protocol, compared, alone)


def _compare(claim: Claim, evidence: Evidence, ways: Sequence[Sequence[str]]) -> tuple[Compared, ...]:
    """The cases that can be compared, each by the best of the ways to know it."""
    assert claim.rival is not None  # a claim without a rival is one that no row can answer
    found: list[Compared] = []
    for case in claim.cases:
        options = [compare(evidence, claim.ours, claim.rival, case, passes) for passes in ways]
        known = sorted((some for some in options if some), key=_way)
        found += known[0] if known else []
    return tuple(found)


def _way(compared: Sequence[Compared]) -> int:
    return WAYS.index(compared[0].how)


def _verdict(claim: Claim, compared: Sequence[Compared]) -> tuple[str, str]:
    least, most = extremes(compared)
    known = {one.case for one in compared}
    missing = [case for case in claim.cases if case not in known]
    if least.ratio.value < claim.low:
        below = {one.case for one in compared if one.ratio.value < claim.low}
        return NOT_REPRODUCED, (
            f"{len(below)} of {len(known)} cases gain less than the paper's least, {amount(claim, claim.low)}; "
            f"the least is {where(claim, least)}"
        )
    if missing:
        count = f"{len(missing)} of {len(claim.cases)} cases"
        return NOT_RUN, f"{count} could not be compared ({summed_up(claim, missing)}); the others keep the claim"
    if most.ratio.value < claim.high:
        return NOT_REPRODUCED, f"no case gains the paper's most, {amount(claim, claim.high)}; the most is {where(claim, most)}"
    return REPRODUCED, f"every case gains at least {amount(claim, claim.low)}, the most is {where(claim, most)}"


def _why_nothing(claim: Claim, evidence: Evidence, alone: dict[str, tuple[Compared, ...]]) -> str:
    """Why no case has both passes of both sides."""
    assert claim.rival is not None
    for who in (claim.ours, claim.rival):
        mine = [c for c in evidence.cells if c.ok and (c["kernel"], c["strategy"]) == (who.kernel, who.strategy)]
        if not mine and who.published is None:
            return f"no measured rows of {_name(who)}"
        passes = {cell["pass"] for cell in mine}
        if mine and not ("both" in passes or {"forward", "backward"} <= passes):
            return f"{_name(who)} has rows of the {' and '.join(sorted(passes))} pass alone"
    if alone:
        return "no case has both passes"
    return f"no figures of {_name(claim.rival)} that could be compared with these rows"


def _name(who: Who) -> str:
    return title_of(who.kernel) + (f" with strategy {who.strategy}" if who.strategy else "")
