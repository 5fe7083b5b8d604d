"""``python -m harness.compare rerun --against WHAT WORDS``: other kernels and these, measured by turns on this GPU.

For what stored rows cannot say: a baseline from another card, another version of the anchor, an alarm that is to be confirmed.
WHAT is a commit or the folder of a checkout. WORDS are those of ``python -m harness``; ``--alarms FILE`` takes them from the
JSON of a comparison. Every round has both builds, so its ratio needs no anchor. Exit codes as in ``harness.compare``; 3 where
there is no GPU.
"""

from __future__ import annotations

import argparse
import json
import shlex
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from harness.cases import Group
from harness.columns import terminal_width
from harness.compare.abba import Build, TurnError, alternate
from harness.compare.builds import tree_of
from harness.compare.power import MOST_ROUNDS, paired_power
from harness.compare.reading import Recording, SideError, from_folder
from harness.compare.rule import Rounds, chances_of, paired
from harness.compare.series import key_of
from harness.compare.settings import Settings, SettingsError, Thresholds, load
from harness.compare.text import terminal
from harness.compare.verdict import EXIT_BAD_DATA, EXIT_NOT_JUDGED, EXIT_USAGE, Comparison, Kind, Numbers, Verdict
from harness.complaint import complain
from harness.config import ConfigError
from harness.machine import Machine, this_machine
from harness.provenance import ROOT
from harness.rows import RowError
from harness.runner import EXIT_INTERRUPTED
from harness.store import new_run_id
from plots.cells import Cell, cells_of
from plots.statistics import median

KERNEL = "fm3"
"""The kernel that the two builds differ in."""
ROUNDS = 80
"""What the self-test asks for, by turns (``harness.compare.self_test``)."""
PLACE = ROOT / "build" / "rerun"
_WORTH_IT = (Kind.REGRESSION, Kind.OTHER_MACHINE, Kind.AMBIGUOUS)


def main(arguments: Sequence[str], machine: Machine | None = None) -> int:
    """Run the command line."""
    options = _parser().parse_intermixed_args(list(arguments))
    here = machine or this_machine()
    if here.gpu is None:
        print("compare: a rerun measures two builds of the CUDA kernels by turns, and torch sees no GPU here", file=sys.stderr)
        return EXIT_NOT_JUDGED
    try:
        settings = load()
        jobs = words_of(options.alarms) if options.alarms else [list(options.words)]
        if not any(jobs):
            raise SideError("nothing to measure: give words such as mask=document seqlen=8192, or --alarms FILE")
        groups, peak = groups_of(jobs, here)
        tree, name = tree_of(options.against, PLACE / "trees")
        folder = PLACE / new_run_id()
        builds = (
            Build(name, tree, folder / "baseline", environment={"FM3_CACHE": str(tree / "build" / "kernels")}),
            Build("this tree", ROOT, folder / "candidate"),
        )
        whole = _measure(builds, groups, options.rounds, peak)
        if not whole and not all(build.has_rows for build in builds):
            return EXIT_INTERRUPTED
        sides = [from_folder(build.results, build.name) for build in builds]
    except (SideError, SettingsError, ConfigError) as error:
        return complain("compare", str(error), EXIT_USAGE)
    except TurnError as error:
        return complain("compare", str(error), EXIT_NOT_JUDGED)
    except RowError as error:
        return complain("compare", str(error), EXIT_BAD_DATA)
    except OSError as error:
        return complain("compare", f"cannot run both builds: {error.filename}: {error.strerror or error}", EXIT_USAGE)
    found = judge(sides[1], sides[0], settings)
    print(terminal(found, every=True, width=terminal_width()), end="")
    return found.exit_code if whole else EXIT_INTERRUPTED


def _measure(builds: tuple[Build, Build], groups: list[Group], rounds: int, peak: float | None) -> bool:
    """Whether it came to its end: an interrupted one leaves the rounds so far."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        alternate(builds, groups, rounds, peak, lambda line: print(line, file=sys.stderr))
    except KeyboardInterrupt:
        print(f"compare: interrupted; the rounds so far are in {builds[0].results.parent}", file=sys.stderr)
        return False
    return True


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m harness.compare rerun",
        description="Measure the kernels of a commit or checkout and those of this tree by turns, on this machine's GPU.",
    )
    parser.add_argument("words", nargs="*", metavar="WORD", help="what to measure, as for python -m harness")
    parser.add_argument(
        "--against", metavar="WHAT", required=True, help="whose kernels are the baseline: a git ref, or a folder"
    )
    parser.add_argument("--alarms", type=Path, metavar="FILE", help="measure the cases of a comparison's JSON that need it")
    parser.add_argument("--rounds", type=_count, default=ROUNDS, metavar="N", help=f"of each ({ROUNDS})")
    return parser


def _count(text: str) -> int:
    if not text.isdecimal() or not 2 <= int(text) <= MOST_ROUNDS:
        raise argparse.ArgumentTypeError(f"{text!r}; allowed: 2 to {MOST_ROUNDS} rounds")
    return int(text)


def words_of(path: Path) -> list[list[str]]:
    """The words that measure again what a comparison could not judge, or found slower: one list a case of this kernel.

    Raises:
        SideError: not the JSON of a comparison, or no such case in it.
    """
    try:
        verdicts = json.loads(path.read_text(encoding="utf-8"))["verdicts"]
        asked = [item for item in verdicts if item["verdict"] in _WORTH_IT and item["case"]["kernel"] == KERNEL]
        lists = [shlex.split(item["command"])[3:] for item in asked]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SideError(f"{path} is not what `python -m harness.compare --json` writes ({error})") from error
    if not lists:
        raise SideError(f"{path} has no case of {KERNEL} that needs a rerun")
    kept = [[word for word in words if not word.startswith("results_dir=")] for words in lists]
    return [list(words) for words in dict.fromkeys(map(tuple, kept))]


def groups_of(jobs: Sequence[Sequence[str]], machine: Machine) -> tuple[list[Group], float | None]:
    """The groups that the words mean, of this kernel alone, and the machine's peak.

    Raises:
        ConfigError: words that mean nothing, or that this machine cannot run.
    """
    from harness.config.compose import load as compose  # Hydra takes a second, and a usage error should not
    from harness.config.resolve import resolve
    from harness.expand import expand

    found: dict[str, Group] = {}
    peak: float | None = None
    for words in jobs:
        config = replace(resolve(compose(list(words)), machine.gpu), kernels=(KERNEL,))
        peak = config.peak_tflops.get(config.dtype)
        for group in expand(config, machine):
            # A case is measured once, however many words ask for it: rounds are those of the rerun.
            alike = replace(group, timing=replace(group.timing, rounds=ROUNDS))
            key = replace(alike, passes=()).to_json()
            passes = (*found[key].passes, *alike.passes) if key in found else alike.passes
            found[key] = replace(alike, passes=tuple(dict.fromkeys(passes)))
    if any(group.team is not None or group.cluster is not None for group in found.values()):
        raise SideError("words that share a sequence between GPUs, or simulate; allowed: kernels of one GPU, cp_degree=1")
    return list(found.values()), peak


def judge(candidate: Recording, baseline: Recording, settings: Settings) -> Comparison:
    """Verdicts from rows that were measured by turns: a round of one is paired with the round of that number of the other.

    Raises:
        RowError: a time that is not ISO 8601.
    """
    ours, theirs = ({key_of(cell.row): cell for cell in cells_of(side.rows)} for side in (candidate, baseline))
    thresholds = settings.thresholds
    both = [key for key in ours if key in theirs and ours[key].ok and theirs[key].ok]
    pairs = [(ours[key], paired(_rounds(ours[key]), _rounds(theirs[key]), thresholds)) for key in both]
    verdicts = []
    for (cell, found), chance in zip(pairs, chances_of([found for _, found in pairs]), strict=True):
        numbers = Numbers(found.ratio, found.limit, chance, found.noise, found.rounds, found.interval(thresholds.certain))
        verdicts.append(_verdict(cell, numbers, found.beyond, len(pairs), thresholds))
    verdicts += [Verdict(Kind.LOST, cell.row, f"{cell.status}: {cell.reason}") for key, cell in ours.items()
                 if not cell.ok and key in theirs and theirs[key].ok]  # fmt: skip
    verdicts += [Verdict(Kind.NEW, cell.row, "no figure of the baseline") for key, cell in ours.items()
                 if cell.ok and not (key in theirs and theirs[key].ok)]  # fmt: skip
    told = {key_of(verdict.row) for verdict in verdicts}
    for key, cell in {**theirs, **ours}.items():
        if key not in told:
            reason = "no round of this tree" if cell.ok else f"neither has a figure: {cell.status}: {cell.reason}"
            verdicts.append(Verdict(Kind.AMBIGUOUS, cell.row, reason))
    notes = ("measured by turns on one machine, each round with both builds", *candidate.notes, *baseline.notes)
    ranked = sorted(verdicts, key=lambda verdict: (list(Kind).index(verdict.kind), verdict.case))
    return Comparison(candidate.label, baseline.label, tuple(ranked), notes, thresholds)


def _rounds(cell: Cell) -> Rounds:
    """Speed a round: 1 / milliseconds."""
    rows = {row["round"]: row for row in cell.rows}
    return Rounds(np.array([1 / median(row["samples_ms"]) for row in rows.values()]), np.array(list(rows), dtype=np.int64))


def _verdict(cell: Cell, numbers: Numbers, beyond: bool, cases: int, thresholds: Thresholds) -> Verdict:
    interval = numbers.interval
    if beyond and numbers.probability < thresholds.probability:
        if numbers.ratio > 1:
            return Verdict(
                Kind.IMPROVED, cell.row, "", numbers, interval is not None and interval.low > 1 + thresholds.least_drop
            )
        certain = interval is not None and interval.high < 1 - thresholds.least_drop
        return Verdict(Kind.REGRESSION, cell.row, "", numbers, certain)
    if (
        abs(numbers.ratio - 1) > numbers.limit
        or paired_power(numbers.noise, numbers.rounds[0], cases, thresholds) < thresholds.power
    ):
        return Verdict(Kind.AMBIGUOUS, cell.row, f"{numbers.rounds[0]} rounds are too few; give --rounds more", numbers)
    return Verdict(Kind.SAME, cell.row, "", numbers)
