"""Where a series of medians, one a commit, steps to another level. A note for a history figure, not an alarm.

The rule: of all ways to cut the series in two, each part holding at least SIDE commits, take the one after which the
logarithms of the medians lie nearest to the means of their parts. It is a step when the means differ by at least LEAST and by
at least FACTOR standard errors, the noise taken from what is left around the means. Both parts are then searched again.

The unit is the commit and not the round: rounds of one sitting share a card and its temperature, and the noise that
matters is that between sittings. So a series shorter than ENOUGH commits has no steps, whatever it looks like. A level
that is left and found again within a few commits may be missed; alarms (``harness.compare``) look at pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

ENOUGH = 8
"""Commits: with fewer, six standard errors are too often reached by chance."""
SIDE = 2
"""Commits on each side: one commit by itself cannot be told from a bad sitting."""
LEAST = 0.02
"""Smallest step that is told; sittings of one card differ by about one percent."""
FACTOR = 6.0
"""Standard errors. Student's t with 6 degrees of freedom, the fewest there are, passes 6 once in 1000 cuts."""


class Step(NamedTuple):
    """``first``: index of the first point of the new level. ``ratio``: new level over old one."""

    first: int
    ratio: float


def steps(medians: Sequence[float]) -> list[Step]:
    """The steps of a series, in its order.

    Args:
        medians: positive, one a commit, oldest first.

    Raises:
        ValueError: a median that is not a positive number.
    """
    values = np.asarray(medians, dtype=np.float64)
    if not (np.isfinite(values).all() and (values > 0).all()):
        raise ValueError(f"medians must be positive numbers, found {list(medians)}")
    logs = np.log(values)
    cuts = _cuts(logs, 0)
    levels = [float(part.mean()) for part in np.split(logs, cuts)] if cuts else []
    return [Step(cut, float(np.exp(new - old))) for cut, (old, new) in zip(cuts, pairwise(levels), strict=True)]


def _cuts(logs: np.ndarray, start: int) -> list[int]:
    """Indices at which a new level begins, rising; ``start``: the index of the first value in the whole series."""
    count = len(logs)
    if count < ENOUGH:
        return []
    spread, cut = min((_left_over(logs, cut), cut) for cut in range(SIDE, count - SIDE + 1))
    noise = np.sqrt(spread / (count - 2) * (1 / cut + 1 / (count - cut)))
    distance = abs(logs[:cut].mean() - logs[cut:].mean())
    if distance < max(np.log1p(LEAST), FACTOR * noise):
        return []
    return [*_cuts(logs[:cut], start), start + cut, *_cuts(logs[cut:], start + cut)]


def _left_over(logs: np.ndarray, cut: int) -> float:
    """Sum of squares around the means of both parts."""
    return float(sum(((part - part.mean()) ** 2).sum() for part in (logs[:cut], logs[cut:])))
