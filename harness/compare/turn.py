"""One build's process: the harness' runner on groups that arrive as JSON on standard input, a round at a time. Of ``abba``.

``PYTHONPATH`` says which build: the kernels and the harness below it are what runs. Before every step it writes which one to
the pipe whose number is its argument, and waits for a line.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from harness.cases import Group
from harness.child import WORKER
from harness.runner import EXIT_FAILED, EXIT_INTERRUPTED, RunOptions, run


def order(groups: Sequence[Group], results: Path, peak_tflops: float | None) -> str:
    """The first line that it reads."""
    plain = [json.loads(group.to_json()) for group in groups]
    return json.dumps({"groups": plain, "results": str(results), "peak_tflops": peak_tflops})


SOME_FAILED = 10
"""The runner's exit code 1, which is also Python's for an error that nobody caught."""


def serve(worker: tuple[str, ...] = WORKER) -> int:
    """Run what standard input asks for; the runner's exit code, ``SOME_FAILED`` in place of its 1."""
    said = json.loads(sys.stdin.readline())
    groups = [Group.from_json(json.dumps(group)) for group in said["groups"]]
    with os.fdopen(int(sys.argv[1]), "w", buffering=1) as pipe:

        def turn(group: int, step: int) -> None:
            pipe.write(json.dumps([group, step]) + "\n")
            if not sys.stdin.readline():
                raise KeyboardInterrupt

        options = RunOptions(Path(said["results"]), peak_tflops=said["peak_tflops"], worker=worker, turn=turn)
        try:
            code = run(groups, options)
        except BrokenPipeError:  # who asked is gone
            os._exit(EXIT_INTERRUPTED)
    return SOME_FAILED if code == EXIT_FAILED else code


if __name__ == "__main__":
    sys.exit(serve())
