"""The data behind the figures, blank slots, refusals, and files that come out the same twice."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pandas as pd
import pytest
from row_factory import make_rounds, make_row, write_rows

from harness.rows import Row
from harness.terminal import for_terminal
from plots import bars, captions, catalogue, files, heatmap, lengths, style
from plots.__main__ import main
from plots.captions import FigureError
from plots.cells import cells_of
from plots.gallery import gallery


def rows_of_three() -> list[Row]:
    """Two masks, two lengths, three kernels; one failure and one unsupported case."""
    rows = []
    for seqlen, scale in ((4096, 1.0), (8192, 4.0)):
        for mask in ("full", "document"):
            common = {"mask": mask, "seqlen": seqlen, "rounds": 5}
            rows += make_rounds(1.0 * scale, kernel="reference", **common)
            rows += make_rounds(2.0 * scale, kernel="dense", noise=1, **common)
        rows += make_rounds(4.0 * scale, kernel="flex", noise=2, mask="full", seqlen=seqlen, rounds=5)
        status = "oom" if seqlen == 8192 else "unsupported"
        rows.append(make_row(kernel="flex", mask="document", seqlen=seqlen, status=status))
    return rows


def test_bars_hold_one_line_a_mask_and_series_with_the_ratio_over_the_best_rival() -> None:
    frame = bars.data(cells_of(rows_of_three()), 4096, "forward")
    assert list(frame.columns) == bars.COLUMNS
    assert list(frame["mask"]) == ["full"] * 3 + ["document"] * 3
    told = frame[frame["ratio"].notna()]
    assert list(told["series"]) == ["reference", "reference"]
    assert list(told["rival"]) == ["dense", "dense"]
    assert told["ratio"].to_numpy() == pytest.approx(2.0, rel=0.02)
    line = frame[(frame["mask"] == "full") & (frame["series"] == "dense")].iloc[0]
    assert line["low"] <= line["tflops"] <= line["high"]
    assert line["tflops"] == pytest.approx(4 * 2 * 4096**2 * 64 * 0.25 / 2e-3 / 1e12, rel=0.02)


def test_bars_count_by_tiles_only_when_asked() -> None:
    cells = cells_of(rows_of_three())
    exact, tiles = (bars.data(cells, 4096, "forward", how)["tflops"].dropna() for how in ("exact", "tile128"))
    assert (tiles / exact).to_numpy() == pytest.approx(0.3 / 0.25)


def test_failed_cases_keep_a_blank_slot_with_the_word() -> None:
    frame = bars.data(cells_of(rows_of_three()), 8192, "forward")
    failed = frame[frame["status"] != "ok"]
    assert list(failed["status"]) == ["oom"]
    assert failed[["tflops", "low", "high", "median_ms", "ratio"]].isna().all().all()
    figure = bars.draw(frame, "caption")
    assert "oom" in [text.get_text() for text in figure.axes[0].texts]
    heights = [patch.get_height() for container in figure.axes[0].containers for patch in container]
    assert sum(math.isnan(height) for height in heights) == 1
    assert len(heights) == 6


def test_a_ratio_is_taken_only_over_the_same_problem() -> None:
    rows = make_rounds(1.0, kernel="fm3", batch=1) + make_rounds(9.0, kernel="flex", batch=8)
    assert bars.data(cells_of(rows), 4096, "forward")["ratio"].isna().all()


def test_without_our_kernel_the_fastest_is_told() -> None:
    rows = make_rounds(2.0, kernel="flex") + make_rounds(1.0, kernel="sdpa_cudnn", noise=1)
    told = bars.data(cells_of(rows), 4096, "forward").dropna(subset=["ratio"])
    assert list(told["series"]) == ["sdpa_cudnn"]
    assert "the fastest" not in bars.note(told)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"protocol": "burst"}, "protocols"),
        ({"l2": "warm"}, "cache states"),
        ({"gpu": "Other"}, "machine"),
        ({"head_dim": 128}, "head dims"),
    ],
)
def test_what_cannot_be_compared_is_refused(change: dict[str, object], word: str) -> None:
    cells = cells_of(make_rounds(1.0) + make_rounds(1.0, kernel="dense", **change))
    for draw in (
        lambda: bars.data(cells, 4096, "forward"),
        lambda: lengths.data(cells, "forward"),
        lambda: captions.caption(cells),
    ):
        with pytest.raises(FigureError, match=word):
            draw()
    with pytest.raises(FigureError, match=word):
        heatmap.data(cells, "forward", "flex", "dense")


def test_no_rows_for_a_figure_is_an_error() -> None:
    with pytest.raises(FigureError, match="no rows"):
        bars.data(cells_of(rows_of_three()), 123, "forward")


def test_lengths_follow_each_series_and_leave_failures_empty() -> None:
    frame = lengths.data(cells_of(rows_of_three()), "forward")
    assert list(frame.columns) == lengths.COLUMNS
    flex = frame[(frame["mask"] == "document") & (frame["series"] == "flex")]
    assert list(flex["seqlen"]) == [4096, 8192]
    assert list(flex["status"]) == ["unsupported", "oom"]
    assert flex["tflops"].isna().all()
    assert "oom, unsupported" in lengths.note(frame)
    figure = lengths.draw(frame, "caption")
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["full", "document"]
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["4K", "8K"]


def test_heat_map_holds_paired_ratios_and_words() -> None:
    cells = cells_of(rows_of_three())
    assert heatmap.pairs(cells) == [("reference", "dense"), ("reference", "flex")]
    frame = heatmap.data(cells, "forward", "reference", "flex")
    full = frame[frame["mask"] == "full"]
    assert full["ratio"].to_numpy() == pytest.approx(4.0, rel=0.02)
    assert list(full["rounds"]) == [5, 5]
    assert list(frame[frame["mask"] == "document"]["status"]) == ["unsupported", "oom"]
    texts = [text.get_text() for text in heatmap.draw(frame, "caption").axes[0].texts]
    assert {"unsupported", "oom"} <= set(texts)
    assert sum(text.endswith(style.TIMES) for text in texts) == 2


def test_heat_map_marks_a_ratio_that_may_be_one() -> None:
    noisy = make_rounds(1.0, spread=0.2, samples=1, kernel="reference") + make_rounds(
        1.0, spread=0.2, samples=1, noise=5, kernel="dense"
    )
    frame = heatmap.data(cells_of(noisy), "forward", "reference", "dense")
    assert heatmap.draw(frame, "").axes[0].texts[0].get_text().startswith("~")


def test_heat_map_needs_a_meeting() -> None:
    rows = make_rounds(1.0, kernel="flex", mask="full") + make_rounds(1.0, kernel="dense", mask="causal")
    with pytest.raises(FigureError, match="both flex and dense"):
        heatmap.data(cells_of(rows), "forward", "flex", "dense")


def test_caption_is_built_from_the_rows() -> None:
    rows = make_rounds(1.0, rounds=5, samples=7, gpu="NVIDIA H200", git_dirty=True)
    text = captions.caption(cells_of(rows), "A note.")
    for part in ("MEASURED", "NVIDIA H200 (700 W)", "sustained, cold L2", "bfloat16, 2/2 heads, D=64", "5 rounds, 35 samples"):
        assert part in text
    assert "0123456789+" in text
    assert text.endswith("2026-01-02\nA note.")


def test_a_caption_says_what_a_busy_processor_did() -> None:
    rows = [make_row(clocks={"other_busy_cores": cores}, round=n) for n, cores in enumerate((0.0, 1.04))]
    rows.append(make_row(mask="causal", clocks={"other_busy_cores": 0.2}))
    told = "1 of 2 cells have rounds in which other programs kept up to 1.0 cores busy: those are slower than the machine."
    assert told in captions.caption(cells_of(rows))
    assert told in " ".join(for_terminal(cells_of(rows)).split())
    assert "busy" not in captions.caption(cells_of(rows[2:])) + for_terminal(cells_of(rows[2:]))


def test_simulated_figures_carry_the_watermark_and_mixed_ones_label_every_series() -> None:
    simulated = cells_of(
        make_rounds(1.0, kernel="fm3", source="simulated", gpu="Model") + make_rounds(2.0, source="simulated", gpu="Model")
    )
    assert captions.is_simulated(simulated)
    assert captions.caption(simulated).startswith("SIMULATED")
    (drawn,) = [item for item in catalogue.figures(simulated) if item.kind == "bars"]
    assert "SIMULATED" in [text.get_text() for text in drawn.figure().texts]
    mixed = [*simulated, *cells_of(make_rounds(3.0, kernel="dense"))]
    assert captions.caption(mixed).startswith("MEASURED + SIMULATED")
    series = set(bars.data(mixed, 4096, "forward")["series"])
    assert series == {"fm3 (simulated)", "flex (simulated)", "dense (measured)"}
    measured = next(iter(catalogue.figures(cells_of(rows_of_three()))))
    assert "SIMULATED" not in [text.get_text() for text in measured.figure().texts]


def test_series_of_ranks_look_like_their_strategy() -> None:
    looks = [style.look_of(f"fm3 {name} nccl (simulated)", "fm3") for name in style.STRATEGIES]
    assert len({(look.colour, look.hatch) for look in looks}) == len(looks)
    assert style.look_of("fm3", "fm3") == style.look_of("fm3 (measured)", "fm3") == style.look("fm3")
    assert style.look_of("fm3 unknown nccl", "fm3") == style.look("fm3")


def test_colours_are_fixed_and_no_two_kernels_look_alike() -> None:
    looks = [style.look(name) for name in style.KERNELS]
    assert len({(look.colour, look.hatch) for look in looks}) == len(looks)
    assert len({look.marker for look in looks}) == len(looks)
    assert style.look("a_new_kernel") == style.look("a_new_kernel")
    assert style.look("a_new_kernel").colour not in {look.colour for look in looks}


@pytest.mark.parametrize("suffix", files.FORMATS)
def test_equal_rows_give_equal_bytes(suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def once() -> bytes:
        cells = cells_of(rows_of_three())
        frame = bars.data(cells, 4096, "forward")
        return files.to_bytes(bars.draw(frame, captions.caption(cells), title="title"), suffix)

    first = once()
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "12345")
    assert once() == first
    if suffix == "pdf":
        assert b"/FontFile2" in first  # embedded TrueType
        assert b"CreationDate" not in first


def test_strings_from_rows_cannot_break_a_figure() -> None:
    nasty = r"$\frac{1}{ <script>alert(1)</script> --> " + "\x00\x1b[31m"
    rows = make_rounds(1.0, mask=nasty, kernel=nasty, gpu=nasty) + make_rounds(2.0, mask=nasty, kernel="dense", gpu=nasty)
    for drawn in catalogue.figures(cells_of(rows)):
        text = files.to_bytes(drawn.figure(), "svg").decode()
        assert "<script" not in text
        assert "\x00" not in text
        assert re.fullmatch(r"[a-z0-9_-]+", drawn.folder)


def test_settings_never_share_a_folder() -> None:
    rows = [make_row(gpu=name) for name in ("GPU A", "gpu/a", "GPU+A", "../..")]
    folders = {drawn.folder for drawn in catalogue.figures(cells_of(rows))}
    assert len(folders) == 4
    assert not any("/" in folder or "." in folder for folder in folders)


@pytest.mark.parametrize(("tokens", "text"), [(4096, "4K"), (131072, "128K"), (1048576, "1M"), (1000, "1000"), (1536, "1536")])
def test_lengths_read_well(tokens: int, text: str) -> None:
    assert style.length_label(tokens) == text


def test_the_command_draws_what_the_rows_allow(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plots.__main__.gallery", lambda: gallery(["causal", "document"]))
    rows = [row for row in rows_of_three() if row["kernel"] != "flex"]
    write_rows(tmp_path, rows)
    assert main([str(tmp_path), "--out", str(tmp_path / "out")]) == 0
    names = sorted(path.name for path in (tmp_path / "out").rglob("*.csv"))
    assert names == [
        "bars_forward_4096.csv",
        "bars_forward_8192.csv",
        "lengths_forward.csv",
        "masks.csv",
        "speedup_reference_over_dense_forward.csv",
    ]
    for suffix in files.FORMATS:
        assert len(list((tmp_path / "out").rglob(f"*.{suffix}"))) == 5
    output = capsys.readouterr().out
    assert "5 figures" in output
    assert "lengths_forward" in output
    frame = pd.read_csv(next((tmp_path / "out").rglob("lengths_forward.csv")))
    assert len(frame) == 8


def test_the_command_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "nowhere")]) == 2
    assert main([str(tmp_path)]) == 2
    assert "no rows below" in capsys.readouterr().err
    path = write_rows(tmp_path, [make_row()])
    path.write_text(path.read_text() + "not a row\n" + path.read_text())
    assert main([str(tmp_path)]) == 4
    assert "run-1.jsonl:2" in capsys.readouterr().err
