"""Rows that were never measured, with the scatter of rows that were: what the alarm is tried on.

Every stored case is drawn from its own rounds: the first from first ones, since a card may still be warming up in it (up to 29%
on the committed H200 rows); of the others even ones from even, odd from odd, since their order differs. Such rows are for
``harness.compare.self_test`` and its tests alone; nothing stores them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from harness.compare.series import Key, key_of, side_of
from harness.compare.settings import Settings
from harness.rows import Row
from plots.statistics import ROUNDS_TO_BE_SURE, median


@dataclass(frozen=True)
class Source:
    """A stored case: its good rows of one card, oldest first, and how a round's figure scatters round its order's level; the
    first round's figures as they are."""

    rows: tuple[Row, ...]
    levels: tuple[float, float]
    scatter: tuple[np.ndarray, np.ndarray]
    first: np.ndarray
    jitter: float

    @property
    def key(self) -> Key:
        """Which case it is."""
        return key_of(self.rows[0])

    def draw(self, count: int, generator: np.random.Generator) -> np.ndarray:
        """Milliseconds of ``count`` rounds, from 0 on."""
        found = np.empty(count)
        for parity in (0, 1):
            places = found[parity::2]
            picks = self.scatter[parity][generator.integers(0, len(self.scatter[parity]), len(places))]
            places[:] = self.levels[parity] * np.exp(picks)
        if count and len(self.first):
            found[0] = generator.choice(self.first)
        # A little smoothing: five stored rounds would otherwise come again and again to the last digit.
        return found * np.exp(self.jitter * generator.standard_normal(count))


def sources_of(rows: Sequence[Row], settings: Settings) -> list[Source]:
    """The stored cases that have rounds enough, with an anchor that has."""
    stored = side_of(rows, settings)
    long = [
        (key, members) for key in stored.cells for members in stored.cards(key).values() if len(members) >= ROUNDS_TO_BE_SURE
    ]
    drawn = side_of([row for _, members in long for row in members], settings)
    return [
        source_of(members) for key, members in long if key in stored.anchor_keys or drawn.series(members).anchor is not None
    ]


def source_of(rows: Sequence[Row]) -> Source:
    """What the rounds of one case on one card say of its scatter."""
    times = [(row["round"], median(row["samples_ms"])) for row in rows]
    later = [(number, time) for number, time in times if number > 0]
    halves = [[time for number, time in later if number % 2 == parity] for parity in (0, 1)]
    # A case with rounds of one order only, or none but first ones: all of them stand for both.
    logs = [np.log(half or [time for _, time in later] or [time for _, time in times]) for half in halves]
    levels = [float(np.mean(values)) for values in logs]
    # Residuals of so few values are too small by sqrt(1 - 1/n).
    scatter = [
        (values - level) * (len(values) / max(1, len(values) - 1)) ** 0.5 for values, level in zip(logs, levels, strict=True)
    ]
    together = np.concatenate(scatter)
    jitter = 0.25 * 1.4826 * float(np.median(np.abs(together)))
    first = np.array([time for number, time in times if number == 0])
    return Source(tuple(rows), (np.exp(levels[0]), np.exp(levels[1])), (scatter[0], scatter[1]), first, jitter)


def rows_of(source: Source, name: str, times: np.ndarray) -> Iterator[Row]:
    """Stored rows with other times. Runs stay apart by card, as cases and their anchors were."""
    last = source.rows[-1]
    card = last["gpu_hash"] or last["gpu"]
    for number, value in enumerate(times):
        yield {**last, "run_id": f"{name}-{card}", "round": number, "samples_ms": [float(value)]}


def noise_of(rows: Sequence[Row], settings: Settings) -> np.ndarray:
    """Relative standard deviation over rounds of the ratio to the anchor, a stored case each: what is really seen."""
    stored = side_of(rows, settings)
    found: list[float] = []
    for key in stored.cells:
        if key in stored.anchor_keys:
            continue
        for members in stored.cards(key).values():
            figures = stored.series(members).rounds.figures
            if len(figures) >= ROUNDS_TO_BE_SURE:
                found.append(float(np.std(figures, ddof=1) / np.mean(figures)))
    return np.array(found)
