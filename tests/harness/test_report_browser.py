"""The report as a reader sees it, in headless Chromium: from the disk, on a phone, by keyboard, and with hostile rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser, Page
from row_factory import make_rounds, make_row, write_rows

from harness.report.__main__ import main
from harness.rows import Row

pytestmark = pytest.mark.browser

HOSTILE = (
    '<script>window.hurt=1</script><img src=http://127.0.0.1:9/x onerror=window.hurt=1>" onfocus="window.hurt=1" autofocus x=\''
)

OPEN_ALL = "document.querySelectorAll('details').forEach(one => one.open = true)"
VISIBLE = """[...document.querySelectorAll('figure svg')].filter(svg => {
    const box = svg.getBoundingClientRect(); return svg.checkVisibility() && box.width > 50 && box.height > 50 }).length"""
TARGETS = "[...document.querySelectorAll('nav a')].map(a => document.querySelector(a.getAttribute('href')) !== null)"
SMALLEST = """Math.min(...[...document.querySelectorAll('p, li, td, summary, a')]
    .map(element => parseFloat(getComputedStyle(element).fontSize)))"""
REACHABLE = "[...document.querySelectorAll('a, summary, .scroll')].filter(element => element.tabIndex === 0).length"


def rows() -> list[Row]:
    """Two commits, two lengths, three kernels on the H200, one failure: every section of the report has something to say."""
    found = []
    for commit in range(2):
        for seqlen in (4096, 8192):
            for mask in ("full", "document"):
                for kernel, ms in (("fm3", 1.0), ("flex", 1.4)):
                    common = {"gpu": "NVIDIA H200", "git_sha": str(commit) * 40, "run_id": f"run-{commit}", "head_dim": 128}
                    found += make_rounds(ms, kernel=kernel, mask=mask, seqlen=seqlen, noise=commit, **common)
    found.append(make_row(kernel="sdpa_flash", status="crash", reason="fell over", gpu="NVIDIA H200", head_dim=128))
    return found


def report(folder: Path, some: list[Row]) -> Path:
    write_rows(folder, some)
    assert main([str(folder)]) == 0
    return folder / "report.html"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return report(tmp_path_factory.mktemp("report"), rows())


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    one = Browser()
    yield one
    one.close()


def test_it_opens_from_the_disk_and_asks_for_nothing_else(browser: Browser, path: Path) -> None:
    page = Page(browser, path)
    assert [url for url in page.requests() if not url.startswith("data:")] == [path.as_uri()]
    assert page.complaints() == []
    sections = page.ask(
        "[...document.querySelectorAll('nav a')].map(a => document.querySelector(a.getAttribute('href')) !== null)"
    )
    assert len(sections) == 8 and all(sections)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_figure_is_visible_once_it_is_opened(browser: Browser, path: Path, scheme: str) -> None:
    page = Page(browser, path, scheme=scheme)
    count = page.ask("document.querySelectorAll('figure svg').length")
    assert 0 < page.ask(VISIBLE) < count
    page.ask(OPEN_ALL)
    assert page.ask(VISIBLE) == count
    ink, back = (page.ask(f"getComputedStyle(document.body).{name}") for name in ("color", "backgroundColor"))
    light, dark = (sum(int(part) for part in colour[4:-1].split(",")) for colour in (ink, back))
    assert (light > dark + 300) if scheme == "dark" else (dark > light + 300)
    strips = page.ask("[...document.querySelectorAll('svg.strip')].map(svg => svg.getBoundingClientRect().width)")
    assert len(strips) == 8 and min(strips) > 100


@pytest.mark.parametrize("width", [320, 390, 820])
def test_a_phone_shows_it_without_scrolling_sideways(browser: Browser, path: Path, width: int) -> None:
    page = Page(browser, path, width=width, height=800)
    page.ask(OPEN_ALL)
    assert page.ask("document.scrollingElement.scrollWidth") <= width
    assert page.ask(SMALLEST) >= 12


def test_the_keyboard_reaches_everything_that_opens_or_scrolls(browser: Browser, path: Path) -> None:
    page = Page(browser, path, width=390, height=800)
    page.press("Tab")
    assert page.ask("document.activeElement.className") == "skip"
    wanted = page.ask("document.querySelectorAll('a, summary, .scroll').length")
    assert page.ask(REACHABLE) == wanted
    while page.ask("document.activeElement.className") != "scroll":
        page.press("Tab")
        assert page.ask("document.activeElement !== document.body"), "the keyboard never comes to a table"
    assert page.ask("getComputedStyle(document.activeElement).outlineStyle") != "none"
    page.ask("document.querySelector('summary').focus()")
    assert page.ask("document.querySelector('details').open") is False
    page.press("Enter")
    assert page.ask("document.querySelector('details').open") is True


def test_hostile_rows_run_nothing_and_load_nothing(browser: Browser, tmp_path: Path) -> None:
    names = ("mask", "gpu", "kernel_version", "build_flags", "environment", "git_sha", "run_id", "gpu_hash")
    nasty = dict.fromkeys(names, HOSTILE)
    some = make_rounds(1.0, kernel=HOSTILE, variant=HOSTILE, overrides=[HOSTILE], **nasty)
    some.append(make_row(kernel="flex", status="crash", reason=HOSTILE, mask_params={HOSTILE: 1.0}, **nasty))
    path = report(tmp_path, some)
    page = Page(browser, path)
    page.ask(OPEN_ALL)
    page.press("Tab")
    assert page.ask("window.hurt") is None
    assert [url for url in page.requests() if not url.startswith("data:")] == [path.as_uri()]
    assert page.complaints() == []
