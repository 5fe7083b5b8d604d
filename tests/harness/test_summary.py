"""The summary table and the terminal table: columns, pooling, failures, bytes, exit codes."""

from __future__ import annotations

import csv
import io
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
from row_factory import make_rounds, make_row, write_rows

from harness.findings import duels, mean_ratio, places, wins
from harness.rows import Row
from harness.summary import COLUMNS, main, summary_csv
from harness.terminal import render_reasons, render_table, three_digits
from plots.cells import cells_of

EXPECTED_COLUMNS = (
    "gpu, power_limit, protocol, source, kernel, kernel_version, source_hash, strategy, exchange, mask, mask_variant, seed, "
    "mask_digest, seqlen, batch, heads, kv_heads, head_dim, dtype, pass, deterministic, cp_degree, status, rounds, samples, "
    "median_ms, q25_ms, q75_ms, ci_low_ms, ci_high_ms, setup_ms, tflops, tflops_tile128, density, tile_density, t_full_ms, "
    "t_comp_ms, t_comm_ms, exposed_ms, bare_comm_ms, overlap, balance, recv_bytes, recv_bytes_max, recv_share, plan_ms, "
    "scaling, host_us, l2, git_sha"
)
FIGURES = ("rounds", "samples", "median_ms", "q25_ms", "q75_ms", "ci_low_ms", "ci_high_ms", "setup_ms", "tflops", "host_us")


def table(rows: list[Row]) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(summary_csv(cells_of(rows)))))


def test_columns_are_the_agreed_ones() -> None:
    assert ", ".join(COLUMNS) == EXPECTED_COLUMNS
    assert summary_csv([]).strip() == EXPECTED_COLUMNS.replace(" ", "")


def test_a_line_holds_the_pooled_figures() -> None:
    rows = [
        make_row(
            samples_ms=[1.0, 2.0, 3.0], round=0, flops=3e9, flops_tile128=6e9, tile_density=0.5, setup_ms=1.0, host_us=10.0
        ),
        make_row(samples_ms=[4.0, 5.0], round=1, flops=3e9, flops_tile128=6e9, tile_density=0.5, setup_ms=3.0, host_us=30.0),
    ]
    (line,) = table(rows)
    assert (line["rounds"], line["samples"], line["median_ms"]) == ("2", "5", "3")
    assert (line["q25_ms"], line["q75_ms"]) == ("2", "4")
    assert (line["tflops"], line["tflops_tile128"]) == ("1", "2")
    assert (line["setup_ms"], line["host_us"]) == ("2", "20")
    assert float(line["ci_low_ms"]) <= 3 <= float(line["ci_high_ms"])
    assert (line["deterministic"], line["strategy"], line["recv_share"]) == ("false", "", "")
    assert (line["gpu"], line["power_limit"], line["l2"]) == ("Test GPU", "700", "cold")


def test_one_round_has_no_interval() -> None:
    (line,) = table([make_row()])
    assert (line["ci_low_ms"], line["ci_high_ms"]) == ("", "")
    assert line["median_ms"] == "1"


def test_one_line_a_case_protocol_and_gpu() -> None:
    rows = (
        make_rounds(1.0)
        + make_rounds(1.0, protocol="burst")
        + make_rounds(1.0, gpu="Other")
        + make_rounds(1.0, pass_="backward")
    )
    lines = table(rows)
    assert len(lines) == 4
    assert len({(line["gpu"], line["protocol"], line["pass"]) for line in lines}) == 4


def test_only_the_newest_source_hash_of_a_kernel_is_in_the_table() -> None:
    rows = make_rounds(1.0, source_hash="old", time="2026-01-01T00:00:00Z") + make_rounds(
        2.0, source_hash="new", run_id="run-2"
    )
    rows += make_rounds(1.0, source_hash="old", mask="causal", time="2026-01-01T00:00:00Z")
    (line,) = table(rows)
    assert (line["source_hash"], line["rounds"]) == ("new", "5")


@pytest.mark.parametrize(
    "status", ["incorrect", "unsupported", "missing_backend", "oom", "timeout", "compile_error", "crash", "interrupted"]
)
def test_a_failed_case_has_a_line_without_figures(status: str) -> None:
    (line,) = table([make_row(status=status)])
    assert line["status"] == status
    assert all(line[name] == "" for name in FIGURES)


def test_a_failure_after_good_rounds_shows_as_failure() -> None:
    (line,) = table([*make_rounds(1.0), make_row(status="crash", time="2026-02-01T00:00:00Z")])
    assert (line["status"], line["median_ms"]) == ("crash", "")


def test_the_commit_says_when_it_was_dirty() -> None:
    assert table([make_row(git_sha="abc", git_dirty=True)])[0]["git_sha"] == "abc-dirty"
    assert table([make_row(git_sha=None, git_dirty=None)])[0]["git_sha"] == ""


def test_bytes_do_not_depend_on_the_order_of_rows() -> None:
    rows = make_rounds(1.0) + make_rounds(2.0, kernel="dense", power_limit=None) + make_rounds(3.0, mask="full", variant=None)
    shuffled = rows.copy()
    random.Random(4).shuffle(shuffled)
    assert summary_csv(cells_of(rows)) == summary_csv(cells_of(shuffled))


def test_text_with_commas_quotes_and_newlines_survives() -> None:
    name = 'a, "b"\nc'
    assert table([make_row(variant=name)])[0]["mask_variant"] == name


def test_command_writes_the_file_and_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "nowhere")]) == 2
    assert main([str(tmp_path)]) == 2
    assert "no rows below" in capsys.readouterr().err
    path = write_rows(tmp_path, make_rounds(1.0))
    assert main([str(tmp_path)]) == 0
    first = (tmp_path / "summary.csv").read_bytes()
    assert main([str(tmp_path), "--out", str(tmp_path / "deep" / "other.csv"), "--table"]) == 0
    assert (tmp_path / "deep" / "other.csv").read_bytes() == first
    assert "document" in capsys.readouterr().out
    assert main([str(tmp_path), "--out", str(tmp_path / "summary.csv" / "x.csv")]) == 2
    path.write_text('{"schema_version": 99}\n' + path.read_text())
    assert main([str(tmp_path)]) == 4
    assert "schema_version is 99" in capsys.readouterr().err


def test_command_as_it_is_typed(tmp_path: Path) -> None:
    write_rows(tmp_path, make_rounds(1.0))
    done = subprocess.run([sys.executable, "-m", "harness.summary", str(tmp_path)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "1 lines, 1 with figures" in done.stdout


# -- the terminal ----------------------------------------------------------------------------------------------------


def three() -> list[Row]:
    rows = make_rounds(1.0, kernel="reference") + make_rounds(2.0, kernel="dense")
    rows += make_rounds(2.0, kernel="reference", mask="full") + make_rounds(1.0, kernel="dense", mask="full")
    return [*rows, make_row(kernel="flex", status="missing_backend"), make_row(kernel="flex", mask="full", status="oom")]


def test_table_marks_the_fastest_and_names_failures() -> None:
    lines = render_table(cells_of(three())).splitlines()
    assert "4K tokens, forward" in lines[0]
    full, document = (next(line for line in lines if re.match(rf"\s*{name}\b", line)) for name in ("full", "document"))
    assert re.search(r"2\.0\d ms +\d[\d.]+ +(1\.0\d|0\.99\d|1\.00) ms \*.*oom", full)
    assert re.search(r"(0\.99\d|1\.0\d) ms \*.*missing backend", document)
    assert lines.index(full) < {line: i for i, line in enumerate(lines)}[document]


def test_table_is_bold_where_there_is_colour() -> None:
    text = render_table(cells_of(three()), colour=True)
    assert re.search(r"\x1b\[1m[^\x1b]* ms", text)
    assert "*" not in text
    assert "\x1b" not in render_table(cells_of(three()))


def test_table_prints_no_control_characters_or_markup_from_rows() -> None:
    text = render_table(cells_of([make_row(mask="[red]x[/red]\x1b[2J\x07", gpu="a\x1b]0;b")]))
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "[red]x[/red]" in text


def test_why_cases_are_unsupported_is_said_once_a_competitor_and_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(kernel: str, mask: str, reason: str, **fields: object) -> Row:
        return make_row(kernel=kernel, mask=mask, status="unsupported", reason=reason, **fields)

    causal = "expresses full and causal masks only"
    rows = [
        refused("sdpa_flash", mask, causal, pass_=name)
        for mask in ("document", "qk_sparse")
        for name in ("forward", "backward")
    ]
    rows += [refused("sdpa_flash", "full", "no\x1b[2J D=64"), refused("fm3", "full", "needs 2 heads", strategy="ulysses")]
    write_rows(tmp_path, [*rows, *make_rounds(1.0), make_row(kernel="dense", status="oom")])
    assert main([str(tmp_path), "--table"]) == 0
    printed = capsys.readouterr().out
    assert [line for line in printed.splitlines() if "unsupported in" in line] == [
        "FM3 ulysses: unsupported in 1 case: needs 2 heads",
        f"SDPA FA2: unsupported in 4 cases: {causal}",
        "SDPA FA2: unsupported in 1 case: no [2J D=64",
    ]
    assert "oom for a test" not in printed


def test_where_all_is_supported_nothing_is_said() -> None:
    assert render_reasons(cells_of(three())) == ""


@pytest.mark.parametrize(
    ("value", "text"), [(0.1234, "0.123"), (1.2, "1.20"), (12.0, "12.0"), (99.96, "100"), (120.4, "120"), (1234.0, "1234")]
)
def test_three_digits(value: float, text: str) -> None:
    assert three_digits(value) == text


# -- findings --------------------------------------------------------------------------------------------------------


def test_wins_and_duels() -> None:
    cells = cells_of(three())
    found = places(cells)
    assert [place.label for place in found] == ["full", "document"]
    assert wins(found) == [("dense", 1, 1), ("reference", 1, 1)]
    ratios = {duel.label: duel.ratio.value for duel in duels(cells, "reference", "dense")}
    assert ratios["document"] == pytest.approx(2.0, rel=0.02)
    assert ratios["full"] == pytest.approx(0.5, rel=0.02)
    assert mean_ratio(duels(cells, "reference", "dense")) == pytest.approx(1.0, rel=0.02)
    assert duels(cells, "reference", "flex") == []


def test_a_lone_competitor_wins_nothing() -> None:
    assert wins(places(cells_of(make_rounds(1.0)))) == []


def test_a_lead_within_the_noise_is_not_sure() -> None:
    rows = make_rounds(1.0, spread=0.3, samples=1) + make_rounds(1.0, spread=0.3, samples=1, noise=9, kernel="dense")
    assert [entry[1:] for entry in wins(places(cells_of(rows)))] == [(1, 0)]
