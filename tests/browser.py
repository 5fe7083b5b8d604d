"""Headless Chromium for tests: opens a file, presses keys, asks the page. The DevTools protocol over two pipes.

No driver package: the protocol is JSON messages that end with a zero byte. A test asks for the ``browser`` marker.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
PATIENCE_S = 60.0

# Chromium reads commands from descriptor 3 and writes to 4. The numbers in between are free of both.
_LAUNCH = """
import os, sys
for source, spare in ((int(sys.argv[1]), 60), (int(sys.argv[2]), 61)):
    os.dup2(source, spare)
os.dup2(60, 3), os.dup2(61, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""

_KEYS = {"Tab": 9, "Enter": 13, "ArrowRight": 39, "ArrowDown": 40}


def find() -> str | None:
    """Where Chromium is, or None."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One headless Chromium; ``events`` holds what it reported, oldest first."""

    def __init__(self) -> None:
        path = find()
        assert path is not None
        self._profile = tempfile.TemporaryDirectory()
        their_in, self._out = os.pipe()
        self._in, their_out = os.pipe()
        # The pages are this project's own files, and as root the sandbox does not start.
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe"]
        options += [f"--user-data-dir={self._profile.name}", "about:blank"]
        command = [sys.executable, "-c", _LAUNCH, str(their_in), str(their_out), path, *options]
        self._process = subprocess.Popen(command, pass_fds=(their_in, their_out), stderr=subprocess.DEVNULL)
        os.close(their_in)
        os.close(their_out)
        self._buffer = b""
        self._number = 0
        self.events: list[dict[str, Any]] = []

    def close(self) -> None:
        """Ends it and removes its profile."""
        self._process.kill()
        self._process.wait()
        os.close(self._in)
        os.close(self._out)
        shutil.rmtree(self._profile.name, ignore_errors=True)

    def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """One command of the protocol and its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params} | ({"sessionId": session} if session else {})
        os.write(self._out, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE_S
        while True:
            answer = self._receive(deadline)
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def wait_for(self, method: str) -> None:
        """Until the browser has reported an event of this name."""
        deadline = time.monotonic() + PATIENCE_S
        while not any(event.get("method") == method for event in self.events):
            self.events.append(self._receive(deadline))

    def _receive(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"no answer from the browser within {PATIENCE_S:g} s"
            more = os.read(self._in, 1 << 16)
            assert more, "the browser ended"
            self._buffer += more
        line, _, self._buffer = self._buffer.partition(b"\0")
        found: dict[str, Any] = json.loads(line)
        return found


class Page:
    """A file opened in a tab of ``width`` x ``height`` pixels, in the light or the dark scheme."""

    def __init__(self, browser: Browser, path: Path, *, width: int = 1280, height: int = 900, scheme: str = "light") -> None:
        self._browser = browser
        browser.events.clear()
        target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Log", "Runtime"):
            self._call(f"{domain}.enable")
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        self._call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self._call("Page.navigate", url=path.as_uri())
        browser.wait_for("Page.loadEventFired")

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        return self._browser.call(method, self._session, **params)

    def ask(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        """A key, down and up."""
        common = {"key": key, "code": key, "windowsVirtualKeyCode": _KEYS[key]} | ({"text": "\r"} if key == "Enter" else {})
        self._call("Input.dispatchKeyEvent", type="keyDown", **common)
        self._call("Input.dispatchKeyEvent", type="keyUp", **{name: value for name, value in common.items() if name != "text"})

    def requests(self) -> list[str]:
        """Addresses that the page asked for."""
        return [event["params"]["request"]["url"] for event in self._events("Network.requestWillBeSent")]

    def complaints(self) -> list[str]:
        """Errors and warnings of the browser about the page: blocked content, broken markup, dialogs."""
        told = [event["params"]["entry"]["text"] for event in self._events("Log.entryAdded")]
        return told + [event["method"] for event in self._events("Page.javascriptDialogOpening", "Runtime.exceptionThrown")]

    def _events(self, *methods: str) -> list[dict[str, Any]]:
        return [event for event in self._browser.events if event.get("method") in methods]
