"""Figures and lists of cases in words: +45% (document, 32K), all at 4K and 128K. Decides nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from harness.claims.paper import Case, Claim
from harness.claims.speeds import Compared
from plots.style import length_label, times


def extremes(compared: Sequence[Compared]) -> tuple[Compared, Compared]:
    """The case that gains least and the one that gains most."""
    ordered = sorted(compared, key=lambda one: one.ratio.value)
    return ordered[0], ordered[-1]


def amount(claim: Claim, value: float) -> str:
    """A figure in the paper's words: +45%, 1.80 times or 31%."""
    if claim.unit == "gain":
        return f"{100 * (value - 1):+.1f}%".replace(".0%", "%")
    return f"{100 * value:.0f}%" if claim.unit == "share" else times(value)


def span(claim: Claim, compared: Sequence[Compared]) -> str:
    """The range of the cases compared, in the paper's words."""
    least, most = extremes(compared)
    return f"{amount(claim, least.ratio.value)} to {amount(claim, most.ratio.value)}"


def where(claim: Claim, one: Compared) -> str:
    """A figure and its case."""
    mask, tokens, ranks = one.case
    shared = f" on {ranks} GPUs" if ranks > 1 else ""
    return f"{amount(claim, one.ratio.value)} ({mask.replace('_', ' ')}, {length_label(tokens)}{shared})"


def summed_up(claim: Claim, missing: Sequence[Case]) -> str:
    """Missing cases in few words: whole lengths first, then the masks that lack some of the others."""
    every = {tokens for _, tokens, _ in claim.cases}
    masks = list(dict.fromkeys(mask for mask, _, _ in claim.cases))
    lacking = {tokens: [mask for mask, other, _ in missing if other == tokens] for tokens in sorted(every)}
    whole = [tokens for tokens, found in lacking.items() if len(found) == len(masks)]
    parts = [f"all at {listed(map(length_label, whole))}"] if whole else []
    lengths: dict[tuple[int, ...], list[str]] = defaultdict(list)
    for mask in masks:
        lengths[tuple(tokens for tokens in lacking if tokens not in whole and mask in lacking[tokens])].append(mask)
    for places, found in lengths.items():
        if places:
            parts.append(f"{listed(mask.replace('_', ' ') for mask in found)} at {listed(map(length_label, places))}")
    return "; ".join(parts)


def listed(words: Iterable[str]) -> str:
    """a, b and c."""
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last
