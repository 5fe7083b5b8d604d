"""The bar of a run on a terminal of any width."""

from __future__ import annotations

import io
import sys

import pytest
from rich.console import Console

from harness.progress import Display


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("width", [60, 80, 200])
def test_a_long_title_leaves_room_for_the_count_and_the_time(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    display = Display(66)
    title = "prefix_lm_document [c] S=131072 B=1 H=32/8 D=128 bfloat16 CP=16"
    display.group(title)
    display.step(6)
    assert display._bar is not None
    page = Console(width=width, file=io.StringIO())
    page.print(display._bar.get_renderable())
    assert isinstance(page.file, io.StringIO)
    shown = page.file.getvalue()
    assert shown.count("\n") == 1 and "6/66" in shown and "left" in shown
    assert shown.startswith(title if width == 200 else title[:10])
