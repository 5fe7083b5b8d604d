"""``python -m harness.plan``: the ranking, what it prints and writes, and the questions that it refuses."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pandas as pd
import pytest

from harness import plan
from harness.simulate.cluster import find_cluster
from harness.simulate.exchange import is_ring
from harness.simulate.model import simulate
from harness.simulate.plans import Ask, plan_of_ask
from harness.simulate.run import mask_and_facts
from harness.simulate.timeline import spans


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def asked(*words: str) -> tuple[list[plan.Way], int]:
    """The ranking of a question, and its length."""
    config = plan._config(words)
    problem = plan._problem(config)
    cluster = find_cluster(str(config.cluster))
    degrees = plan._degrees(words, config, cluster, problem.seqlen)
    return plan.ranking(problem, mask_and_facts(problem)[0], config, cluster, degrees), problem.seqlen


def test_a_users_lengths_on_a_cluster(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pd.DataFrame({"length": [700, 1500, 3000, 9000, 2184]}).to_parquet(here / "my.parquet")
    words = ["mask=document", "mask.lengths=my.parquet", "seqlen=16384", "hardware=h100_8", "cp_degree=16"]
    assert plan.main(words) == 0
    shown = capsys.readouterr().out
    first, *rest, question = shown.partition("\n\n")[0].splitlines()
    assert first.startswith("SIMULATED on h100_8") and "nothing was validated" in " ".join([first, *rest])
    assert question == "document, 16384 tokens, batch 1, 32/32 heads, D=128, bfloat16: forward + backward"
    for words_ in ("bounds, whatever the placement", "CP=16: at least", "borrowed: kernels and NVLink of NVIDIA H200"):
        assert words_ in shown
    assert sorted(path.name for path in (here / "results/local/plan").iterdir()) == sorted(
        [
            "ranking.csv",
            *(f"timeline_{pass_}.{end}" for pass_ in ("forward", "backward") for end in ("csv", "pdf", "png", "svg")),
        ]
    )
    ranked = pd.read_csv(here / "results/local/plan/ranking.csv")
    assert set(ranked["source"]) == {"simulated"} and set(ranked["cluster"]) == {"h100_8"}
    assert ranked["ms"].is_monotonic_increasing


def test_the_ranking_tries_what_the_planner_can_be_told() -> None:
    ways, seqlen = asked("mask=causal_document", "seqlen=32768", "hardware=h200_node")
    asks = [way.ask for way in ways]
    assert {ask.ranks for ask in asks} == {2, 4, 8}
    assert {ask.strategy for ask in asks} >= {"fm3", "dual_chunk", "all_gather", "ring", "ring_skip"}
    assert {way.chunk for way in ways if way.ask.ranks == 8 and way.ask.strategy == "fm3"} == {256, 512, 1024}
    assert {ask.slack for ask in asks if ask.strategy == "fm3"} == {None, *plan.SLACKS}
    assert all(way.prediction.full >= way.prediction.least for way in ways)
    assert [way.prediction.full for way in ways] == sorted(way.prediction.full for way in ways)
    assert seqlen == 32768


def test_a_slack_that_changes_nothing_is_no_other_way() -> None:
    words = ("mask=document", "seqlen=8192", "hardware=h200_8", "cp_degree=32", "strategy=fm3", "passes=[forward]")
    ways, _ = asked(*words)
    config = plan._config(words)
    mask, cluster = mask_and_facts(plan._problem(config))[0], find_cluster(str(config.cluster))
    placements = [plan_of_ask(mask, way.ask, cluster).balance.placement.tobytes() for way in ways]
    shown = [(way.chunk, placement) for way, placement in zip(ways, placements, strict=True)]
    assert len(set(shown)) == len(shown) == 3
    assert {way.ask.slack for way in ways} == {None, 10}  # with 1000 it is the planner's own again


def test_a_named_way_is_the_only_one() -> None:
    ways, _ = asked("mask=causal", "seqlen=8192", "cp_degree=4", "strategy=ring", "passes=[forward]")
    assert [(way.ask.ranks, way.ask.strategy) for way in ways] == [(4, "ring")]
    ways, _ = asked("mask=causal", "seqlen=8192", "cp_degree=4", "exchange=symmetric")
    assert {way.ask.strategy for way in ways} >= {"fm3", "dual_chunk", "all_gather"}
    assert not any(is_ring(way.ask.strategy) for way in ways)


def test_degrees_are_those_that_the_cluster_and_the_sequence_hold() -> None:
    assert {way.ask.ranks for way in asked("mask=full", "seqlen=512", "strategy=dual_chunk", "passes=[forward]")[0]} == {2, 4}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["mask=docment"], "did you mean 'document'"),
        (["mask=full", "cp_degree=12"], "cp_degree=12: h200_8 holds"),
        (["mask=full", "source=measured"], "source=measured: a plan is simulated"),
        (["mask=full", "passes=[both]"], "allowed: forward, backward"),
        (["mask=full", "hardware=h100"], "hardware=h100 has no cluster to simulate"),
        (["sweep=smoke"], "a plan is for one mask and one length"),
        (["mask=document", "mask.lengths=no.csv", "seqlen=4096"], "no.csv: no such file"),
        (["mask=full", "hardware.cluster=mine.yaml"], "hardware.cluster=mine.yaml"),
        (["mask=full", "head_dim=96"], "no rates of fm3 forward D=96"),
    ],
)
def test_questions_without_an_answer(here: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert plan.main(words) == 2
    printed = capsys.readouterr()
    assert said in printed.err and printed.out == ""
    assert list(here.iterdir()) == []


def test_spans_of_a_rank_are_apart_and_end_with_the_run() -> None:
    """Of a strategy that computes when everything is there: beside transfers attention would take longer than its work."""
    config = plan._config(["mask=document", "seqlen=16384", "cp_degree=16"])
    problem, cluster = plan._problem(config), find_cluster("h200_8")
    mask, _ = mask_and_facts(problem)
    run = simulate(problem, mask, Ask(16, "all_gather"), "forward", cluster)
    found = spans(run)
    assert max(span["end_ms"] for span in found) == run.prediction.full
    assert {span["lane"] for span in found} >= {"attention", "from its node", "from other nodes"}
    for one, other in pairwise(found):
        if (one["rank"], one["lane"]) == (other["rank"], other["lane"]):
            assert one["end_ms"] < other["begin_ms"]
    attention = [0.0] * 16
    for span in found:
        if span["lane"] == "attention":
            attention[span["rank"]] += span["end_ms"] - span["begin_ms"]
    assert attention == pytest.approx(list(run.prediction.busy))
    assert plan_of_ask(mask, Ask(16), cluster).ranks_per_node == 8
