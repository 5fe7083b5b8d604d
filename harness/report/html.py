"""The few HTML pieces that the report is made of. Every string goes through :func:`esc`; nothing is loaded or executed.

Functions named after an element return markup; whatever else they are given as text is escaped.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

from matplotlib.figure import Figure

from plots import files, style


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def esc(value: object, longest: int = 400) -> Markup:
    """A value as HTML text or attribute: control characters removed, cut to ``longest``, escaped. Markup stays."""
    return value if isinstance(value, Markup) else Markup(html.escape(style.plain(value, longest), quote=True))


def join(parts: Iterable[object], between: str = "") -> Markup:
    """The parts one after another."""
    return Markup(between.join(esc(part) for part in parts))


def element(name: str, *children: object, **attributes: str) -> Markup:
    """``<name attributes>children</name>``; ``class_`` is written ``class``, ``aria_label`` is written ``aria-label``."""
    shown = "".join(f' {key.rstrip("_").replace("_", "-")}="{esc(value)}"' for key, value in attributes.items())
    return Markup(f"<{name}{shown}>{join(children)}</{name}>")


def table(
    head: Sequence[object], lines: Iterable[Sequence[object]], *, numbers: Iterable[int] = (), stacked: bool = False
) -> Markup:
    """A table that scrolls sideways on a narrow screen, by keys too.

    Args:
        numbers: columns that are aligned right.
        stacked: few columns of text: on a narrow screen they stand below each other instead.
    """
    right = set(numbers)

    def cell(name: str, place: int, value: object) -> Markup:
        marks = {"class_": "n"} if place in right else {}
        if stacked and name == "td":  # what the column is called, where the head is not shown
            marks["data_label"] = esc(head[place])
        return element(name, value, **marks)

    top = element("tr", *(cell("th", i, value) for i, value in enumerate(head)))
    body = join(element("tr", *(cell("td", i, value) for i, value in enumerate(line))) for line in lines)
    if stacked:
        return element("table", element("thead", top), element("tbody", body), class_="stack")
    return scrolling(element("table", element("thead", top), element("tbody", body)), "table")


def scrolling(child: Markup, label: str) -> Markup:
    """What may be wider than the screen: a region of its own, so that the keyboard reaches and scrolls it."""
    return element("div", child, class_="scroll", role="region", tabindex="0", aria_label=label)


def fold(title: object, *children: object, opened: bool = False) -> Markup:
    """A part that can be opened, without a script."""
    return Markup(f"<details{' open' if opened else ''}><summary>{esc(title)}</summary>{join(children)}</details>")


def inline_svg(figure: Figure, prefix: str, label: str) -> Markup:
    """A figure as inline SVG: ids of its own, and text, lines and paper in the page's colours, so dark mode works."""
    text = files.to_bytes(figure, "svg").decode()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->\s*", "", text, flags=re.DOTALL)
    text = re.sub(r'\bid="', f'id="{prefix}-', text)
    text = re.sub(r'(xlink:href="#|url\(#)', rf"\g<1>{prefix}-", text)
    for colour, name in ((style.INK, "ink"), (style.MUTED, "muted"), (style.GRID, "line"), (style.PAPER, "paper")):
        text = text.replace(colour, f"var(--{name})")
    width = float(figure.get_figwidth())
    size = f'style="min-width:{width * 56:.0f}px;max-width:{width * 110:.0f}px"'
    opening = re.sub(r' (width|height)="[^"]*"', "", text[: text.index(">")])
    opening = opening.replace("<svg", f'<svg role="img" aria-label="{esc(label)}" {size}', 1)
    return Markup(opening + text[text.index(">") :])


def page(title: str, *children: object) -> str:
    """The whole document."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{esc(title)}</title>\n<style>{_CSS}</style>\n</head>\n<body>\n"
        '<a class="skip" href="#short">Skip to the results</a>\n<main>\n'
        + "\n".join(esc(child) for child in children)
        + "\n</main>\n</body>\n</html>\n"
    )


# A browser that honours it loads and runs nothing, whatever a row says.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"

_CSS = """
:root { --ink: #24292f; --muted: #6a737d; --line: #dfe3e8; --paper: #ffffff; --back: #f5f6f8;
  --accent: #0072b2; --bad: #b3261e; --good: #00734d; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ee; --muted: #9aa4b1; --line: #363d47; --paper: #1b1f25; --back: #12151a;
    --accent: #6cb6ea; --bad: #ff8a80; --good: #5fd0a5; }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0; background: var(--back); color: var(--ink);
  font: 15px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 28px 20px 80px; }
h1 { font-size: 1.65rem; line-height: 1.2; margin: 0 0 14px; letter-spacing: -0.01em; }
h2 { font-size: 1.2rem; margin: 44px 0 12px; }
h3 { font-size: 1rem; margin: 26px 0 8px; }
.card > h3:first-child { margin-top: 2px; }
p { margin: 8px 0; }
a { color: var(--accent); text-decoration: none; }
a:hover { text-decoration: underline; }
nav { display: flex; flex-wrap: wrap; gap: 4px 18px; margin: 16px 0 0; font-size: 0.92rem; }
.sub, .note { color: var(--muted); }
.note { font-size: 0.87rem; }
.card { background: var(--paper); border: 1px solid var(--line); border-radius: 10px; padding: 14px 18px; margin: 14px 0; }
.grid { display: flex; flex-wrap: wrap; gap: 0 14px; }
.grid > * { flex: 1 1 430px; min-width: 0; max-width: 640px; }
.scroll + .scroll { margin-top: 20px; }
.chip { display: inline-block; border: 1px solid var(--line); border-radius: 99px; padding: 1px 10px; margin: 0 6px 6px 0;
  font-size: 0.84rem; background: var(--paper); white-space: nowrap; max-width: 100%; overflow: hidden;
  text-overflow: ellipsis; }
.stamp { border-color: var(--accent); color: var(--accent); font-weight: 600; letter-spacing: 0.03em; }
.skip { position: absolute; left: -999px; }
.skip:focus { left: 12px; top: 8px; background: var(--paper); padding: 4px 10px; border-radius: 6px; }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; border-radius: 3px; }
.bad { color: var(--bad); }
.good { color: var(--good); }
.chip.good, .chip.bad { border-color: currentColor; font-weight: 600; }
.big { font-size: 1.02rem; }
ul { margin: 6px 0; padding-left: 20px; }
li { margin: 4px 0; }
/* A shadow at an edge says that there is more in that direction. */
.scroll { overflow-x: auto; -webkit-overflow-scrolling: touch;
  background: linear-gradient(90deg, var(--paper) 30%, transparent) 0 0 / 40px 100% no-repeat local,
    linear-gradient(270deg, var(--paper) 30%, transparent) 100% 0 / 40px 100% no-repeat local,
    linear-gradient(90deg, var(--line), transparent) 0 0 / 12px 100% no-repeat scroll,
    linear-gradient(270deg, var(--line), transparent) 100% 0 / 12px 100% no-repeat scroll; }
table { border-collapse: separate; border-spacing: 0; width: 100%; font-size: 0.88rem; font-variant-numeric: tabular-nums; }
th { text-align: left; font-weight: 600; color: var(--muted); font-size: 0.8rem; vertical-align: bottom; }
th, td { padding: 6px 10px 6px 0; border-bottom: 1px solid var(--line); white-space: nowrap; vertical-align: top; }
td.wrap, .wrap { white-space: normal; overflow-wrap: anywhere; min-width: 220px; display: block; }
tbody tr:last-child td { border-bottom: 0; }
.scroll td:first-child, .scroll th:first-child { position: sticky; left: 0; background: var(--paper); }
.stack td { white-space: normal; padding-right: 18px; min-width: 96px; }
@media (max-width: 700px) {
  .stack thead { display: none; }
  .stack td { display: block; border: 0; padding: 2px 0; }
  .stack td + td::before { content: attr(data-label) ": "; color: var(--muted); }
  .stack tr { display: block; border-bottom: 1px solid var(--line); padding: 8px 0; }
}
.n { text-align: right; }
th.n, td.n { padding-right: 14px; }
.dot { display: inline-block; width: 9px; height: 9px; border-radius: 2px; margin-right: 6px; }
small { color: var(--muted); font-size: 0.8rem; }
figure { margin: 14px 0; }
figure svg { display: block; width: 100%; height: auto; }
figcaption { color: var(--muted); font-size: 0.84rem; margin-top: 8px; }
figcaption b { color: var(--ink); display: block; font-size: 0.98rem; }
details { margin: 8px 0; }
summary { cursor: pointer; font-weight: 600; }
td details { margin: 0; }
td summary { font-weight: 400; color: var(--accent); font-size: 0.84rem; }
code { font: 0.82rem/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; white-space: pre-wrap;
  overflow-wrap: anywhere; }
.strip { display: block; width: 140px; height: 18px; }
td .chip { margin: 0 0 2px; vertical-align: middle; }
@media (max-width: 600px) { .scroll td:first-child { white-space: normal; min-width: 84px; overflow-wrap: anywhere; } }
@media (max-width: 600px) { main { padding: 18px 12px 60px; } .card { padding: 12px; } h1 { font-size: 1.35rem; } }
@media print { body { background: #fff; } .card { break-inside: avoid; } }
"""
