"""The fit against known coefficients; the committed rates against the committed rows and readings; files read strictly."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml
from row_factory import make_rounds

from harness import provenance
from harness.provenance import ROOT
from harness.rows import RowError
from harness.simulate import fit
from harness.simulate.fit_links import links
from harness.simulate.least_squares import least_squares
from harness.simulate.rates import FAST, FOLDER, SLOW, KernelRates, Rate, Rates
from harness.simulate.reading import ClusterError
from masks.families import build_mask
from masks.tiles import tile_counts
from plots.cells import cells_of, load_rows


def test_known_coefficients_are_found() -> None:
    draw = np.random.default_rng(0)
    tiles = np.column_stack([draw.integers(1, 1000, (20, 3)), np.ones(20)]).astype(float)
    known = np.array([0.5, 0.75, 0.125, 3.0])
    rates, errors = least_squares(tiles, tiles @ known)
    assert np.allclose(rates, known)
    assert np.abs(errors).max() < 1e-9


def test_no_coefficient_is_negative() -> None:
    draw = np.random.default_rng(1)
    tiles = draw.integers(1, 1000, (30, 3)).astype(float)
    rates, _ = least_squares(tiles, np.maximum(tiles @ np.array([1.0, -0.3, 0.5]), 1.0))
    assert (rates >= 0).all() and rates[1] == 0


def test_what_others_determine_is_left_out() -> None:
    """All calls with as many outer tiles: a launch cannot be told from them."""
    draw = np.random.default_rng(2)
    tiles = np.column_stack([draw.integers(1, 1000, (20, 2)), np.full(20, 64.0), np.ones(20)])
    rates, errors = least_squares(tiles, tiles @ np.array([0.5, 0.75, 0.25, 2.0]))
    assert (rates[2] == 0) != (rates[3] == 0)
    assert np.abs(errors).max() < 1e-9


def test_the_committed_rates_are_those_of_the_committed_rows() -> None:
    cells = cells_of(load_rows(ROOT / "results"))
    text = (FOLDER / "rates" / "nvidia-h200.yaml").read_text()
    assert text == fit.rates_text(ROOT / "results", "NVIDIA H200", cells), "run python -m harness.simulate.fit"


def test_the_planner_prices_tiles_as_the_rates_do() -> None:
    from context_parallel.work import Costs

    forward = Rates.of("nvidia-h200").kernel("fm3", "forward", 128)
    assert forward is not None
    prices = Costs()
    # Row tiles are few beside tiles: what one costs differs most from one set of rows to the next.
    for own, theirs, apart in (
        (forward.full_ps, prices.full, 0.1),
        (forward.partial_ps, prices.partial, 0.1),
        (forward.outer_ps, prices.row_tile, 0.25),
    ):
        assert own == pytest.approx(theirs, rel=apart)


def test_only_measured_single_gpu_cells_are_fitted() -> None:
    rows = [
        row
        for seqlen in (1024, 2048, 4096)
        for mask in ("full", "causal", "sliding_window")
        for source in ("measured", "simulated")
        for row in make_rounds(
            1.0 if source == "measured" else 50.0, kernel="fm3", mask=mask, seqlen=seqlen, head_dim=128, source=source
        )
    ]
    found = fit.kernels(cells_of(rows))
    assert [(one["pass"], one["rows"]) for one in found] == [("forward", 9)]
    assert fit.kernels(cells_of([row for row in rows if row["source"] == "simulated"])) == []


def test_measured_rows_of_a_pass_take_the_place_of_borrowed_rates() -> None:
    def rows(kernel: str, pass_: str, pace: float) -> list[dict[str, object]]:
        found = []
        for seqlen in (1024, 2048, 4096):
            for mask in ("full", "causal", "sliding_window"):
                tiles = tile_counts(build_mask(mask, seqlen))
                milliseconds = pace * (tiles.full + 2 * tiles.partial + 3 * seqlen / 128)
                shape = {"mask": mask, "seqlen": seqlen, "head_dim": 128}
                found += make_rounds(milliseconds, kernel=kernel, pass_=pass_, rounds=1, noise=len(found), **shape)
        return found

    lent = rows("flex", "forward", 2.0) + rows("flex", "backward", 6.0)
    borrowed = fit.kernels(cells_of(rows("fm3", "forward", 1.0) + lent))
    assert [one["pass"] for one in borrowed] == ["forward", "backward"]
    assert "too few rows of fm3 backward" in borrowed[1]["borrowed"]
    assert borrowed[1]["worst"] > borrowed[0]["worst"]
    for name in ("full_ps", "partial_ps", "outer_ps"):
        assert borrowed[1][name] == pytest.approx(3 * borrowed[0][name], rel=0.05)
    own = fit.kernels(cells_of(rows("fm3", "forward", 1.0) + rows("fm3", "backward", 2.0) + lent))
    assert [one.get("borrowed") for one in own] == [None, None]


def test_a_spread_makes_costs_grow_and_speeds_shrink() -> None:
    one = Rate(10.0, 0.2, "a test")
    assert (one.as_cost(SLOW), one.as_cost(FAST)) == (12.0, 8.0)
    assert (one.as_speed(SLOW), one.as_speed(FAST)) == (8.0, 12.0)
    assert Rate(10.0, 1.0, "a test").as_speed(SLOW) > 0
    assert one.widened(0.1).spread == pytest.approx(0.3)


def entry(**changes: object) -> dict[str, object]:
    found = yaml.safe_load((FOLDER / "rates" / "nvidia-h200.yaml").read_text())["kernels"][0]
    return {key: value for key, value in (found | changes).items() if value != "gone"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"full_ps": "gone"}, "lacks full_ps"),
        ({"full_ps": -1.0}, "full_ps is -1.0; it must be a number at least 0"),
        ({"full_ps": 0.0}, "full_ps is 0; a tile takes time"),
        ({"outer_ps": float("nan")}, "outer_ps is nan"),
        ({"partial_ps": True}, "partial_ps is True"),
        ({"pass": "sideways"}, "pass is 'sideways'; allowed: forward, backward"),
        ({"ful_ps": 3.0}, "did you mean 'full_ps'"),
        ({"median": 0.5, "worst": 0.1}, "the median error 0.5 is above the worst, 0.1"),
        ({"outer_tiles": [5, 3]}, "the first must not be above the second"),
        ({"outer_tiles": 5}, "a list of two numbers"),
        ({"rows": 0}, "rows is 0; it must be an integer, at least 1"),
        ({"source": " "}, "source is ' '; it must be a text"),
    ],
)
def test_wrong_kernel_rates_are_named(changes: dict[str, object], said: str) -> None:
    with pytest.raises(ClusterError, match=said.replace("[", r"\[")):
        KernelRates.read(entry(**changes), "rates.yaml: kernels[0]")


def test_nothing_to_fit_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rows").mkdir()
    assert fit.main([str(tmp_path)]) == 2
    assert "no GPU below" in capsys.readouterr().err


def test_an_installed_copy_has_no_page_to_write_and_its_rates_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    monkeypatch.setattr(fit, "FOLDER", tmp_path)
    assert fit.main([str(ROOT / "results")]) == 2
    assert (
        capsys.readouterr().err
        == f"fit: no docs/simulator.md in {tmp_path}: run this in a checkout of the project, which has it\n"
    )
    assert not list(tmp_path.iterdir())


def test_a_results_folder_that_is_not_there_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fit.main([str(tmp_path / "none")]) == 2
    assert capsys.readouterr().err == f"fit: no folder {tmp_path / 'none'}\n"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("nvlink_copy_flag,", "flag,", "no reading nvlink_copy_flag"),
        ("nvlink_exchange_", "exchange_", r"0 readings nvlink_exchange_\*; a line takes two"),
        ("4 MiB a rank,4,0.038", "4 MiB a rank,4,fast", "nvlink_gather_4: ms is 'fast'; expected a number"),
        ("id,", "name,", "0 readings nvlink_gather"),
    ],
)
def test_readings_of_links_that_miss_something_are_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    text = (ROOT / "results" / "nvidia-h200" / "links.csv").read_text()
    assert old in text
    (tmp_path / "links.csv").write_text(text.replace(old, new))
    with pytest.raises(RowError, match=message):
        links(tmp_path / "links.csv")
