"""The parent's side of one worker process: send a group, read its reports with a deadline, end it for good."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

from harness.provenance import ROOT
from harness.resume import Planned

WORKER = (sys.executable, "-m", "harness.worker")


class ChildDied(Exception):
    """The worker ended in the middle of a group; the message says how."""


class ChildHung(Exception):
    """The worker reported nothing for longer than the group's timeout."""


class Child:
    """One worker process. It serves one group after another until it fails or is closed."""

    def __init__(self, command: tuple[str, ...] = WORKER) -> None:
        read_end, write_end = os.pipe()
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        self._process = subprocess.Popen(
            [*command, str(write_end)],
            stdin=subprocess.PIPE,
            # What libraries print goes to standard error: the harness' own output stays clean.
            stdout=2,
            pass_fds=[write_end],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            text=True,
        )
        os.close(write_end)
        self._pipe = read_end
        self._buffer = b""
        self._selector = selectors.DefaultSelector()
        self._selector.register(read_end, selectors.EVENT_READ)

    def reports(self, planned: Planned, by_turns: bool = False) -> Iterator[dict[str, Any]]:
        """Send what is to be done and yield the worker's reports up to and without ``group_done``.

        by_turns: it reports a ``turn`` before every step, and waits for ``go``.

        Raises:
            ChildDied: the process ended. ChildHung: no report for ``timing.timeout_s`` seconds.
        """
        group = planned.group
        self._say(json.dumps({"group": json.loads(group.to_json()), "todo": sorted(planned.todo), "by_turns": by_turns}))
        while True:
            report = json.loads(self._line(group.timing.timeout_s))
            if report["event"] == "group_done":
                return
            yield report

    def go(self) -> None:
        """It is its turn.

        Raises:
            ChildDied: the process ended.
        """
        self._say("")

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise ChildDied(self._how_it_ended()) from error

    def _line(self, timeout_s: float) -> bytes:
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not self._selector.select(left):
                raise ChildHung(f"no answer for {timeout_s:g} s")
            data = os.read(self._pipe, 1 << 16)
            if not data:
                raise ChildDied(self._how_it_ended())
            self._buffer += data
        line, self._buffer = self._buffer.split(b"\n", 1)
        return line

    def _how_it_ended(self) -> str:
        try:
            code = self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            return "the worker closed its pipe but did not end"
        if code == -9:
            return "the worker was killed (signal 9, often the system running out of memory)"
        return f"the worker died of signal {-code}" if code < 0 else f"the worker exited with code {code}"

    def close(self) -> None:
        """End the process, kindly when it is idle and by force when it does not react."""
        try:
            if self._process.stdin is not None:
                self._process.stdin.close()
            self._process.wait(timeout=5)
        except (OSError, subprocess.TimeoutExpired):
            self.kill()
        self._release()

    def kill(self) -> None:
        """End the process at once."""
        self._process.kill()
        self._process.wait()
        self._release()

    def _release(self) -> None:
        if self._pipe >= 0:
            self._selector.close()
            os.close(self._pipe)
            self._pipe = -1
