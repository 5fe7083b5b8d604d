"""Figures as parts of the page: drawn on all cores, with title and caption as text."""

from __future__ import annotations

from collections.abc import Sequence

from harness.report.html import Markup, element, inline_svg, scrolling
from plots import workers
from plots.catalogue import Drawn


def of(items: Sequence[Drawn], letter: str) -> list[Markup]:
    """All of them, in order; the ids of each begin with the letter and its number."""
    return workers.each(_one, [(f"{letter}{number}", item) for number, item in enumerate(items)])


def _one(numbered: tuple[str, Drawn]) -> Markup:
    prefix, item = numbered
    head, *rest = item.caption.split("\n")
    caption = element("figcaption", element("b", item.title), head, *(element("div", line) for line in rest))
    picture = scrolling(inline_svg(item.bare(), prefix, item.title), item.title)
    return element("figure", picture, caption, class_="card")
