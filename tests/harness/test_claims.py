"""The claims: a fixture of known truth for every verdict and every way in which a ratio is known."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from row_factory import make_rounds, write_rows

from harness.claims import figure, text
from harness.claims.__main__ import main
from harness.claims.judge import NOT_REPRODUCED, NOT_RUN, REPRODUCED, Judgement, judge
from harness.claims.paper import CLAIMS, DEGREES, LENGTHS, MASKS, Claim
from harness.claims.speeds import CHAIN, ONE_RUN, SERIES, THROUGH
from harness.rows import Row
from plots import files
from plots.cells import cells_of
from plots.published import Published, read_published

H100: dict[str, Any] = {"gpu": "NVIDIA H100 80GB HBM3", "head_dim": 128, "rounds": 2, "samples": 1, "spread": 0.0}
H200 = H100 | {"gpu": "NVIDIA H200"}
FLEX = next(claim for claim in CLAIMS if claim.name == "flex")
MAGI = next(claim for claim in CLAIMS if claim.name == "magi")
FLASHMASK = next(claim for claim in CLAIMS if claim.name == "flashmask")
RING = next(claim for claim in CLAIMS if claim.name == "ring")

Gain = Callable[[str, int], float]


def one_run(gain: Gain, *, passes: tuple[str, ...] = ("forward", "backward"), masks: tuple[str, ...] = MASKS) -> list[Row]:
    """fm3 and FlexAttention in one run; fm3 is ``gain(mask, tokens)`` times as fast."""
    rows = []
    for mask in masks:
        for tokens in LENGTHS:
            for pass_ in passes:
                common = {"mask": mask, "seqlen": tokens, "pass_": pass_, **H100}
                rows += make_rounds(10.0 * gain(mask, tokens), kernel="flex", **common)
                rows += make_rounds(10.0, kernel="fm3", **common)
    return rows


def rising(low: float, high: float) -> Gain:
    """Gains from ``low`` at the first mask to ``high`` at the last."""
    return lambda mask, tokens: low + (high - low) * MASKS.index(mask) / (len(MASKS) - 1)


def only(rows: list[Row], claim: Claim = FLEX, published: list[Published] | None = None) -> Judgement:
    (found,) = judge(cells_of(rows), published or [], [claim])
    return found


def test_the_faster_of_default_and_tuned_is_the_competitor() -> None:
    """A pass each: tuned forward twice as fast as default, backward half as fast."""
    rows = one_run(lambda mask, tokens: 3.0)
    for row in [row for row in rows if row["kernel"] == "flex"]:
        factor = 0.5 if row["pass"] == "forward" else 2.0
        samples = [factor * sample for sample in row["samples_ms"]]
        rows.append(row | {"kernel": "flex_tuned", "case_id": row["case_id"][::-1], "samples_ms": samples})
    found = only(rows)
    assert found.alone["forward"][0].ratio.value == pytest.approx(1.5)
    assert found.alone["backward"][0].ratio.value == pytest.approx(3.0)


# -- the claims as data ------------------------------------------------------------------------------------------------


def test_the_claims_are_the_papers() -> None:
    found = {claim.name: (claim.low, claim.high, claim.unit) for claim in CLAIMS}
    assert found == {
        "flashmask": (1.45, 2.41, "gain"),
        "flex": (1.34, 1.71, "gain"),
        "magi": (1.02, 1.44, "gain"),
        "overlap": (0.31, 0.75, "share"),
        "ring": (1.80, 3.71, "times"),
        "all_gather": (1.71, 2.92, "times"),
        "magi_shared": (1.09, 1.46, "times"),
        "model": (1.073, 1.110, "gain"),
        "model_attention": (1.245, 1.449, "gain"),
    }
    assert len(FLEX.cases) == len(MASKS) * len(LENGTHS) == 48
    assert len(MAGI.cases) == 44
    assert {case[1:] for case in RING.cases} == {(8192 * degree, degree) for degree in DEGREES}


# -- verdicts ----------------------------------------------------------------------------------------------------------


def test_reproduced_when_every_case_gains_the_least_and_one_the_most() -> None:
    found = only(one_run(rising(1.35, 1.75)))
    assert found.verdict == REPRODUCED
    assert (found.machine, len(found.compared)) == ("NVIDIA H100 80GB HBM3 (700 W)", 48)
    assert not found.elsewhere
    assert {one.how for one in found.compared} == {ONE_RUN}
    assert text.here(found) == "+35% to +75% (48 of 48 cases)"


def test_not_reproduced_by_a_single_case_below_the_least() -> None:
    found = only(one_run(lambda mask, tokens: 1.33 if (mask, tokens) == ("document", 32768) else 1.8))
    assert found.verdict == NOT_REPRODUCED
    assert found.reason == "1 of 48 cases gain less than the paper's least, +34%; the least is +33% (document, 32K)"


def test_not_reproduced_when_no_case_gains_the_most() -> None:
    found = only(one_run(rising(1.4, 1.6)))
    assert found.verdict == NOT_REPRODUCED
    assert "no case gains the paper's most, +71%; the most is +60%" in found.reason


def test_not_run_while_cases_are_missing_unless_one_contradicts() -> None:
    few = MASKS[:3]
    found = only(one_run(lambda *_: 1.8, masks=few))
    assert (found.verdict, len(found.compared)) == (NOT_RUN, 12)
    others = ", ".join(mask.replace("_", " ") for mask in MASKS[3:-1])
    lengths = "4K, 8K, 32K and 128K"
    assert found.reason == (
        f"36 of 48 cases could not be compared ({others} and random eviction at {lengths}); the others keep the claim"
    )
    assert only(one_run(lambda *_: 1.2, masks=few)).verdict == NOT_REPRODUCED


def test_missing_cases_are_summed_up_by_length_and_mask() -> None:
    rows = [row for row in one_run(lambda *_: 1.8) if row["seqlen"] != 4096]
    rows = [row for row in rows if (row["mask"], row["seqlen"]) not in {("full", 8192), ("causal", 8192), ("causal", 32768)}]
    assert "15 of 48 cases could not be compared (all at 4K; full at 8K; causal at 8K and 32K)" in only(rows).reason


def test_not_run_on_one_pass_alone_which_is_shown_but_decides_nothing() -> None:
    found = only(one_run(lambda *_: 1.1, passes=("forward",)))
    assert found.verdict == NOT_RUN
    assert found.reason == "FM3 has rows of the forward pass alone"
    assert text.here(found) == "forward alone +10% to +10% (48 of 48 cases)"


def test_forward_and_backward_are_weighed_by_their_times() -> None:
    rows = []
    for kernel, forward, backward in (("fm3", 1.0, 3.0), ("flex", 3.0, 3.0)):
        for pass_, ms in (("forward", forward), ("backward", backward)):
            rows += make_rounds(ms, kernel=kernel, mask="causal", pass_=pass_, **H100)
    found = only(rows)
    assert [one.ratio.value for one in found.compared] == [pytest.approx(6.0 / 4.0)]
    assert found.alone["forward"][0].ratio.value == pytest.approx(3.0)


def test_a_pass_called_both_is_forward_and_backward() -> None:
    found = only(one_run(rising(1.35, 1.75), passes=("both",)))
    assert (found.verdict, len(found.compared), found.alone) == (REPRODUCED, 48, {})


@pytest.mark.parametrize(
    "change",
    [
        {"source": "simulated"},
        {"device": "cpu"},
        {"dtype": "float16"},
        {"head_dim": 64},
        {"deterministic": True},
        {"status": "incorrect"},
    ],
)
def test_rows_of_another_kind_do_not_count(change: dict[str, Any]) -> None:
    rows = [row for kernel in ("fm3", "flex") for row in make_rounds(1.0, kernel=kernel, **(H100 | change))]
    found = only(rows)
    assert (found.verdict, found.machine) == (NOT_RUN, None)
    assert "no measured rows of FM3" in found.reason


def test_every_document_list_of_the_paper_counts_and_no_other_mask() -> None:
    rows = one_run(rising(1.35, 1.75))
    common = {"mask": "document", "seqlen": 8192, **H100}
    for variant, gain in (("a", 1.3), ("my.csv", 1.1)):
        for pass_ in ("forward", "backward"):
            rows += make_rounds(gain, kernel="flex", variant=variant, mask_digest=variant, pass_=pass_, **common)
            rows += make_rounds(1.0, kernel="fm3", variant=variant, mask_digest=variant, pass_=pass_, **common)
    found = only(rows)
    assert found.reason == "1 of 48 cases gain less than the paper's least, +34%; the least is +30% (document, 8K)"
    assert (len(found.compared), text.here(found)) == (49, "+30% to +75% (48 of 48 cases)")
    narrow = [row for kernel in ("fm3", "flex") for row in make_rounds(1.0, kernel=kernel, mask="sliding_window", **H100)]
    assert only([row | {"mask_params": {"window": 64}} for row in narrow]).machine is None


def test_machines_and_protocols_are_judged_apart() -> None:
    rows = one_run(rising(1.35, 1.75))
    slow = [row | {"gpu": "NVIDIA H200", "run_id": "other"} for row in one_run(lambda *_: 1.0, masks=("causal",))]
    burst = [row for kernel in ("fm3", "flex") for row in make_rounds(1.0, kernel=kernel, protocol="burst", **H100)]
    found = judge(cells_of([*rows, *slow, *burst]), [], [FLEX])
    assert [(one.machine, one.protocol, one.verdict) for one in found] == [
        ("NVIDIA H100 80GB HBM3 (700 W)", "burst, cold L2", NOT_RUN),
        ("NVIDIA H100 80GB HBM3 (700 W)", "sustained, cold L2", REPRODUCED),
        ("NVIDIA H200 (700 W)", "sustained, cold L2", NOT_REPRODUCED),
    ]
    assert [one.elsewhere for one in found] == [False, False, True]
    assert "(not the paper's GPU)" in text.place(found[2])


def test_ranks_that_share_a_sequence_are_compared_in_one_run_only() -> None:
    rows = []
    for strategy, ms in (("fm3", 1.0), ("ring", 2.5)):
        for mask in MASKS:
            for degree in DEGREES:
                for pass_ in ("forward", "backward"):
                    common = {"mask": mask, "seqlen": 8192 * degree, "cp_degree": degree, "pass_": pass_}
                    rows += make_rounds(ms, kernel="fm3", strategy=strategy, exchange="nccl", **common, **H100)
    found = only(rows, RING)
    assert (found.verdict, len(found.compared)) == (NOT_REPRODUCED, 48)
    assert "no case gains the paper's most, 3.71" in found.reason
    apart = [row | {"run_id": row["strategy"]} for row in rows]
    assert only(apart, RING).compared == ()


# -- how a ratio is known ----------------------------------------------------------------------------------------------


def beside_cudnn(kernel: str, ms: float, run: str, card: str, *, slow: float = 1.0, cudnn: bool = True) -> list[Row]:
    """A kernel on the causal mask, and cuDNN's full attention beside it, on a card that is ``slow`` times as slow."""
    rows = []
    for pass_, cudnn_ms in (("forward", 4.0), ("backward", 10.0)):
        common = {"pass_": pass_, "run_id": run, "gpu_hash": card, "density": 1.0, "tile_density": 1.0, **H200}
        rows += make_rounds(
            ms * cudnn_ms * slow, kernel=kernel, mask="causal", **(common | {"density": 0.5, "tile_density": 0.5})
        )
        if cudnn:
            rows += make_rounds(cudnn_ms * slow, kernel="sdpa_cudnn", mask="full", **common)
    return rows


def test_runs_on_two_cards_are_compared_over_the_cudnn_of_each() -> None:
    rows = beside_cudnn("fm3", 0.5, "run-a", "card-a") + beside_cudnn("flex", 0.8, "run-b", "card-b", slow=1.05)
    (one,) = only(rows).compared
    assert one.how == THROUGH
    assert one.ratio.value == pytest.approx(1.6)
    assert not one.ratio.interval.known
    assert {cell["kernel"] for cell in one.cells} == {"fm3", "flex", "sdpa_cudnn"}


def test_an_anchor_of_another_run_counts_on_the_same_card_and_on_no_other() -> None:
    ours = beside_cudnn("fm3", 0.5, "run-a", "card-a")
    rival = beside_cudnn("flex", 0.8, "run-c", "card-b", slow=1.05, cudnn=False)
    assert only(ours + rival).compared == ()
    anchor = [row for row in beside_cudnn("flex", 1.0, "run-b", "card-b", slow=1.05) if row["kernel"] == "sdpa_cudnn"]
    (one,) = only(ours + rival + anchor).compared
    assert one.ratio.value == pytest.approx(1.6)


def test_of_several_anchors_the_one_of_the_same_card_counts() -> None:
    """Two cuDNNs that are cells of their own, since their cases differ: whichever comes first, each kernel takes its own."""
    ours = beside_cudnn("fm3", 0.5, "run-a", "card-a")
    rival = beside_cudnn("flex", 0.8, "run-b", "card-b", slow=1.25)
    for other in (ours, rival):
        renamed = [row | {"case_id": row["case_id"][::-1]} if row["kernel"] == "sdpa_cudnn" else row for row in other]
        (one,) = only([*renamed, *(rival if other is ours else ours)]).compared
        assert one.how == THROUGH
        assert one.ratio.value == pytest.approx(1.6)


def published(kernel: str, mask: str, forward: float, backward: float, **change: Any) -> list[Published]:
    common = {"source": "a run elsewhere", "gpu": "NVIDIA H200", "convention": "tile128", "note": "", "kernel": kernel}
    common |= {"mask": mask, "seqlen": 4096, "batch": 1, "heads": 2, "head_dim": 128, "dtype": "bfloat16", "ms": None}
    common |= {"density": None, "tile_density": 1.0 if mask == "full" else 0.5}
    return [
        Published(**(common | {"pass_": pass_, "tflops": tflops} | change))
        for pass_, tflops in (("forward", forward), ("backward", backward))
    ]


def test_a_published_series_is_compared_over_its_own_cudnn() -> None:
    ours = beside_cudnn("fm3", 0.5, "run-a", "card-a")  # a TFLOP takes as long as cuDNN's
    series = published("magi_ffa", "causal", 300.0, 250.0) + published("sdpa_cudnn", "full", 600.0, 500.0)
    (one,) = only(ours, MAGI, series).compared
    assert (one.how, one.ratio.value) == (SERIES, pytest.approx(2.0))
    assert {found.kernel for found in one.figures} == {"magi_ffa", "sdpa_cudnn"}
    assert text.sources(only(ours, MAGI, series)) == ["a run elsewhere"]


@pytest.mark.parametrize(
    "change",
    [
        {"gpu": "NVIDIA H100"},
        {"tile_density": 0.6},
        {"seqlen": 8192},
        {"batch": 2},
        {"source": "another"},
        {"convention": "causal_halved"},
    ],
)
def test_a_published_figure_of_another_problem_is_not_taken(change: dict[str, Any]) -> None:
    ours = beside_cudnn("fm3", 0.5, "run-a", "card-a")
    series = published("magi_ffa", "causal", 300.0, 250.0, **change) + published("sdpa_cudnn", "full", 600.0, 500.0)
    found = only(ours, MAGI, series)
    assert (found.verdict, found.compared) == (NOT_RUN, ())


def test_flashmask_is_reached_by_way_of_the_published_flashmask_3() -> None:
    ours = beside_cudnn("fm3", 0.5, "run-a", "card-a")
    series = published("flashmask3_official", "causal", 500.0, 400.0) + published("sdpa_cudnn", "full", 600.0, 500.0)
    table = {"source": "a table", "gpu": "not named", "batch": 4, "tile_density": None}
    series += published("flashmask_v1", "causal", 200.0, 200.0, **table)
    assert only(ours, FLASHMASK, series).compared == ()
    series += published("flashmask_v3", "causal", 400.0, 400.0, **table)
    (one,) = only(ours, FLASHMASK, series).compared
    assert one.how == CHAIN
    # Forward 4 ms of 14 at 2 x 600/500, backward 10 of 14 at 2 x 500/400.
    assert one.ratio.value == pytest.approx((4 * 2.4 + 10 * 2.5) / 14)
    flawed = [*series[:4], *published("flashmask_v1", "causal", 200.0, 200.0, **(table | {"note": "flawed mask"})), *series[6:]]
    assert only(ours, FLASHMASK, flawed).compared == ()


def test_what_a_comparison_is_not_is_said_of_the_figures_behind_it() -> None:
    """FlashMask's rows are of this project's kernel, its published figures of another version on a card without a name."""
    ours = beside_cudnn("fm3", 0.5, "run-a", "card-a")
    rows = text.caveats(only(ours + beside_cudnn("flashmask", 1.0, "run-b", "card-a"), FLASHMASK))
    assert rows == [FLASHMASK.caveat]
    series = published("flashmask3_official", "causal", 500.0, 400.0) + published("sdpa_cudnn", "full", 600.0, 500.0)
    for kernel, speed in (("flashmask_v1", 200.0), ("flashmask_v3", 400.0)):
        series += published(kernel, "causal", speed, speed, source="a table", gpu="not named", batch=4, tile_density=None)
    assert text.caveats(only(ours, FLASHMASK, series)) == [FLASHMASK.published_caveat]
    assert text.caveats(only([], FLASHMASK, series)) == []


# -- what is printed and drawn -----------------------------------------------------------------------------------------


def test_the_terminal_names_every_claim_and_the_rows_behind_it() -> None:
    found = judge(cells_of(one_run(rising(1.35, 1.75))), read_published())
    lines = text.for_terminal(found, 100)
    assert all(len(line) <= 100 for line in lines.splitlines())
    for claim in CLAIMS:
        assert claim.text in lines
    assert "REPRODUCED: every case gains at least +34%, the most is +75% (random eviction, 128K)" in " ".join(lines.split())
    assert "rows    run-1" in lines
    assert lines.endswith("1 reproduced, 0 not reproduced, 8 not run here")


def test_a_bar_in_a_name_does_not_break_the_readmes_table() -> None:
    rows = [row | {"gpu": "GPU | x\n<b>"} for row in one_run(rising(1.35, 1.75))]
    lines = text.for_readme(judge(cells_of(rows), [])).splitlines()
    assert all(line.replace("\\|", "").count("|") == 5 for line in lines if line.startswith("|"))


def test_the_command_prints_draws_and_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "nowhere")]) == 2
    assert main([str(tmp_path)]) == 2
    path = write_rows(tmp_path, one_run(rising(1.35, 1.75)))
    assert main([str(tmp_path), "--out", str(tmp_path / "a")]) == 0
    assert main([str(tmp_path), "--out", str(tmp_path / "b")]) == 0
    assert "1 reproduced" in capsys.readouterr().out
    for suffix in (*files.FORMATS, "csv"):
        first, second = (tmp_path / folder / f"claims.{suffix}" for folder in "ab")
        assert first.read_bytes() == second.read_bytes()
    assert main([str(tmp_path), "--out", str(path / "x")]) == 2
    path.write_text("[]\n" + path.read_text())
    assert main([str(tmp_path)]) == 4


def test_the_figure_has_a_bar_for_every_ratio_and_none_for_a_share() -> None:
    drawn = figure.drawn(judge(cells_of(one_run(rising(1.35, 1.75), passes=("forward",))), []))
    frame = drawn.frame.set_index("claim")
    assert list(frame.index) == [claim.name for claim in CLAIMS]
    assert frame.loc["flex", ["passes", "low", "high", "cases"]].tolist() == [
        "forward",
        pytest.approx(1.35),
        pytest.approx(1.75),
        0,
    ]
    assert not frame.loc["overlap", "drawn"]
    axes = drawn.figure().axes[0]
    assert len(axes.patches) == (len(CLAIMS) - 1) + 1
    assert "MEASURED · NVIDIA H100 80GB HBM3 (700 W), sustained, cold L2" in drawn.caption
