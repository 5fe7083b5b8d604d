"""This project's kernel beside the best ones known: what both reach of cuDNN's full attention of the same length.

Nobody's kernel is best everywhere, so the best of the published series is taken case by case. Each side is compared with the
cuDNN that ran beside it (``harness.claims.anchor``), since they did not run together; operations are counted by 128x128 tiles.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.claims.anchor import Evidence, over_anchor, series_over_anchor
from harness.claims.paper import LENGTHS, MASKS, Who
from plots.cells import Cell
from plots.published import Published
from plots.statistics import geometric_mean
from plots.style import length_label

SERIES = {
    "flashmask3_official": "FlashMask-3",
    "flashmask4_official": "FlashMask-4",
    "flash_attn_3": "FA3",
    "flash_attn_4": "FA4",
    "magi_ffa": "FFA",
}
"""Whose kernels, by their names in ``results/published``, and what tables call them."""

SETTING = {
    "gpu": "NVIDIA H200", "source": "measured", "protocol": "sustained", "heads": 32, "kv_heads": 32, "head_dim": 128,
    "dtype": "bfloat16", "deterministic": False, "cp_degree": 1,
}  # fmt: skip
"""Which cells the tables of pages are made of."""

_LONGEST, _BEFORE = 131072, 32768


@dataclass(frozen=True)
class Standing:
    """One case.

    Args:
        ours: this project's speed as a multiple of cuDNN's on full attention; None without rows of both on one card.
        best, of: the same of the fastest published kernel, and its name; None where nobody published any.
    """

    mask: str
    seqlen: int
    ours: float | None
    best: float | None
    of: str | None

    @property
    def ratio(self) -> float | None:
        """Ours over the best."""
        return self.ours / self.best if self.ours is not None and self.best is not None else None


def standings(cells: Sequence[Cell], published: Sequence[Published], pass_: str) -> list[Standing]:
    """Every mask and length of the paper's table. At 128K tokens a published kernel is held to what it reached at 32K, where
    that was more: some of them fall off there.
    """
    evidence = Evidence([cell for cell in cells if all(cell[name] == value for name, value in SETTING.items())], published)
    best: dict[tuple[str, int], tuple[float, str]] = {}
    ours: dict[tuple[str, int], float] = {}
    for mask in MASKS:
        for seqlen in LENGTHS:
            for cell in evidence.find(Who("fm3"), (mask, seqlen, 1), pass_):
                if (mine := over_anchor(evidence, cell)) is not None:
                    ours[mask, seqlen] = 1 / mine
                for name in SERIES:
                    found = series_over_anchor(evidence, Who("", published=name), cell)
                    if found is not None:
                        best[mask, seqlen] = max(best.get((mask, seqlen), (0.0, "")), (1 / found[0], name))
        if (mask, _LONGEST) in best:
            best[mask, _LONGEST] = max(best[mask, _LONGEST], best.get((mask, _BEFORE), (0.0, "")))
    cases = [(mask, seqlen) for mask in MASKS for seqlen in LENGTHS]
    return [Standing(*case, ours.get(case), *best.get(case, (None, None))) for case in cases]


def table(found: Iterable[Standing]) -> str:
    """Markdown: a line a mask, a column a length, ``ours over cuDNN (over the best, whose)``; then what it comes to."""
    of_case = {(one.mask, one.seqlen): one for one in found}
    lines = [
        "| mask | " + " | ".join(f"{length_label(seqlen)} tokens" for seqlen in LENGTHS) + " |",
        "|---|" + "---|" * len(LENGTHS),
    ]
    for mask in MASKS:
        lines.append(f"| {mask} | " + " | ".join(_cell(of_case[mask, seqlen]) for seqlen in LENGTHS) + " |")
    ratios = {one: one.ratio for one in of_case.values() if one.ratio is not None}
    if not ratios:
        return "\n".join(lines)
    low = min(ratios, key=lambda one: ratios[one])
    ahead = sum(ratio >= 1 for ratio in ratios.values())
    cases = f"{len(ratios)} case" + "s" * (len(ratios) > 1)
    total = f"Over the best of {len(SERIES)} published kernels in {cases}: geometric mean "
    total += f"{geometric_mean(list(ratios.values())):.3f}, as fast or faster in {ahead}, "
    total += f"lowest {ratios[low]:.2f} ({low.mask}, {length_label(low.seqlen)})."
    return "\n".join([*lines, "", total])


def _cell(one: Standing) -> str:
    if one.ours is None:
        return "-"
    beside = "" if one.ratio is None else f" ({one.ratio:.2f} {SERIES[one.of or '']})"
    return f"{one.ours:.2f}{beside}"
