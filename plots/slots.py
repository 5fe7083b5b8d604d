"""What may stand side by side: settings that one figure can hold, cells of one problem, and the labels of masks.

Pure functions over cells; which rows make a cell is ``plots.cells``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from plots.cells import Cell, series_of
from plots.style import length_label

SETTING_FIELDS = (
    "gpu", "power_limit", "protocol", "l2", "dtype", "heads", "kv_heads", "head_dim", "deterministic", "cp_degree",
)  # fmt: skip


def settings(cells: Iterable[Cell]) -> dict[tuple[Any, ...], list[Cell]]:
    """Cells by what one figure may hold: one machine, protocol and head shape. Order as in ``cells``."""
    groups: dict[tuple[Any, ...], list[Cell]] = defaultdict(list)
    for cell in cells:
        groups[tuple(cell[f] for f in SETTING_FIELDS)].append(cell)
    return dict(groups)


_PROBLEM_FIELDS = (
    "mask", "mask_variant", "mask_digest", "seed", "seqlen", "batch", "heads", "kv_heads", "head_dim", "dtype", "pass",
)  # fmt: skip


def same_problem(one: Cell, other: Cell) -> bool:
    """Whether the two computed the very same thing, so that their times may be compared.

    A mask digest that one of them lacks (a failure) does not part them; measured and simulated figures never meet.
    """
    a, b = one.row, other.row
    known = None not in (a["mask_digest"], b["mask_digest"])
    fields = [f for f in (*_PROBLEM_FIELDS, "source", "mask_params") if known or f != "mask_digest"]
    return all(a[f] == b[f] for f in fields)


_SLOT_PARTS: tuple[tuple[Callable[[Cell], str], ...], ...] = (
    (lambda c: f"({c['mask_variant']})" if c["mask_variant"] else "",),
    (lambda c: " ".join(f"{k}={v}" for k, v in sorted(c["mask_params"].items())),),
    # Of a sweep that keeps the tokens of a batch, another batch is another number of tokens, the same at all lengths.
    (lambda c: f"B={c['batch']}", lambda c: f"B*S={length_label(c['batch'] * c['seqlen'])}"),
    (lambda c: f"seed {c['seed']}",),
    (lambda c: f"#{c['mask_digest'][:6]}" if c["mask_digest"] else "",),
    (lambda c: f"case {c['case_id'][:6]}",),
)
"""What tells two problems apart, in the order in which it is said; of several ways the one that makes the fewest labels."""


def slot_labels(cells: list[Cell]) -> list[str]:
    """What each cell's mask is called: the family, and of variant, parameters, batch and seed only what is needed.

    Two problems of one length and pass never get the same label, so nothing is drawn twice in one place, and what
    stands side by side is the same mask.
    """
    labels = [str(cell["mask"]) for cell in cells]
    for ways in _SLOT_PARTS:
        labels = min((_told(cells, labels, part) for part in ways), key=lambda told: len(set(told)))
    return labels


def _told(cells: list[Cell], labels: list[str], part: Callable[[Cell], str]) -> list[str]:
    """The labels, with the part where one label stands for several problems."""
    places: dict[tuple[Any, ...], list[Cell]] = defaultdict(list)
    for cell, label in zip(cells, labels, strict=True):
        places[(label, cell["seqlen"], cell["pass"], cell["source"])].append(cell)
    crowded = {
        place[0] for place, members in places.items() if not _one_problem(members) and len({part(cell) for cell in members}) > 1
    }
    return [f"{label} {part(cell)}".strip() if label in crowded else label for label, cell in zip(labels, cells, strict=True)]


def _one_problem(cells: list[Cell]) -> bool:
    known = next((cell for cell in cells if cell["mask_digest"] is not None), cells[0])
    alone = len({(series_of(cell), cell["case_id"]) for cell in cells}) == len({series_of(cell) for cell in cells})
    return alone and all(same_problem(known, cell) for cell in cells)
