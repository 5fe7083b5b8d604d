"""Why: what explains a drop other than the code, and what is missing where nothing can be said.

Words for verdicts, and the one decision that needs more than figures: whether the machine was slower and not the code.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from harness.compare.rule import Contrast
from harness.compare.series import Key, Series
from harness.compare.settings import Thresholds
from harness.compare.verdict import Numbers, percent
from harness.rows import Row

_THERMAL = 0x8 | 0x20 | 0x40 | 0x80
"""NVML's reasons: hardware slowdown, thermal slowdown by software and hardware, power brake. The power cap (4) is what any
GPU under load shows."""


@dataclass(frozen=True)
class Pair:
    """A case that both sides have on one card, and what the rule says of it."""

    key: Key
    row: Row
    new: Series
    base: Series
    contrast: Contrast
    same_code: bool


def excuse(pair: Pair, numbers: Numbers, thresholds: Thresholds) -> str | None:
    """Why the machine and not the code explains a drop; None when it does not.

    In cycles the drop must be gone. That alone is not enough where the code changed: new code that draws more power lowers the
    clock by itself. Then the machine must show it elsewhere too, by thermal throttling or by the anchor's own clock.

    A clock that was read once high and once low says nothing: a card tells it some 0.1 s late, and of a short round that comes
    after a hot call half of the readings are that call's.
    """
    if numbers.cycles is None or numbers.clock is None or numbers.cycles < 1 - thresholds.least_drop:
        return None
    if numbers.clock > 1 - max(thresholds.clock_drop, *(side.clock_scatter or 0.0 for side in (pair.new, pair.base))):
        return None
    lower = f"the SM clock was {100 * (1 - numbers.clock):.1f}% lower"
    fall = f"{lower}, and in cycles nothing changed ({percent(numbers.cycles - 1)})"
    if pair.new.throttle & ~pair.base.throttle & _THERMAL:
        return f"{fall}; the card throttled for heat or power"
    if pair.same_code:
        return f"{fall}; the code is the same"
    ours, theirs = pair.new.anchor_clock, pair.base.anchor_clock
    if ours and theirs and ours / theirs < 1 - thresholds.clock_drop:
        return f"{fall}; the anchor ran at a lower clock too"
    return None


def own_clock(numbers: Numbers, thresholds: Thresholds) -> str:
    """A lower clock that came with new code: worth a word, no excuse. Empty where the clock did not fall."""
    if numbers.clock is None or numbers.clock > 1 - thresholds.clock_drop:
        return ""
    return f"the SM clock was {100 * (1 - numbers.clock):.1f}% lower in this case alone: the new code may draw more power"


def what_is_missing(numbers: Numbers, pair: Pair, thresholds: Thresholds) -> str:
    """Which rounds there are, and which would be needed."""
    new, base = numbers.rounds
    short = f"{new} new and {base} baseline rounds"
    lost = pair.new.unpaired + pair.base.unpaired
    note = f" ({lost} more have no anchor)" if lost else ""
    noise = "" if math.isnan(numbers.noise) else f" at {100 * numbers.noise:.1f}% noise"
    if numbers.needed is None:
        return f"{short}{note}{noise}: no sensible number of rounds shows {100 * thresholds.visible_drop:g}%"
    wanted = f"{numbers.needed[0]} new and {numbers.needed[1]} baseline rounds"
    if numbers.needed[0] <= new and numbers.needed[1] <= base:
        wanted = f"{2 * new} new rounds to be sure of this {numbers.change}"
    return f"{short}{note}{noise}; needs {wanted}"
