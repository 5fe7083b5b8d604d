"""README.md and the kernel log say what the rows say, and the README's commands exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from row_factory import make_rounds, make_row

from harness import provenance
from harness.marked import with_part
from harness.provenance import ROOT
from harness.readme import CLAIMS, LOG, METHOD, RESULTS, main, table, updated, updated_log, updated_method
from plots.cells import cells_of, load_rows

README = (ROOT / "README.md").read_text()


def test_it_says_what_the_committed_rows_say() -> None:
    rows = load_rows(ROOT / "results")
    cells = cells_of(rows)
    assert updated(README, cells) == README, "run `make summary`"
    log = (ROOT / LOG).read_text()
    assert updated_log(log, cells) == log, "run `make summary`"
    how = (ROOT / METHOD).read_text()
    assert updated_method(how, rows, ROOT / "results") == how, "run `make summary`"


def test_the_table_shows_both_passes_of_one_shape_and_a_dash_for_what_is_missing() -> None:
    shape = {"seqlen": 8192, "gpu": "NVIDIA H200", "power_limit": 700, "heads": 32, "kv_heads": 32, "head_dim": 128}
    rows = [
        *make_rounds(2.0, kernel="flex", mask="causal", **shape),
        *make_rounds(1.0, kernel="sdpa_cudnn", mask="full", **shape),
        *make_rounds(1.0, kernel="sdpa_flash", mask="full", **shape | {"heads": 64, "kv_heads": 64, "head_dim": 64}),
    ]
    lines = [line for line in table(cells_of(rows)).splitlines() if line.startswith(("| full", "| causal"))]
    assert [line.count("| - |") for line in lines] == [1, 1]
    assert all(re.search(r"\d+ / -", line) for line in lines)


def test_a_row_of_the_table_is_one_problem() -> None:
    """Another batch of the same mask is not mixed in: the problem that most kernels have."""
    shape = {"seqlen": 8192, "gpu": "NVIDIA H200", "power_limit": 700, "heads": 32, "kv_heads": 32, "head_dim": 128}
    rows = [row for kernel in ("fm3", "flex") for row in make_rounds(1.0, kernel=kernel, mask="full", **shape)]
    alone = table(cells_of(rows))
    rows += make_rounds(9.0, kernel="flex_tuned", mask="full", **shape | {"batch": rows[0]["batch"] + 1})
    (line,) = (line for line in table(cells_of(rows)).splitlines() if line.startswith("| full"))
    assert line.endswith("| - |") and line.removesuffix(" - |") in alone


def test_a_mask_that_only_failed_has_a_line_of_dashes() -> None:
    shape = {"seqlen": 8192, "gpu": "NVIDIA H200", "power_limit": 700, "heads": 32, "kv_heads": 32, "head_dim": 128}
    rows = [
        *make_rounds(1.0, kernel="fm3", mask="full", **shape),
        make_row(kernel="fm3", mask="causal", status="crash", **shape),
    ]
    assert "| causal | - | - |" in table(cells_of(rows))


def test_a_missing_marker_is_named() -> None:
    for name in (RESULTS, CLAIMS):
        with pytest.raises(ValueError, match=f"{name}: end"):
            with_part(README.replace(f"<!-- {name}: end -->", ""), name, "x")


def test_make_targets_and_files_of_the_readme_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"\bmake ([a-z-]+)", README):
        assert re.search(rf"^{target}:", makefile, re.M), target
    for path in re.findall(r"`((?:docs|results|plots)/[\w./-]+)`", README):
        assert (ROOT / path).exists(), path


def test_where_there_is_no_page_or_no_row_one_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in an installed copy, which has neither; then step by step what a checkout has."""
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    page, log, how, rows = tmp_path / "README.md", tmp_path / LOG, tmp_path / METHOD, tmp_path / "results" / "rows"
    steps = ((None, "no README.md in"), (page, f"no {LOG} in"), (log, f"no {METHOD} in"), (how, "no results in"))
    for made, said in (*steps, (rows, "no rows below")):
        if made == rows:
            rows.mkdir(parents=True)
        elif made is not None:
            made.parent.mkdir(exist_ok=True)
            made.write_text(README)
        assert main([]) == 2
        told = capsys.readouterr().err
        assert told.startswith(f"readme: {said}") and told.count("\n") == 1
    assert page.read_text() == README


def test_a_word_that_it_does_not_know_changes_no_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    for page in ("README.md", LOG, METHOD):
        (tmp_path / page).parent.mkdir(exist_ok=True)
        (tmp_path / page).write_text(README)
    with pytest.raises(SystemExit) as left:
        main(["results/local"])
    assert left.value.code == 2
