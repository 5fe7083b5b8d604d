"""``python -m harness.compare [CANDIDATE] [--against WHAT]``: did anything get slower?

Exit codes: 0 nothing did, and it would have shown; 1 something did, or was lost; 2 the question was wrong; 3 no baseline, or
rounds too few; 4 rows that do not follow the schema or contradict each other. ``docs/alarms.md`` says how a verdict is found.

``python -m harness.compare rerun ...`` measures two builds of the kernel beside each other, on a machine with a GPU.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from harness import outputs
from harness.columns import terminal_width
from harness.compare import machine_readable, text
from harness.compare.judge import compare
from harness.compare.reading import RESULTS, Recording, SideError, collector_at_rest, from_folder, side
from harness.compare.settings import DEFAULT, Settings, SettingsError, load
from harness.compare.verdict import EXIT_BAD_DATA, EXIT_NOT_JUDGED, EXIT_USAGE, Comparison
from harness.complaint import complain
from harness.provenance import ROOT
from harness.rows import RowError
from plots.folder import add_results_dir, no_rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["rerun"]:
        from harness.compare.rerun import main as rerun

        return rerun(words[1:])
    options = _parser().parse_args(words)
    if options.against == "":
        return complain("compare", "--against is empty; name a git ref or a results folder, or leave it out", EXIT_USAGE)
    try:
        settings = load(options.settings)
        if options.self_test:
            from harness.compare.self_test import main as self_test

            return self_test(options.against or str(ROOT / RESULTS), settings)
        written = {f"--{name}": getattr(options, name) for name in ("json", "junit", "markdown")}
        outputs.check(written, read={"--settings": options.settings})
        with collector_at_rest():
            return _compare(options, settings)
    except (SideError, SettingsError, outputs.OutputError) as error:
        return complain("compare", str(error), EXIT_USAGE)
    except RowError as error:
        return complain("compare", str(error), EXIT_BAD_DATA)
    except OSError as error:
        return complain("compare", f"cannot write {error.filename}: {error.strerror}", EXIT_USAGE)


def _compare(options: argparse.Namespace, settings: Settings) -> int:
    baseline = side(options.against) if options.against else from_folder(ROOT / RESULTS, "the committed baseline")
    candidate = from_folder(options.candidate)
    for one in (candidate, baseline):
        if not one.rows:
            return complain("compare", _nothing(one, one is baseline), EXIT_NOT_JUDGED if one is baseline else EXIT_USAGE)
    found = compare(candidate, baseline, settings, whole=options.whole, today=datetime.now(UTC).date())
    _write(found, options)
    return found.exit_code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m harness.compare",
        description="Compare recorded rows with a baseline: did anything get slower?",
        epilog="exit codes: 0 no, 1 yes (or a case was lost), 2 wrong question, 3 no baseline or too few rounds, 4 bad rows. "
        "`python -m harness.compare rerun --help`: two builds of the kernel beside each other.",
    )
    add_results_dir(parser, "candidate")
    parser.add_argument("--against", metavar="WHAT", help="a results folder or a git ref (the committed rows of this checkout)")
    parser.add_argument("--whole", action="store_true", help="every case of the baseline on this machine must be there")
    parser.add_argument("--settings", type=Path, default=DEFAULT, help="thresholds, acknowledgements (conf/alarms.yaml)")
    parser.add_argument("--all", action="store_true", help="list the cases where nothing happened too")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every verdict as JSON")
    parser.add_argument("--junit", type=Path, metavar="FILE", help="write JUnit XML")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="add Markdown to a file, such as $GITHUB_STEP_SUMMARY")
    parser.add_argument("--annotations", action="store_true", help="print GitHub's annotations too")
    parser.add_argument("--self-test", action="store_true", help="inject drops into stored rows: how many are caught?")
    return parser


def _nothing(empty: Recording, baseline: bool) -> str:
    if baseline:
        return f"no baseline: {empty.label} has no rows"
    return no_rows(empty.label)


def _write(found: Comparison, options: argparse.Namespace) -> None:
    files: dict[Path, str] = {}
    if options.json:
        files[options.json] = machine_readable.as_json(found)
    if options.junit:
        files[options.junit] = machine_readable.junit(found)
    if options.markdown:
        there = options.markdown.is_file()
        before = options.markdown.read_text(encoding="utf-8", errors="surrogateescape") if there else ""
        files[options.markdown] = before + text.markdown(found)
    outputs.write(files)
    if options.annotations:
        print(machine_readable.github(found), end="")
    print(text.terminal(found, options.all, terminal_width()), end="")


if __name__ == "__main__":
    sys.exit(main())
