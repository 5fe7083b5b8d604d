"""This project's kernel beside the best ones known: anchors, the best of a case, what is held at 128K tokens."""

from __future__ import annotations

from typing import Any

import pytest
from row_factory import make_rounds

from harness.claims import peers
from plots.cells import Cell, cells_of
from plots.published import Published

SHAPE: dict[str, Any] = {
    "gpu": "NVIDIA H200", "power_limit": 700, "heads": 32, "kv_heads": 32, "head_dim": 128, "tile_density": 1.0, "density": 1.0,
}  # fmt: skip


def measured(mask: str, seqlen: int, ms: float, beside: float, **fields: Any) -> list[Cell]:
    """This project's kernel on a mask, and cuDNN's full attention in the same rounds, by milliseconds."""
    shape = SHAPE | {"seqlen": seqlen} | fields
    ours, anchor = (
        make_rounds(ms, kernel="fm3", mask=mask, **shape),
        make_rounds(beside, kernel="sdpa_cudnn", mask="full", **shape),
    )
    return cells_of([*ours, *anchor])


def published(kernel: str, mask: str, seqlen: int, tflops: float) -> Published:
    case = (mask, "forward", seqlen, 1, 32, 128, "bfloat16")
    return Published("apart", "NVIDIA H200", "tile128", "", kernel, *case, tflops, None, 1.0, 1.0)


SERIES = [
    published("sdpa_cudnn", "full", 8192, 500.0),
    published("flash_attn_3", "causal", 8192, 600.0),
    published("flash_attn_4", "causal", 8192, 550.0),
    published("flex", "causal", 8192, 900.0),  # not one of them
]


def one(cells: list[Cell], series: list[Published], mask: str, seqlen: int) -> peers.Standing:
    found = peers.standings(cells, series, "forward")
    assert len(found) == 48
    return next(x for x in found if (x.mask, x.seqlen) == (mask, seqlen))


def test_each_is_measured_by_the_cudnn_beside_it_and_the_best_counts() -> None:
    found = one(measured("causal", 8192, 10.0, 15.0), SERIES, "causal", 8192)
    assert (found.ours, found.best, found.of) == (pytest.approx(1.5, rel=0.02), pytest.approx(1.2), "flash_attn_3")
    assert found.ratio == pytest.approx(1.25, rel=0.02)


def test_without_an_anchor_or_a_figure_there_is_no_ratio() -> None:
    cells = [cell for cell in measured("causal", 8192, 10.0, 15.0) if cell["kernel"] == "fm3"]
    assert one(cells, SERIES, "causal", 8192).ours is None
    alone = one(measured("causal", 8192, 10.0, 15.0), [], "causal", 8192)
    assert (alone.best, alone.ratio) == (None, None)
    other_shape = measured("causal", 8192, 10.0, 15.0, head_dim=64)
    assert one(other_shape, SERIES, "causal", 8192).ours is None


def test_at_128k_a_kernel_is_held_to_what_it_reached_at_32k() -> None:
    cells = [*measured("causal", 32768, 10.0, 12.0), *measured("causal", 131072, 10.0, 12.0)]
    series = [
        *(published("sdpa_cudnn", "full", seqlen, 500.0) for seqlen in (32768, 131072)),
        published("flash_attn_3", "causal", 32768, 700.0),
        published("flash_attn_4", "causal", 131072, 550.0),
    ]
    found = one(cells, series, "causal", 131072)
    assert (found.best, found.of) == (pytest.approx(1.4), "flash_attn_3")
    series[2] = published("flash_attn_3", "causal", 32768, 500.0)
    assert one(cells, series, "causal", 131072).of == "flash_attn_4"


def test_the_table_names_whose_the_best_is_and_what_it_comes_to() -> None:
    text = peers.table(peers.standings(measured("causal", 8192, 10.0, 15.0), SERIES, "forward"))
    (line,) = [line for line in text.splitlines() if line.startswith("| causal |")]
    assert line == "| causal | - | 1.50 (1.25 FA3) | - | - |"
    assert "in 1 case: geometric mean 1.250, as fast or faster in 1, lowest 1.25 (causal, 8K)." in text
    assert "geometric" not in peers.table(peers.standings([], SERIES, "forward"))
