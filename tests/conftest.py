"""Which tests run where: what needs a GPU or a browser is skipped without one, unless ``--require-...`` says that it must be
there."""

from __future__ import annotations

import browser
import pytest
import torch


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--require-gpu", action="store_true", help="a GPU test that cannot run here fails instead of being skipped"
    )
    parser.addoption(
        "--require-browser", action="store_true", help="a browser test that cannot run here fails instead of being skipped"
    )
    parser.addoption("--slow", action="store_true", help="run the tests marked slow too")


def missing_hardware(item: pytest.Item) -> str | None:
    """Why this test cannot run here, or None."""
    count = torch.cuda.device_count()
    if any(item.get_closest_marker(name) for name in ("gpu", "hopper", "multigpu")) and count == 0:
        return "needs an NVIDIA GPU"
    if item.get_closest_marker("hopper") and torch.cuda.get_device_capability() != (9, 0):
        return "needs a Hopper GPU"
    if item.get_closest_marker("multigpu") and count < 2:
        return f"needs two GPUs, found {count}"
    return None


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("slow") and not item.config.getoption("--slow"):
        pytest.skip("slow; run with --slow")
    no_browser = "needs Chromium" if item.get_closest_marker("browser") and browser.find() is None else None
    for option, reason in (("--require-gpu", missing_hardware(item)), ("--require-browser", no_browser)):
        if reason is not None:
            if item.config.getoption(option):
                pytest.fail(f"{option}: {reason}")
            pytest.skip(reason)
