"""Does the alarm ring? Drops injected into stored rows, with the noise that those rows have, through the whole judgement.

``python -m harness.compare --self-test [--against RESULTS]``. Every case of the stored rows gets a baseline and a candidate of
as many rounds as asked, drawn from its own rounds: even ones from even, odd from odd, since their order differs. In one case
of ten the candidate is slower by the injected drop. Nothing is measured: this says what the alarm would do on a machine that
scatters within a sitting as the stored rows do, not how two sittings on one card differ.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import numpy as np

from harness.compare.judge import compare
from harness.compare.reading import Recording, SideError, recording, side
from harness.compare.series import Key, key_of, side_of
from harness.compare.settings import Settings, Thresholds
from harness.compare.verdict import EXIT_BAD_DATA, EXIT_NOT_JUDGED, EXIT_OK, EXIT_REGRESSION, EXIT_USAGE, Kind
from harness.rows import Row, RowError
from plots.statistics import median

DROPS = (0.01, 0.03, 0.05, 0.10)
MUST = {0.03: 0.90, 0.05: 0.99}
"""Share of the injected drops that must be caught."""
MOST_FALSE = 0.005
"""Share of the clean cases that may ring."""
ROUNDS = (20, 40)
"""(new, baseline) rounds at which MUST holds on the committed rows."""
ALSO = ((5, 5), (20, 5), (10, 20), (20, 20))
TRIALS = 10
_SHARE = 0.1
_LEAST = 5
"""Rounds that a stored case must have to say anything about scatter."""


@dataclass
class Outcome:
    """Counts over all trials at one number of rounds."""

    rounds: tuple[int, int]
    injected: dict[float, int] = field(default_factory=lambda: defaultdict(int))
    caught: dict[float, int] = field(default_factory=lambda: defaultdict(int))
    clean: int = 0
    false: int = 0
    ambiguous: int = 0

    def rate(self, drop: float) -> float:
        """Share of the injected drops of a size that rang."""
        return self.caught[drop] / max(1, self.injected[drop])

    @property
    def reached(self) -> bool:
        """Whether the alarm is as good as it must be."""
        return all(self.rate(drop) >= least for drop, least in MUST.items()) and self.false <= MOST_FALSE * self.clean


@dataclass(frozen=True)
class _Source:
    """A stored case: its good rows of one card, oldest first, and how a round's figure scatters round its order's level."""

    rows: tuple[Row, ...]
    levels: tuple[float, float]
    scatter: tuple[np.ndarray, np.ndarray]
    jitter: float

    def draw(self, count: int, generator: np.random.Generator) -> np.ndarray:
        """Milliseconds of ``count`` rounds, from 0 on."""
        found = np.empty(count)
        for parity in (0, 1):
            places = found[parity::2]
            picks = self.scatter[parity][generator.integers(0, len(self.scatter[parity]), len(places))]
            places[:] = self.levels[parity] * np.exp(picks)
        # A little smoothing: five stored rounds would otherwise come again and again to the last digit.
        return found * np.exp(self.jitter * generator.standard_normal(count))


def sources_of(rows: Sequence[Row], settings: Settings) -> list[_Source]:
    """The stored cases that have rounds enough, with their anchors."""
    stored = side_of(rows, settings)
    found = []
    for key in stored.cells:
        for members in stored.cards(key).values():
            if len(members) >= _LEAST and (key in stored.anchor_keys or stored.series(members).anchor is not None):
                found.append(_source(members))
    return found


def _source(rows: Sequence[Row]) -> _Source:
    logs = [np.log([median(row["samples_ms"]) for row in rows if row["round"] % 2 == parity]) for parity in (0, 1)]
    levels = [float(np.mean(values)) for values in logs]
    # Residuals of so few values are too small by sqrt(1 - 1/n).
    scatter = [
        (values - level) * (len(values) / max(1, len(values) - 1)) ** 0.5 for values, level in zip(logs, levels, strict=True)
    ]
    together = np.concatenate(scatter)
    jitter = 0.25 * 1.4826 * float(np.median(np.abs(together)))
    return _Source(tuple(rows), (np.exp(levels[0]), np.exp(levels[1])), (scatter[0], scatter[1]), jitter)


def trial(
    sources: Sequence[_Source],
    rounds: tuple[int, int],
    drop: float,
    settings: Settings,
    generator: np.random.Generator,
    outcome: Outcome,
) -> None:
    """One grid of all cases, one in ten of them slower; counted into ``outcome``."""
    anchors = side_of([row for source in sources for row in source.rows], settings).anchor_keys
    slowed = {key_of(s.rows[0]) for s in sources if generator.random() < _SHARE and key_of(s.rows[0]) not in anchors}

    def drawn(name: str, count: int, slower: Container[Key]) -> Recording:
        grown: list[Row] = []
        for source in sources:
            times = source.draw(count, generator)
            grown += _rows(source, name, times / (1 - drop) if key_of(source.rows[0]) in slower else times)
        return recording(name, grown)

    candidate, baseline = drawn("candidate", rounds[0], slowed), drawn("baseline", rounds[1], ())
    for verdict in compare(candidate, baseline, settings, today=datetime.now(UTC).date()).verdicts:
        rang = verdict.kind in (Kind.REGRESSION, Kind.ENVIRONMENT)
        outcome.ambiguous += verdict.kind is Kind.AMBIGUOUS
        if key_of(verdict.row) in slowed:
            outcome.injected[drop] += 1
            outcome.caught[drop] += rang
        else:
            outcome.clean += 1
            outcome.false += rang


def _rows(source: _Source, name: str, times: np.ndarray) -> Iterator[Row]:
    """Stored rows with other times. Runs stay apart by card, as cases and their anchors were."""
    last = source.rows[-1]
    for number, value in enumerate(times):
        yield {**last, "run_id": f"{name}-{last['gpu_hash']}", "round": number, "samples_ms": [float(value)]}


def self_test(
    rows: Sequence[Row], settings: Settings, rounds: Sequence[tuple[int, int]], trials: int = TRIALS
) -> list[Outcome]:
    """The outcome for every number of rounds. Seeded: the same rows give the same figures."""
    sources = sources_of(rows, settings)
    found = []
    for pair in rounds:
        generator = np.random.default_rng(0)
        outcome = Outcome(pair)
        for _ in range(trials if sources else 0):
            for drop in DROPS:
                trial(sources, pair, drop, settings, generator, outcome)
        found.append(outcome)
    return found


def noise_of(rows: Sequence[Row], settings: Settings) -> np.ndarray:
    """Relative standard deviation over rounds of the ratio to the anchor, a stored case each: what is really seen."""
    stored = side_of(rows, settings)
    found: list[float] = []
    for key in stored.cells:
        if key in stored.anchor_keys:
            continue
        for members in stored.cards(key).values():
            figures = stored.series(members).rounds.figures
            if len(figures) >= _LEAST:
                found.append(float(np.std(figures, ddof=1) / np.mean(figures)))
    return np.array(found)


def table(rows: Sequence[Row], outcomes: Sequence[Outcome], settings: Settings) -> str:
    """The figures as text."""
    noise = 100 * np.quantile(noise_of(rows, settings), [0.1, 0.5, 0.9, 1.0])
    lines = [
        "SIMULATED from stored rows: rounds drawn from the rounds of each case, nothing measured",
        f"noise of a round in {len(noise_of(rows, settings))} stored cases (CV of the ratio to the anchor): "
        f"10% {noise[0]:.2f}%, median {noise[1]:.2f}%, 90% {noise[2]:.2f}%, most {noise[3]:.1f}%",
        "",
        "new/base rounds  " + "  ".join(f"-{100 * drop:g}%".rjust(7) for drop in DROPS) + "  false alarms       ambiguous",
    ]
    for one in outcomes:
        caught = "  ".join(f"{100 * one.rate(drop):6.1f}%" for drop in DROPS)
        share = one.ambiguous / max(1, one.clean + sum(one.injected.values()))
        false = f"{one.false} of {one.clean}"
        lines.append(f"{one.rounds[0]:8d}/{one.rounds[1]:<8d}  {caught}  {false:<17}  {100 * share:7.1f}%")
    return "\n".join(lines)


def main(against: str) -> int:
    """Print the table; exit 0 when ROUNDS reach what must be reached, 1 when not, 3 without rows to draw from."""
    try:
        rows = side(against).rows
    except SideError as error:
        print(f"compare: {error}", file=sys.stderr)
        return EXIT_USAGE
    except RowError as error:
        print(f"compare: {error}", file=sys.stderr)
        return EXIT_BAD_DATA
    settings = Settings(Thresholds())
    if not sources_of(rows, settings):
        print(f"compare: {against} has no case of {_LEAST} rounds with an anchor to draw from", file=sys.stderr)
        return EXIT_NOT_JUDGED
    outcomes = self_test(rows, settings, [*ALSO, ROUNDS])
    print(table(rows, outcomes, settings))
    must = ", ".join(f"{100 * least:g}% of -{100 * drop:g}%" for drop, least in MUST.items())
    asked = f"at {ROUNDS[0]}/{ROUNDS[1]} rounds {must}, false alarms at most {100 * MOST_FALSE:g}%"
    print(f"\n{asked}: {'reached' if outcomes[-1].reached else 'NOT reached'}")
    return EXIT_OK if outcomes[-1].reached else EXIT_REGRESSION
