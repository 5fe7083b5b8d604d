"""One turn of one build: the harness' runner on groups that arrive as JSON on standard input. A process of ``abba``.

``PYTHONPATH`` says which build: the kernels and the harness below it are what runs. Measures by ``harness.runner``, which
takes up where the last turn stopped.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.cases import Group
from harness.child import WORKER
from harness.runner import RunOptions, run


def order(groups: Sequence[Group], results: Path, peak_tflops: float | None) -> str:
    """What a turn reads."""
    plain = [json.loads(group.to_json()) for group in groups]
    return json.dumps({"groups": plain, "results": str(results), "peak_tflops": peak_tflops})


def take(said: Mapping[str, Any], worker: tuple[str, ...] = WORKER) -> int:
    """Run it; the runner's exit code."""
    groups = [Group.from_json(json.dumps(group)) for group in said["groups"]]
    return run(groups, RunOptions(Path(said["results"]), peak_tflops=said["peak_tflops"], worker=worker))


if __name__ == "__main__":
    sys.exit(take(json.load(sys.stdin)))
