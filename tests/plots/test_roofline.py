"""The roofline: bytes by hand, roofs that agree with the hardware files, and no figure where no roof is known."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from row_factory import make_row

from plots import catalogue, roofline
from plots.captions import FigureError
from plots.cells import Cell, cells_of

ROOT = Path(__file__).resolve().parent.parent.parent
SHAPE: dict[str, Any] = {"gpu": "NVIDIA H200", "batch": 2, "seqlen": 1024, "heads": 8, "kv_heads": 2, "head_dim": 128}


def cell(**fields: Any) -> Cell:
    (found,) = cells_of([make_row(**(SHAPE | fields))])
    return found


@pytest.mark.parametrize(("pass_", "rows", "columns", "lse"), [("forward", 2, 2, 1), ("backward", 4, 4, 1), ("both", 6, 6, 2)])
def test_bytes_are_those_of_the_tensors(pass_: str, rows: int, columns: int, lse: int) -> None:
    queries, keys = 2 * 1024 * 8 * 128 * 2, 2 * 1024 * 2 * 128 * 2
    assert roofline.least_bytes(cell(pass_=pass_)) == rows * queries + columns * keys + lse * 4 * 2 * 1024 * 8


def test_a_sparse_case_lies_under_the_slope_and_a_dense_one_under_the_flat_roof() -> None:
    cells = [cell(mask="full", density=1.0, mask_digest="f"), cell(mask="document", density=0.1, mask_digest="d")]
    frame = roofline.data(cells, "forward").set_index("mask")
    assert frame.loc["full", "roof"] == 989.0
    assert frame.loc["document", "roof"] == pytest.approx(4.8 * frame.loc["document", "flops_per_byte"])
    assert frame.loc["document", "roof"] < 989.0
    assert (frame["share"] == frame["tflops"] / frame["roof"]).all()
    assert (frame["share"] < 1).all()


@pytest.mark.parametrize("change", [{"gpu": "Other"}, {"dtype": "float32"}, {"device": "cpu"}, {"cp_degree": 4}])
def test_without_a_known_roof_there_is_no_figure(change: dict[str, Any]) -> None:
    one = cell(**change)
    with pytest.raises(FigureError, match="no roof is known"):
        roofline.data([one], "forward")
    assert "roofline" not in {drawn.kind for drawn in catalogue.figures([one])}


def test_the_figure_says_what_is_assumed() -> None:
    (drawn,) = [drawn for drawn in catalogue.figures([cell()]) if drawn.kind == "roofline"]
    assert "Roof: 989 TFLOP/s and 4.8 TB/s" in drawn.caption
    assert "every tensor moved once" in drawn.caption
    assert len(drawn.figure().axes) == 1


@pytest.mark.parametrize("name", ["h100", "h200"])
def test_roofs_agree_with_the_hardware_files(name: str) -> None:
    text = (ROOT / "conf" / "hardware" / f"{name}.yaml").read_text()
    (gpu,) = re.findall(r"^gpus: \[(.*)\]$", text, re.M)
    (peak,) = re.findall(r"^  bfloat16: (\d+)$", text, re.M)
    assert roofline.ROOFS[gpu].tflops == float(peak)
