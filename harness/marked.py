"""Parts of a page that are made from rows or rates, between ``<!-- name: begin -->`` and ``<!-- name: end -->``."""

from __future__ import annotations


class MarkerError(ValueError):
    """A page without the lines between which a part of it stands; names them."""


def with_part(text: str, name: str, block: str) -> str:
    """The page's text with one part replaced.

    Raises:
        MarkerError: a marker is missing.
    """
    begin, end = (f"<!-- {name}: {edge} -->" for edge in ("begin", "end"))
    before, found, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise MarkerError(f"the page needs the lines {begin} and {end}")
    return f"{before}{begin}\n{block}\n{end}{after}"
