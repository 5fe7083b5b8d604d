"""Figures as parts of the page: drawn on all cores, with title and caption as text."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from harness.report.html import Markup, element, inline_svg, scrolling
from plots import workers
from plots.catalogue import Drawn


def begin(items: Sequence[tuple[str, Drawn]]) -> Callable[[], list[Markup]]:
    """Starts drawing them; what it returns waits for all, in order. The ids of each figure begin with the name beside it."""
    return workers.begin(_one, items)


def _one(named: tuple[str, Drawn]) -> Markup:
    prefix, item = named
    head, *rest = item.caption.split("\n")
    caption = element("figcaption", element("b", item.title), head, *(element("div", line) for line in rest))
    picture = scrolling(inline_svg(item.bare(), prefix, item.title), item.title)
    return element("figure", picture, caption, class_="card")
