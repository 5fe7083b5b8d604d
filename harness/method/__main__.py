"""``python -m harness.method``: the experiments of docs/method.md on this GPU, readings as CSV, the table on the terminal.

Exit codes: 0, 1 a kernel gave a wrong result, 2 the question was wrong, 3 there is no GPU.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from harness import outputs
from harness.backends import BACKENDS
from harness.complaint import complain
from harness.device import device_facts
from harness.gate import Incorrect
from harness.machine import Machine, this_machine
from harness.method.bench import Bench
from harness.method.experiments import PLAN
from harness.method.readings import Book, Place, read
from harness.method.table import table
from harness.provenance import git_state

OK, WRONG, USAGE, NO_GPU = 0, 1, 2, 3


def main(arguments: Sequence[str] | None = None, machine: Machine | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m harness.method",
        description="What the rules of measuring are worth on this GPU: four minutes of experiments (docs/method.md).",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the readings, CSV; must not exist")
    options = parser.parse_args(arguments)
    if options.out.suffix == ".gz":
        return complain("method", f"--out={options.out} is written as text; allowed: a name without .gz", USAGE)
    if (machine or this_machine()).gpu is None:
        return complain("method", "the experiments are about a GPU's clocks and cache, and torch sees no GPU here", NO_GPU)
    try:
        outputs.check({"--out": options.out}, {})
        book = Book(options.out, place_of("cuda"))
    except FileExistsError:
        return complain("method", f"--out={options.out} is there already; allowed: a new file", USAGE)
    except (outputs.OutputError, OSError) as error:
        return complain("method", str(error), USAGE)
    try:
        measure(Bench("cuda"), book)
    except Incorrect as error:
        return complain("method", f"a wrong result, so nothing more is timed: {error}", WRONG)
    except OSError as error:
        return complain("method", f"cannot write {options.out}: {error.strerror or error}; what it holds is kept", USAGE)
    finally:
        with suppress(OSError):  # told above, or of lines that are on the disk already
            book.close()
    print(table(*read(options.out)))
    return OK


def measure(bench: Bench, book: Book) -> None:
    """All experiments, written down as they are taken.

    Raises:
        Incorrect: a kernel gave a wrong result.
    """
    for plan in PLAN:
        print(f"{plan.title}: {plan.settings[0]} / {plan.settings[1]}", file=sys.stderr)
        for readings in plan.run(plan, bench):
            book.add(readings)


def place_of(device: str) -> Place:
    """This machine, now."""
    facts, now = device_facts(device), datetime.now(UTC).isoformat(timespec="seconds")
    kernels = dict.fromkeys(kernel for plan in PLAN for kernel, _, _ in plan.wanted)
    versions = (f"{name}: {BACKENDS[name].probe(device).version}" for name in kernels)
    return Place(facts.name, facts.uuid_hash, facts.power_limit, "; ".join(versions), git_state()[0], now)


if __name__ == "__main__":
    sys.exit(main())
