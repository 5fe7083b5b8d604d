"""Printed tables fit their place: what is wrapped, what is folded, and that no figure is cut, for every table there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from row_factory import make_rounds, make_row

from harness import columns, plan
from harness.columns import WIDTH, aligned, terminal_width
from harness.terminal import for_terminal, render_table
from plots.cells import cells_of

TABLE = [["mask", "one", "two", "three"], ["full", "1.00", "22.0", "333"], ["a long name", "4.00", "5.00", "6.00"]]


def test_what_fits_is_one_block() -> None:
    assert aligned(TABLE, 40) == [
        "mask          one   two  three",
        "full         1.00  22.0    333",
        "a long name  4.00  5.00   6.00",
    ]


def test_names_are_wrapped_before_columns_are_folded() -> None:
    table = [["mask", "one"], ["a name of many words in a row", "1.00"]]
    assert aligned(table, 30, names=0) == ["mask                       one", "a name of many words in   1.00", "a row"]


def test_a_word_is_broken_only_where_it_does_not_fit_beside_a_figure() -> None:
    word = "a_name_of_thirty_letters_all_"
    table = [["mask", "one", "two"], [word, "1.00", "2.00"]]
    beside = len(word) + 2 + 4
    assert aligned(table, beside, names=0) == [f"mask{'one':>31}", f"{word}  1.00", "", f"mask{'two':>31}", f"{word}  2.00"]
    assert aligned(table, beside - 1, names=0)[1:3] == [f"{word[:-1]}  1.00", "_"]


def test_a_head_is_wrapped_where_it_does_not_fit_beside_the_names() -> None:
    table = [["mask", "FM3 all_gather nccl", "dense"], ["causal_document", "1.00", "2.00"]]
    assert aligned(table, 27, names=0) == [
        "mask                    FM3",
        "                 all_gather",
        "                       nccl",
        "causal_document        1.00",
        "",
        "mask             dense",
        "causal_document   2.00",
    ]


def test_columns_that_do_not_fit_stand_below_with_the_keys_again() -> None:
    assert aligned(TABLE, 24) == [
        "mask          one   two",
        "full         1.00  22.0",
        "a long name  4.00  5.00",
        "",
        "mask         three",
        "full           333",
        "a long name   6.00",
    ]


def test_what_stands_below_a_line_is_there_once_and_in_full() -> None:
    lines = aligned(TABLE, 24, below=["", "said of the full mask, at length", ""])
    assert lines[2:5] == ["      said of the full", "      mask, at length", "a long name  4.00  5.00"]
    assert sum("said" in line for line in lines) == 1


def test_colour_takes_no_room() -> None:
    painted = aligned(TABLE, 40, paint=lambda line, column, text: f"\x1b[1m{text}\x1b[0m" if line and column == 1 else text)
    assert [re.sub(r"\x1b\[\dm", "", line) for line in painted] == aligned(TABLE, 40)
    assert sum(line.count("\x1b[1m") for line in painted) == 2


@given(
    st.integers(40, 120),
    st.lists(st.lists(st.text("abc _", max_size=30), min_size=1, max_size=1), min_size=1, max_size=5),
    st.lists(st.integers(0, 10**9), min_size=1, max_size=12),
)
def test_no_line_is_wider_and_no_figure_is_lost(width: int, names: list[list[str]], figures: list[int]) -> None:
    table = [["name", *(f"c{i}" for i in range(len(figures)))], *([*name, *map(str, figures)] for name in names)]
    lines = aligned(table, width, names=0)
    assert max(map(len, lines)) <= width
    words = " ".join(lines).split()
    for figure in map(str, figures):
        assert words.count(figure) >= len(names)


def test_a_pipe_has_a_hundred_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    assert terminal_width() == WIDTH == 100
    monkeypatch.setattr(columns.sys, "stdout", type("Terminal", (), {"isatty": lambda self: True})())
    assert terminal_width() == 60


# -- the tables of the commands ----------------------------------------------------------------------------------------

STRATEGIES = ("all_gather", "all_gather_overlapped", "dual_chunk", "fm3", "magi", "ring", "ring_skip", "ulysses")


@pytest.mark.parametrize("width", [60, 80, 100])
@pytest.mark.parametrize("colour", [False, True])
def test_tables_of_ranks_fit(width: int, colour: bool) -> None:
    rows = [
        row
        for place, strategy in enumerate(STRATEGIES)
        for row in make_rounds(
            100.0 + place, kernel="fm3", strategy=strategy, exchange="symmetric", cp_degree=16, mask="global_sliding_window",
            rounds=2,
        )
    ]  # fmt: skip
    rows.append(make_row(kernel="fm3", strategy="ring", exchange="nccl", cp_degree=16, status="missing_backend"))
    text = render_table(cells_of(rows), colour=colour, width=width)
    bare = re.sub(r"\x1b\[\dm", "", text)
    assert max(map(len, bare.splitlines())) <= width
    for place in range(len(STRATEGIES)):
        assert len(re.findall(rf"\b{100 + place} ms", bare)) == 1  # each figure once, whole
    assert all(f"FM3 {strategy} symmetric" in bare for strategy in STRATEGIES) and "missing backend" in bare


@pytest.mark.parametrize("width", [60, 80, 100])
def test_names_of_ranks_and_of_their_masks_are_whole(width: int) -> None:
    """Two lists of documents, told apart by the last letter of their names."""
    lists = [f"documents_of_november_part_{part}.csv" for part in "ab"]
    rows = [
        make_row(
            kernel="fm3", strategy=strategy, exchange="symmetric", cp_degree=16, mask="prefix_lm_document", mask_variant=name,
            case_id=f"{strategy} {name}", mask_digest=name,
        )
        for strategy in ("all_gather_overlapped", "ring_skip") for name in lists
    ]  # fmt: skip
    text = render_table(cells_of(rows), width=width)
    assert max(map(len, text.splitlines())) <= width
    assert all(name in text for name in lists) and "\N{HORIZONTAL ELLIPSIS}" not in text
    assert {"all_gather_overlapped", "ring_skip"} <= set(text.split())


def test_tables_of_one_gpu_fit_a_pipe() -> None:
    kernels = ("fm3", "sdpa_flash", "sdpa_cudnn", "flex", "dense", "reference")
    rows = [row for kernel in kernels for row in make_rounds(1.0, kernel=kernel)]
    assert max(map(len, for_terminal(cells_of(rows)).splitlines())) <= 100


def test_the_ranking_of_a_plan_fits_a_pipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert plan.main(["mask=causal_document", "seqlen=32768", "hardware=h200_node", "passes=[forward]", "--out", "out"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100
    head = next(line for line in lines if "strategy" in line)
    shown = {word for line in lines for word in line.split()}
    assert {word for word in plan.HEAD if word} <= shown and "chunk" in head
