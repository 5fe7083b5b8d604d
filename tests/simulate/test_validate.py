"""Validation on rows made up from predictions: errors, halves, orders and limits that are known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from row_factory import make_row, write_rows

from harness.cases import Case
from harness.rows import Row
from harness.simulate import comparison, validate
from harness.simulate.cluster import find_cluster
from harness.simulate.model import simulate
from harness.simulate.plans import Ask
from harness.simulate.recorded import problem_of
from harness.simulate.run import mask_and_facts
from plots import simulated_errors
from plots.cells import cells_of
from plots.files import to_bytes

MASKS = ("full", "causal", "sliding_window", "document")
LENGTHS = (4096, 8192)


def rows_with(factor: Callable[[str, int, str], float], strategies: tuple[str, ...] = ("fm3", "ring")) -> list[Row]:
    """Rows of two GPUs that took the predicted time over a factor of (mask, length, strategy)."""
    cluster = find_cluster("h200_node")
    rows = []
    for mask in MASKS:
        for seqlen in LENGTHS:
            variant = "c" if mask == "document" else None
            row = make_row(kernel="fm3", mask=mask, variant=variant, seqlen=seqlen, heads=8, kv_heads=8, head_dim=128)
            problem = problem_of(row)
            assert problem is not None
            for strategy in strategies:
                ask = Ask(2, strategy)
                predicted = simulate(problem, mask_and_facts(problem)[0], ask, "forward", cluster).prediction.full
                case = Case(problem, f"fm3 {strategy}", "forward", "cuda", "sustained", "cold", False)
                took = predicted / factor(mask, seqlen, strategy)
                shared = {"cp_degree": 2, "strategy": strategy, "exchange": "nccl", "gpu": "NVIDIA H200", "case_id": case.id}
                rows.append(row | shared | {"samples_ms": [took]})
    return rows


def test_half_of_the_cells_is_unseen_whatever_rows_there_are() -> None:
    pairs = [(mask, seqlen) for mask in (*MASKS, "share_question", "qk_sparse") for seqlen in range(4096, 131072, 4096)]
    share = sum(comparison.is_unseen(*pair) for pair in pairs) / len(pairs)
    assert 0.4 < share < 0.6
    assert {comparison.is_unseen(mask, seqlen) for mask in MASKS for seqlen in LENGTHS} == {True, False}


def test_errors_are_those_that_were_made() -> None:
    found, left_out = comparison.compare(cells_of(rows_with(lambda *_: 1.05)))
    assert left_out == []
    assert len(found) == len(MASKS) * len(LENGTHS) * 2
    assert [one.error for one in found] == pytest.approx([0.05] * len(found))
    lines = comparison.table(found)
    assert set(lines["half"]) == {"seen", "unseen"}
    assert lines["median_error"].to_list() == pytest.approx([0.05] * len(lines))
    total = lines[lines["mask"] == comparison.ALL]
    assert total["cells"].sum() == len(found) and lines["cells"].sum() == 2 * len(found)
    assert comparison.misses(found) == []


def test_the_limits_hold_for_the_unseen_half_alone() -> None:
    wrong = {True: 1.5, False: 1.0}
    for unseen in (True, False):
        found, _ = comparison.compare(
            cells_of(rows_with(lambda mask, seqlen, _, u=unseen: wrong[comparison.is_unseen(mask, seqlen) == u]))
        )
        assert bool(comparison.misses(found)) == unseen
    assert not any(one.inside for one in found if not one.unseen)


def test_one_bad_family_is_a_miss() -> None:
    bad = next(mask for mask in MASKS if any(comparison.is_unseen(mask, seqlen) for seqlen in LENGTHS))
    found, _ = comparison.compare(cells_of(rows_with(lambda mask, *_: 1.3 if mask == bad else 1.0)))
    told = " ".join(comparison.misses(found))
    assert f"{bad}: median error 30.0%" in told


def test_strategies_predicted_the_other_way_round_are_found() -> None:
    found, _ = comparison.compare(cells_of(rows_with(lambda *_: 1.0)))
    assert all(one.inside for one in found)
    clear, wrong = comparison.wrong_orders(found)
    assert 0 < clear <= len(MASKS) * len(LENGTHS)
    assert wrong == []
    found, _ = comparison.compare(cells_of(rows_with(lambda mask, seqlen, strategy: 3.0 if strategy == "ring" else 0.5)))
    clear, wrong = comparison.wrong_orders(found)
    assert 0 < len(wrong) <= clear
    assert all("measured ring before fm3" in one for one in wrong)


def test_cells_without_a_model_are_left_out_with_the_reason() -> None:
    rows = rows_with(lambda *_: 1.0, ("fm3",))
    others = [
        rows[0] | {"strategy": "ulysses", "case_id": "a"},
        rows[0] | {"gpu": "NVIDIA A100", "case_id": "b"},
        rows[-1] | {"mask_variant": "my.csv", "case_id": "c"},
        rows[0] | {"head_dim": 96, "case_id": "d"},
    ]
    found, left_out = comparison.compare(cells_of(others))
    assert found == []
    assert sorted(line.split(": ", 1)[1][:30] for line in left_out) == sorted(
        [
            "there is no model of it",
            "no cluster of NVIDIA A100 hold",
            "its documents are not in the r",
            "no rates of fm3 forward D=96 i",
        ]
    )


@pytest.mark.parametrize("change", [{"source": "simulated"}, {"cp_degree": 1}, {"device": "cpu"}])
def test_only_measured_cells_of_several_gpus_are_compared(change: dict) -> None:
    rows = [row | change for row in rows_with(lambda *_: 1.0, ("fm3",))]
    assert comparison.compare(cells_of(rows)) == ([], [])


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_rows(tmp_path / "good", rows_with(lambda *_: 1.02))
    assert validate.main([str(tmp_path / "good")]) == validate.OK
    assert "all limits hold for the unseen half" in capsys.readouterr().out
    assert sorted(path.name for path in (tmp_path / "good" / "validation").iterdir()) == [
        "errors.csv", "errors.pdf", "errors.png", "errors.svg", "table.csv",
    ]  # fmt: skip
    write_rows(tmp_path / "bad", rows_with(lambda *_: 2.0))
    assert validate.main([str(tmp_path / "bad"), "--cluster", "h200_8"]) == validate.MISSED
    assert "missed: median error 100.0%, allowed 8%" in capsys.readouterr().out


def test_without_measured_rows_nothing_is_validated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_rows(tmp_path, [make_row()])
    assert validate.main([str(tmp_path)]) == validate.NO_ROWS
    assert "nothing is validated" in capsys.readouterr().err
    assert validate.main([str(tmp_path / "nowhere")]) == validate.USAGE
    assert validate.main([str(tmp_path), "--cluster", "h300"]) == validate.USAGE
    (tmp_path / "rows" / "broken.jsonl").write_text("{}\n{}\n")
    assert validate.main([str(tmp_path)]) == validate.BAD_DATA


def test_the_figure_of_errors() -> None:
    points = [{"mask": mask, "half": half, "error": 0.1} for mask in ("document", "full") for half in ("seen", "unseen")]
    frame = simulated_errors.data(points)
    assert frame["mask"].to_list() == ["full", "full", "document", "document"]
    assert frame["half"].to_list() == ["unseen", "seen"] * 2
    assert to_bytes(simulated_errors.draw(frame, "c"), "svg") == to_bytes(simulated_errors.draw(frame, "c"), "svg")
    with pytest.raises(ValueError, match="unseen, seen"):
        simulated_errors.data([])


def test_a_problem_comes_back_from_its_row() -> None:
    row = make_row(mask="sliding_window", mask_params={"window": 64}, seqlen=2048, heads=4, kv_heads=2)
    problem = problem_of(row)
    assert problem is not None
    assert (problem.mask.family, problem.mask.params, problem.kv_heads) == ("sliding_window", {"window": 64}, 2)
    assert problem_of(make_row(mask="document", variant="sampled")) is None
    lists = problem_of(make_row(mask="document", variant="c", seqlen=8192))
    assert lists is not None and lists.mask.documents is not None and sum(one[0] for one in lists.mask.documents) == 8192
    assert replace(lists, batch=3) != lists
