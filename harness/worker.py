"""The child process: takes groups one by one, and has them measured or simulated.

Groups arrive as JSON lines on standard input; reports leave as JSON lines through a pipe of their own, so nothing that a
library prints can be mistaken for one. The child never writes a file of results: whatever happens to it, the parent has
every round that was reported. It dies with its parent.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

import torch

from harness.cases import Group
from harness.measure import Report, Turn, at_once, run_group
from harness.resume import Planned
from harness.team import die_with_parent, run_in_team
from harness.timing import Timer


def serve(work: Iterator[tuple[Planned, Turn]], report: Report) -> None:
    """Run what is asked, group by group."""
    for planned, turn in work:
        group = planned.group
        if group.cluster is not None:
            from harness.simulate.run import simulate_group  # here, since most runs need none of it

            simulate_group(planned, report)
        elif group.team is None:
            run_group(planned, Timer(group.device, group.timing), report, turn)
        else:
            run_in_team(planned, report)
        report(event="group_done")
        if "torch._dynamo" in sys.modules:
            torch._dynamo.reset()  # or the recompile limit would send later groups down a slow path
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def main() -> None:
    """Serve groups from standard input until it closes; ``sys.argv[1]`` is the number of the report pipe."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal; the parent decides
    torch.backends.cuda.matmul.allow_tf32 = False  # the oracle's float32 is float32
    with os.fdopen(int(sys.argv[1]), "w", buffering=1) as pipe:

        def report(**event: Any) -> None:
            pipe.write(json.dumps(event) + "\n")

        def ask(step: int) -> None:
            report(event="turn", step=step)
            if not sys.stdin.readline():
                sys.exit(0)

        def work() -> Iterator[tuple[Planned, Turn]]:
            for line in iter(sys.stdin.readline, ""):
                message = json.loads(line)
                todo = frozenset((int(number), str(kernel), str(pass_)) for number, kernel, pass_ in message["todo"])
                yield Planned(Group.from_json(json.dumps(message["group"])), todo), ask if message["by_turns"] else at_once

        serve(work(), report)


if __name__ == "__main__":
    main()
