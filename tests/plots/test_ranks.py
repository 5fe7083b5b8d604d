"""Ranks that share a sequence: what follows from three runs, and the figures of it."""

from __future__ import annotations

import numpy as np
import pytest
from row_factory import make_row

from harness.rows import Row
from harness.summary import summary_line
from plots import balance, catalogue, files, overlap
from plots.captions import FigureError
from plots.cells import Cell, cells_of
from plots.ranks import Overlap, balance_of, by_rank, overlap_of


def rows_of(strategy: str = "fm3", mask: str = "document", scale: float = 1.0, **fields: object) -> list[Row]:
    """Three rounds: 10 ms whole, 8 ms of computing, 4 ms of exchange, the second of two ranks twice as busy."""
    rounds = []
    for index, drift in enumerate((1.0, 1.1, 0.9)):
        times = {"full": 10.0, "comp": 8.0, "comm": 4.0, "bare": 3.0}
        samples = {name: [value * drift * scale] * 3 for name, value in times.items()}
        ranks = {"recv_bytes": [100, 300], "tiles": [10, 20], "full_ms": samples["full"][:2]}
        ranks |= {"comp_ms": [4.0 * drift * scale, 8.0 * drift * scale], "comm_ms": [1.0, 1.0]}
        rounds.append(
            make_row(
                kernel="fm3", strategy=strategy, exchange="gloo", cp_degree=2, mask=mask, round=index,
                time=f"2026-01-02T03:{index:02d}:00Z", samples_ms=samples["full"], comp_samples_ms=samples["comp"],
                comm_samples_ms=samples["comm"], bare_samples_ms=samples["bare"], plan_ms=2.5, recv_share=0.25, ranks=ranks,
                case_id=f"{strategy}-{mask}", **fields,
            )
        )  # fmt: skip
    return rounds


def cell(**fields: object) -> Cell:
    (found,) = cells_of(rows_of(**fields))
    return found


def test_exposed_and_overlap_are_never_clipped() -> None:
    three = overlap_of(cell())
    assert three == Overlap(10.0, 8.0, 4.0, 3.0)
    assert (three.exposed_ms, three.overlap, three.best, three.is_noise) == (2.0, 0.5, 1.0, False)
    slowed, hidden = Overlap(14.0, 8.0, 4.0, None), Overlap(7.5, 8.0, 4.0, None)
    assert (slowed.overlap, hidden.overlap, hidden.exposed_ms) == (-0.5, 1.125, -0.5)
    assert Overlap(10.0, 2.0, 8.0, None).best == 0.25 and Overlap(10.0, 10.0, 0.4, None).is_noise


def test_vectors_by_rank_are_medians_over_rounds() -> None:
    one = cell()
    assert by_rank(one, "comp_ms") == [4.0, 8.0] and balance_of(one) == 0.75
    alone = cells_of([make_row()])[0]
    assert (by_rank(alone, "comp_ms"), balance_of(alone), overlap_of(alone)) == (None, None, None)


def test_the_summary_says_it_and_stays_empty_where_nothing_is_shared() -> None:
    line = summary_line(cell())
    found = {
        name: line[name]
        for name in (
            "t_full_ms", "t_comp_ms", "t_comm_ms", "exposed_ms", "bare_comm_ms", "overlap", "balance", "recv_bytes",
            "recv_bytes_max", "recv_share", "plan_ms",
        )
    }  # fmt: skip
    assert list(found.values()) == ["10", "8", "4", "2", "3", "0.5", "0.75", "400", "300", "0.25", "2.5"]
    alone = summary_line(cells_of([make_row()])[0])
    assert all(alone[name] == "" for name in found)


def test_figures_of_ranks_are_drawn_where_there_are_rows_of_them() -> None:
    rows = [*rows_of(), *rows_of("ring", scale=2.0), *rows_of("ring", "causal"), *rows_of("fm3", "causal")]
    drawn = {one.kind: one for one in catalogue.figures(cells_of(rows)) if one.kind in ("overlap", "balance")}
    assert set(drawn) == {"overlap", "balance"}
    lanes = drawn["overlap"].frame
    assert sorted(lanes["series"].unique()) == ["fm3 fm3 gloo", "fm3 ring gloo"] and len(lanes) == 4
    ring = lanes[(lanes["series"] == "fm3 ring gloo") & (lanes["mask"] == "document")].iloc[0]
    assert (ring["full_ms"], ring["exposed_ms"], ring["overlap"]) == (20.0, 4.0, 0.5)
    loads = drawn["balance"].frame
    assert np.allclose(loads[loads["rank"] == 1]["over_mean"], 8 / 6) and len(loads) == 8
    for one in drawn.values():
        assert "MEASURED" in one.caption and "re-implementations" in one.caption
        assert files.to_bytes(one.figure(), "svg") == files.to_bytes(one.figure(), "svg")
    assert not [one for one in catalogue.figures(cells_of([make_row()])) if one.kind in ("overlap", "balance")]


def test_an_exchange_that_hardly_counts_is_marked() -> None:
    rows = [row | {"comm_samples_ms": [0.1] * 3} for row in rows_of()]
    frame = overlap.data(cells_of(rows))
    assert frame["noise"].all() and "is noise" in overlap.note(frame)
    assert "~" in "".join(text.get_text() for text in overlap.draw(frame, "").axes[0].texts)


def test_cells_without_three_runs_give_no_figure() -> None:
    for module in (overlap, balance):
        with pytest.raises(FigureError, match="no rows for this figure"):
            module.data(cells_of([make_row()]))
