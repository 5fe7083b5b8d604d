"""Simulated cases through the real runner, store and resume; nothing that reads rows takes them for measured ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.cases import Group, MaskSpec, Problem, Team, Timing
from harness.report.__main__ import build
from harness.report.commands import case_command
from harness.rows import read_rows
from harness.runner import EXIT_OK, RunOptions, run
from harness.simulate.cluster import find_cluster
from harness.simulate.run import simulate_group
from harness.summary import summary_line
from harness.terminal import render_table
from plots import captions, catalogue, overlap
from plots.cells import Cell, cells_of
from plots.slots import same_problem

DOCUMENTS = ((3000, 0, False), (1096, 0, False), (4096, 0, False))


def group(
    strategy: str = "fm3", ranks: int = 4, cluster: str = "h200_8", passes: tuple[str, ...] = ("forward", "backward")
) -> Group:
    problem = Problem(MaskSpec("document", "own", DOCUMENTS), 8192, 1, 8, 8, 128, "bfloat16")
    timing = Timing(rounds=1)
    return Group(problem, (f"fm3/{strategy}",), passes, "cuda", timing, team=Team(ranks, "nccl"), cluster=cluster)


def rows_of(groups: list[Group], folder: Path) -> list[dict]:
    assert run(groups, RunOptions(folder)) == EXIT_OK
    return read_rows(folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("simulated")
    rows_of([group("fm3"), group("ring")], path)
    return path


@pytest.fixture(scope="module")
def cells(folder: Path) -> list[Cell]:
    return cells_of(read_rows(folder))


def test_rows_say_what_they_are(folder: Path) -> None:
    rows = read_rows(folder)
    assert [(row["source"], row["status"], row["cp_degree"]) for row in rows] == [("simulated", "ok", 4)] * 4
    assert {row["strategy"] for row in rows} == {"fm3", "ring"}
    for row in rows:
        told = row["simulation"]
        assert row["gpu"] == "h200_8 (8 x NVIDIA H200 a node)"
        assert (row["gpu_hash"], row["power_limit"], row["clocks"], row["errors"], row["host_us"]) == (
            None,
            None,
            None,
            {},
            None,
        )
        assert row["samples_ms"] == [told["t_full_ms"]]
        assert told["interval_ms"][0] < told["t_full_ms"] < told["interval_ms"][1]
        assert told["exposed_ms"] == pytest.approx(told["t_full_ms"] - told["t_comp_ms"])
        assert told["validated"] is False
        rates = find_cluster("h200_8").kernel("fm3", row["pass"], 128, "bfloat16")
        assert any(doubt.startswith("borrowed") for doubt in told["doubts"]) == (rates.borrowed is not None)
        assert any(doubt.startswith("assumed: NVLink between two") for doubt in told["doubts"])
        assert row["kernel_version"] == "simulated at rates of nvidia-h200"


def test_what_is_simulated_is_not_simulated_again(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = read_rows(folder)
    assert rows_of([group("fm3"), group("ring")], folder) == before
    told = capsys.readouterr().err
    assert "SIMULATED on h200_8" in told and "already recorded" in told


def test_the_same_question_has_the_same_answer(folder: Path, tmp_path: Path) -> None:
    again = rows_of([group("ring")], tmp_path)
    assert [row["simulation"] for row in again] == [row["simulation"] for row in read_rows(folder) if row["strategy"] == "ring"]


def test_both_passes_are_their_sum() -> None:
    events: list[dict] = []

    def report(**event: object) -> None:
        events.append(event)

    from harness.resume import Planned

    one = group(passes=("forward", "backward", "both"))
    todo = frozenset((0, "fm3/fm3", pass_) for pass_ in one.passes)
    simulate_group(Planned(one, todo), report)
    (entries,) = (event["entries"] for event in events if event["event"] == "round")
    times = {entry["pass"]: entry["samples_ms"][0] for entry in entries}  # type: ignore[attr-defined]
    assert times["both"] == pytest.approx(times["forward"] + times["backward"])


def test_a_question_that_the_model_cannot_answer_is_a_verdict(tmp_path: Path) -> None:
    wide = group()
    wide = replace(wide, problem=replace(wide.problem, head_dim=96))
    (row, _) = rows_of([wide], tmp_path)
    assert (row["status"], row["samples_ms"]) == ("unsupported", None)
    assert "no rates of fm3 forward D=96" in row["reason"]


# -- never taken for measured -------------------------------------------------------------------------------------------


def test_measured_and_simulated_rows_of_one_question_stay_two_cells(folder: Path) -> None:
    rows = [row for row in read_rows(folder) if row["strategy"] == "fm3"]
    real = {"source": "measured", "simulation": None, "gpu": "NVIDIA H200", "power_limit": 700.0, "run_id": "another"}
    measured = [row | real | {"samples_ms": [9.0]} for row in rows]
    found = cells_of([*rows, *measured])
    assert [(cell["source"], cell.samples == [9.0]) for cell in found].count(("measured", True)) == 2
    assert [(cell["source"], cell.samples == [9.0]) for cell in found].count(("simulated", False)) == 2
    assert not any(same_problem(one, other) for one in found for other in found if one["source"] != other["source"])
    texts = render_table(found)
    assert texts.count("SIMULATED") == 2  # a table a pass, and as many measured ones without the word


def test_clusters_are_machines_of_their_own(folder: Path, tmp_path: Path) -> None:
    others = [row for name in ("h100_8", "h200_node") for row in rows_of([group(cluster=name)], tmp_path / name)]
    rows = [row for row in read_rows(folder) if row["strategy"] == "fm3"]
    found = cells_of([*rows, *others])
    assert len({cell["case_id"] for cell in found}) == len(found) == 6
    assert {cell["gpu"].split()[0] for cell in found} == {"h200_8", "h100_8", "h200_node"}


def test_a_users_cluster_is_known_by_its_name_and_not_by_its_path(tmp_path: Path) -> None:
    one, other = (group(cluster=str(tmp_path / name / "mine.yaml")) for name in ("a", "b"))
    assert one.case("fm3/fm3", "forward").id == other.case("fm3/fm3", "forward").id != group().case("fm3/fm3", "forward").id


def test_a_simulated_group_travels_as_json() -> None:
    assert Group.from_json(group().to_json()) == group()


# -- where it is shown ----------------------------------------------------------------------------------------------------


def test_the_summary_has_the_models_columns(cells: list[Cell]) -> None:
    for cell in cells:
        line, told = summary_line(cell), cell["simulation"]
        assert line["source"] == "simulated"
        for name in ("t_full_ms", "t_comp_ms", "t_comm_ms", "exposed_ms", "overlap", "balance", "recv_share", "scaling"):
            assert float(line[name]) == pytest.approx(told[name], rel=1e-4)
        assert int(line["recv_bytes"]) == told["recv_bytes"]
        assert [float(line["ci_low_ms"]), float(line["ci_high_ms"])] == pytest.approx(told["interval_ms"], rel=1e-4)
        assert (line["plan_ms"], line["bare_comm_ms"], line["host_us"]) == ("", "", "")


def test_tables_figures_and_the_report_say_so(cells: list[Cell]) -> None:
    assert render_table(cells).count("SIMULATED · h200_8") == 2
    drawn = list(catalogue.figures(cells))
    assert drawn
    for one in drawn:
        assert one.caption.startswith("SIMULATED")
        assert "not validated" in one.caption and "a model, nothing was timed" in one.caption
        assert one.title.startswith("SIMULATED · ")
        assert "SIMULATED" in [text.get_text() for text in one.figure().texts]
    page = build(cells, {})
    assert '<span class="chip stamp">SIMULATED</span>' in page and "MEASURED" not in page
    assert ">model&#x27;s interval</th>" in page and "95% interval</th>" not in page
    assert not any("95%" in one.caption for one in drawn)
    assert "not validated" in page


def test_the_overlap_of_simulated_ranks_is_drawn_and_marked(cells: list[Cell]) -> None:
    drawn = {one.name: one for one in catalogue.figures(cells) if one.kind == "overlap"}
    assert set(drawn) == {"overlap_forward_8192", "overlap_backward_8192"}
    told = {cell["strategy"]: cell["simulation"] for cell in cells if cell["pass"] == "forward"}
    one = drawn["overlap_forward_8192"]
    assert set(one.frame["source"]) == {"simulated"} and len(one.frame) == len(told) == 2
    for line in one.frame.to_dict("records"):
        mine = told[line["series"].split()[1]]
        assert (line["full_ms"], line["comp_ms"], line["comm_ms"]) == (mine["t_full_ms"], mine["t_comp_ms"], mine["t_comm_ms"])
        assert line["overlap"] == pytest.approx(mine["overlap"]) and line["exposed_ms"] == pytest.approx(mine["exposed_ms"])
    assert one.title.startswith("SIMULATED") and one.caption.startswith("SIMULATED")
    assert "Predictions for the slowest rank" in one.caption and "Medians" not in one.caption
    assert one.folder.startswith("h200-8")  # a cluster's, beside no measured figure
    hidden = [text.get_text().strip() for text in one.figure().axes[0].texts]
    assert hidden == [
        f"{'~' * noise}{100 * share:.0f}%" for noise, share in one.frame[["noise", "overlap"]].itertuples(index=False)
    ]


def test_a_plan_without_an_exchange_has_no_overlap(cells: list[Cell]) -> None:
    told = cells[0]["simulation"] | {"t_comm_ms": 0.0, "overlap": None}
    (alone,) = cells_of([cells[0].row | {"simulation": told}])
    assert overlap.able([cells[0]]) == [cells[0]] and overlap.able([alone]) == []


def test_captions_count_what_is_doubtful(cells: list[Cell]) -> None:
    text = captions.doubts(cells)
    assert text.startswith("Simulated at rates of nvidia-h200; intervals are the model's")
    assert "4 of 4 cells with assumed rates of links" in text
    for kind, words in (("extrapolated", "extrapolated beyond"), ("borrowed", "at borrowed kernel rates")):
        count = sum(any(doubt.startswith(kind) for doubt in cell["simulation"]["doubts"]) for cell in cells)
        assert (f"{count} of 4 cells {words}" in text) == (count > 0)


def test_the_command_of_a_row_simulates_it_again(cells: list[Cell]) -> None:
    command = case_command(cells[0].row)
    assert "source=simulated hardware=h200_8" in command
    assert "cp_degree=4" in command and "exchange=nccl" in command
