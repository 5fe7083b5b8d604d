"""Predictions against closed forms; bytes and tiles against the plan; volumes against formulas; more is never slower."""

from __future__ import annotations

import dataclasses
import time

import numpy as np
import pytest
import worlds
from hypothesis import given, settings
from hypothesis import strategies as st

from context_parallel.plan import make_plan
from context_parallel.strategies import plan_of
from harness.simulate.cluster import COPY, SM, Cluster, find_cluster
from harness.simulate.engine import play
from harness.simulate.exchange import FLAGS, PARTS, Exchange, is_ring, modelled
from harness.simulate.loads import Loads
from harness.simulate.model import Simulation, program_of, simulate
from harness.simulate.plans import Ask, plan_of_ask
from harness.simulate.rates import Rate
from harness.simulate.reading import ClusterError
from harness.simulate.steps import COMPUTE, Times
from masks.column_mask import ColumnMask
from masks.documents import paper_documents
from masks.families import FAMILIES, build_mask
from masks.tiles import tile_counts

GATHERED = [name for name in modelled() if not is_ring(name)]
CELLS = [(name, "nccl") for name in modelled()] + [(name, "symmetric") for name in GATHERED]


def mask_of(family: str, seqlen: int) -> ColumnMask:
    return build_mask(family, seqlen, documents=paper_documents(seqlen, "c") if FAMILIES[family].needs_documents else None)


def run(seqlen: int, ask: Ask, cluster: Cluster, pass_: str = "forward", family: str = "full", **shape: int) -> Simulation:
    return simulate(worlds.problem(seqlen, family, **shape), mask_of(family, seqlen), ask, pass_, cluster)


# -- closed forms ---------------------------------------------------------------------------------------------------


def test_two_ranks_everything_gathered_then_attended() -> None:
    """1024 tokens each: 1024 * 256 bytes at 100 GB/s, then 8 x 16 tiles of a microsecond."""
    found = run(2048, Ask(2, "all_gather"), worlds.cluster()).prediction
    sending, attending = 1024 * 256 / 100e6, 128e-3
    assert found.communicate == pytest.approx(sending)
    assert found.compute == pytest.approx(attending)
    assert found.full == pytest.approx(sending + attending)
    assert (found.overlap, found.balance, found.share) == (pytest.approx(0.0, abs=1e-6), 1.0, 1.0)
    assert found.alone == pytest.approx(2 * attending)


def test_latency_and_messages_are_paid_once_an_exchange() -> None:
    found = run(2048, Ask(2, "all_gather"), worlds.cluster(latency_us=50, message_us=7)).prediction
    # One message out and one in on each rank, set up one after another.
    assert found.communicate == pytest.approx(1024 * 256 / 100e6 + 50e-3 + 2 * 7e-3)


def test_keys_that_arrive_beside_attention_are_hidden_whole() -> None:
    found = run(8192, Ask(2, exchange="symmetric"), worlds.cluster()).prediction
    assert found.communicate < found.compute / 2  # each half of the keys comes before it is needed
    assert found.full == pytest.approx(found.compute)
    assert found.overlap == pytest.approx(1.0)


def test_nothing_is_hidden_where_computing_stands_still_beside_transfers() -> None:
    cluster = worlds.cluster(beside=1e-12)
    for exchange, strategy in (("symmetric", "fm3"), ("nccl", "ring")):
        found = run(8192, Ask(2, strategy, exchange), cluster).prediction
        assert found.full == pytest.approx(found.compute + found.communicate, rel=1e-6)
        assert found.overlap == pytest.approx(0.0, abs=1e-6)


def test_a_ring_takes_the_longer_of_hop_and_transfer() -> None:
    """4 ranks of 1024 tokens: 3 hops in which transfer and attention go side by side, and the last attention alone."""
    for speed in (1.0, 100.0):
        found = run(4096, Ask(4, "ring"), worlds.cluster(gb_per_s=speed)).prediction
        transfer, attention = 1024 * 256 / (speed * 1e6), 64e-3
        assert found.full == pytest.approx(3 * max(transfer, attention) + attention, rel=1e-6)


def test_a_ring_sends_gradients_home_in_twice_the_bytes() -> None:
    """2 ranks, forward one shard; backward the shard and its gradient of 32 bit."""
    ask, cluster = Ask(2, "ring"), worlds.cluster()
    forward, backward = (run(2048, ask, cluster, pass_).prediction for pass_ in ("forward", "backward"))
    assert backward.communicate == pytest.approx(3 * forward.communicate)


def test_an_item_is_not_shared_among_processors() -> None:
    """With 8 row tiles on 132 processors the longest of them decides, not their sum."""
    cluster = dataclasses.replace(worlds.cluster(), sms=132)
    found = run(1024, Ask(1), cluster).prediction
    assert found.full == pytest.approx(132 * 8 * 1e-3)  # 8 tiles of 1 us of the whole GPU on one of 132
    many = run(1024, Ask(1), cluster, heads=132, kv_heads=132).prediction
    assert many.full == pytest.approx(132 * 64 * 1e-3)


def test_a_unit_crosses_the_network_once_a_node_and_is_handed_on() -> None:
    """Two nodes of two: each rank sends its 512 tokens to its slot of the other node, which hands them to its neighbour."""
    cluster = worlds.cluster(gpus_per_node=2, gb_per_s=100, network_gb_per_s=10)
    found = run(2048, Ask(4, "all_gather"), cluster).prediction
    one = 512 * 256 / 1e6
    assert found.communicate == pytest.approx(one / 10 + one / 100)


def test_one_rank_has_no_exchange() -> None:
    for pass_ in ("forward", "backward"):
        for strategy, exchange in CELLS:
            found = run(2048, Ask(1, strategy, exchange), worlds.cluster(), pass_).prediction
            assert found.full == pytest.approx(found.alone, rel=1e-3)
            assert found.communicate == pytest.approx(0.0, abs=1e-6)
            assert found.received == (0,)


# -- a launch a stage ------------------------------------------------------------------------------------------------


def staged_run(
    exchange: Exchange, pass_: str, cluster: Cluster, stages: int, seqlen: int = 8192, ranks: int = 4
) -> tuple[Times, float]:
    """The run of an exchange that no strategy is given yet, and the attention of the busiest rank."""
    mask = mask_of("full", seqlen)
    plan = make_plan(mask, ranks, bytes_per_token=1, ranks_per_node=cluster.ranks_per_node(ranks), stages=stages)
    rates = cluster.rates.kernel("fm3", pass_, 64)
    assert rates is not None
    steps = program_of(exchange, pass_)(Loads(plan, worlds.problem(seqlen), pass_, cluster, rates, mask_heads=1))
    busy = [sum(step.work for step in steps.steps if step.rank == rank and step.kind == COMPUTE) for rank in range(ranks)]
    return play(steps), max(busy)


@pytest.mark.parametrize("way", [SM, COPY])
@pytest.mark.parametrize("nodes", [1, 2])
def test_a_launch_a_stage_attends_to_own_keys_while_others_arrive(nodes: int, way: str) -> None:
    """Own keys take a fourth of the time, longer than everything takes to arrive: all of it is hidden."""
    cluster = worlds.cluster(gpus_per_node=4 // nodes, gb_per_s=1e3, network_gb_per_s=1e3)
    for pass_ in ("forward", "backward"):
        times, busy = staged_run(Exchange(way, PARTS), pass_, cluster, stages=2)
        after = times.total - busy
        # Forward only packing comes before, backward the gradients of one stage after.
        assert 0 < after < 0.01 * busy


def test_a_launch_a_stage_pays_for_every_launch() -> None:
    cluster = worlds.cluster(launch_us=100.0)
    one, several = (staged_run(Exchange(SM, attends), "forward", cluster, stages=3)[1] for attends in (FLAGS, PARTS))
    assert several == pytest.approx(one + 3 * 0.1, rel=1e-3)


# -- conservation ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("strategy", "exchange"), CELLS)
@pytest.mark.parametrize("ranks", [3, 4, 8])
@pytest.mark.parametrize("family", ["document", "sliding_window", "full"])
def test_bytes_and_tiles_are_those_of_the_plan(family: str, ranks: int, strategy: str, exchange: str) -> None:
    seqlen, cluster = 8192, worlds.cluster(gpus_per_node=4 if ranks != 3 else 3)
    mask, problem = mask_of(family, seqlen), worlds.problem(seqlen, family, heads=4, kv_heads=2, batch=3)
    ask = Ask(ranks, strategy, exchange)
    plan = plan_of_ask(mask, ask, cluster)
    found = simulate(problem, mask, ask, "forward", cluster, plan)
    token = 2 * 3 * 2 * 64 * 2
    planned = (plan.bytes_sent() * token).tolist()
    sent = np.zeros((ranks, ranks))
    for step in found.steps.steps:
        if step.lane is not None:
            sent[step.source, step.rank] += step.amount
            assert step.lane.network == (
                step.source // cluster.ranks_per_node(ranks) != step.rank // cluster.ranks_per_node(ranks)
            )
    assert sent.tolist() == planned
    assert list(found.prediction.received) == np.array(planned).sum(0).tolist()
    counts = tile_counts(mask)
    work = (counts.full * 1e-3 + counts.partial * 2e-3) * 12
    assert sum(found.prediction.busy) == pytest.approx(work, rel=1e-3)
    back = simulate(problem, mask, ask, "backward", cluster, plan)
    assert sum(back.prediction.busy) == pytest.approx(work, rel=1e-3)
    if strategy in GATHERED:
        returned = np.zeros((ranks, ranks))
        for step in back.steps.steps:
            if step.lane is not None:
                returned[step.rank, step.source] += step.amount
        assert returned.tolist() == planned


@pytest.mark.parametrize("strategy", modelled())
def test_within_a_node_the_plan_is_the_runtimes(strategy: str) -> None:
    mask = mask_of("causal_document", 8192)
    ours = plan_of_ask(mask, Ask(4, strategy), worlds.cluster())
    assert ours.digest() == plan_of(mask, 4, strategy).digest()


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_volumes_of_ring_and_all_gather(ranks: int) -> None:
    """With B bytes of keys and values a rank: (P-1) B received by every rank, forward."""
    cluster, share = worlds.cluster(), 1024 * 256
    for strategy in ("ring", "all_gather"):
        found = run(1024 * ranks, Ask(ranks, strategy), cluster, family="sliding_window")
        assert found.prediction.received == tuple([(ranks - 1) * share] * ranks)
        assert found.prediction.share == 1.0
    # Backward a ring passes keys on once more, and gradients in twice the bytes, one hop more than keys.
    back = run(1024 * ranks, Ask(ranks, "ring"), cluster, "backward", family="full")
    moved = sum(step.amount for step in back.steps.steps if step.lane is not None)
    assert moved == ranks * ((ranks - 1) * share + 2 * (ranks - 1) * share)


# -- bounds and monotonicity ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("strategy", "exchange"), CELLS)
@pytest.mark.parametrize("pass_", ["forward", "backward"])
def test_no_run_beats_its_bounds(pass_: str, strategy: str, exchange: str) -> None:
    cluster = find_cluster("h200_8")
    problem = dataclasses.replace(worlds.problem(16384, "document", heads=8, kv_heads=8), head_dim=128)
    found = simulate(problem, mask_of("document", 16384), Ask(16, strategy, exchange), pass_, cluster).prediction
    assert found.least <= found.compute <= found.full
    assert found.full <= found.compute + found.communicate + 1e-9
    # Not a law: exchanges with nothing computed between them begin at once, and crowd each other where ranks read in one order.
    assert found.communicate <= found.full * 1.5
    assert found.low < found.full < found.high
    assert sum(found.received) >= found.least_received
    assert 0 < found.balance <= 1
    assert 0 < found.scaling <= 1


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(CELLS),
    st.sampled_from(["forward", "backward"]),
    st.sampled_from(["document", "sliding_window", "causal", "share_question"]),
    st.sampled_from(["gb_per_s", "network_gb_per_s", "latency_us", "message_us", "beside", "full_ps"]),
    st.floats(1.01, 8.0),
)
def test_more_of_one_thing_is_never_slower(cell: tuple[str, str], pass_: str, family: str, what: str, factor: float) -> None:
    base = {"gb_per_s": 20.0, "network_gb_per_s": 2.0, "latency_us": 5.0, "message_us": 1.0, "beside": 0.1}
    base |= {"full_ps": 1e6}
    better = base[what] * factor if what in ("gb_per_s", "network_gb_per_s", "beside") else base[what] / factor
    times = [
        run(8192, Ask(4, *cell), worlds.cluster(gpus_per_node=2, **values), pass_, family).prediction.full
        for values in (base, base | {what: better})
    ]
    # Sooner ready, two transfers may meet at a port that they took in turn before: that costs a little, as it does in life.
    assert times[1] <= times[0] * 1.05


@pytest.mark.parametrize(("strategy", "exchange"), CELLS)
@pytest.mark.parametrize("pass_", ["forward", "backward"])
def test_more_bandwidth_is_never_slower(pass_: str, strategy: str, exchange: str) -> None:
    """Within a node, strictly; and exchanges alone take the less time the more there is."""
    for family in ("document", "sliding_window", "causal"):
        found = [
            run(8192, Ask(8, strategy, exchange), worlds.cluster(gb_per_s=speed, beside=0.3), pass_, family).prediction
            for speed in (1.0, 2.0, 10.0, 100.0, 1000.0)
        ]
        times = [one.full for one in found]
        assert times == sorted(times, reverse=True) and times[0] > times[-1]
        assert found[0].communicate == pytest.approx(2 * found[1].communicate, rel=1e-3)
        assert found[0].communicate == pytest.approx(100 * found[3].communicate, rel=1e-2)


def test_wider_spreads_make_wider_intervals() -> None:
    ask = Ask(4, "all_gather")
    narrow, wide = (run(8192, ask, worlds.cluster(spread=spread)).prediction for spread in (0.05, 0.3))
    assert narrow.full == wide.full
    assert wide.low < narrow.low < narrow.full < narrow.high < wide.high


# -- what is not known ----------------------------------------------------------------------------------------------


def doubts(cluster: str, ask: Ask, pass_: str = "forward", seqlen: int = 8192, heads: int = 32) -> str:
    problem = dataclasses.replace(worlds.problem(seqlen, heads=heads, kv_heads=heads), head_dim=128)
    return " | ".join(simulate(problem, mask_of("full", seqlen), ask, pass_, find_cluster(cluster)).prediction.doubts)


def test_what_is_borrowed_assumed_or_beyond_the_fit_is_said() -> None:
    forward, backward = (find_cluster("h200_8").kernel("fm3", pass_, 128, "bfloat16") for pass_ in ("forward", "backward"))
    assert forward.outer_tiles[0] > 4
    assert "extrapolated: 4 to 4 outer tiles a launch, fitted at" in doubts("h200_8", Ask(2), seqlen=1024, heads=1)
    assert "extrapolated" not in doubts("h200_8", Ask(1), seqlen=131072)
    assert ("borrowed: too few rows" in doubts("h200_8", Ask(2), "backward")) == (backward.borrowed is not None)
    assert "borrowed: too few rows" not in doubts("h200_8", Ask(2))
    assert "kernels and NVLink of NVIDIA H200" in doubts("h100_8", Ask(2))
    assert "kernels and NVLink of NVIDIA H200" not in doubts("h200_8", Ask(2))
    assert "all rates between nodes" in doubts("h200_8", Ask(16))
    assert "all rates between nodes" not in doubts("h200_8", Ask(8))


@pytest.mark.parametrize(("strategy", "exchange"), CELLS)
def test_a_cluster_of_one_node_needs_no_network(strategy: str, exchange: str) -> None:
    alone = dataclasses.replace(worlds.cluster(), nodes=1, far=None)
    for pass_ in ("forward", "backward"):
        ask = Ask(4, strategy, exchange)
        assert run(4096, ask, alone, pass_).prediction == run(4096, ask, worlds.cluster(), pass_).prediction


def test_questions_without_a_model_are_refused() -> None:
    with pytest.raises(ClusterError, match="exchange=gloo: there is no model of it; allowed: nccl, symmetric"):
        run(2048, Ask(2, exchange="gloo"), worlds.cluster())
    with pytest.raises(ClusterError, match="symmetric: strategy=ring.* passes its shards on by nccl; with"):
        run(2048, Ask(2, "ring", "symmetric"), worlds.cluster())


# -- the same numbers everywhere --------------------------------------------------------------------------------------

GOLDEN: dict[tuple[str, str, str], float] = {
    ("all_gather", "nccl", "forward"): 2.5277684622243193,
    ("all_gather", "nccl", "backward"): 3.0017684623071563,
    ("ring", "nccl", "forward"): 3.6989752178218196,
    ("ring", "nccl", "backward"): 4.335921706751601,
    ("ring_skip", "nccl", "forward"): 3.6989752178218196,
    ("ring_skip", "nccl", "backward"): 4.3369217067516015,
}


@pytest.mark.parametrize("cell", list(GOLDEN))
def test_golden_runs(cell: tuple[str, str, str]) -> None:
    """16 ranks, documents of list c: a change of the model shows here, and is to be explained."""
    strategy, exchange, pass_ = cell
    cluster = worlds.cluster(gb_per_s=300, network_gb_per_s=45, latency_us=20, message_us=2, beside=0.5, outer_ps=5e5)
    found = run(32768, Ask(16, strategy, exchange), cluster, pass_, "document", heads=4, kv_heads=2)
    assert found.prediction.full == pytest.approx(GOLDEN[cell], rel=1e-9)


def test_another_slack_gives_another_plan() -> None:
    mask, cluster = mask_of("causal_document", 65536), worlds.cluster()
    tight, loose = (plan_of_ask(mask, Ask(8, slack=slack), cluster) for slack in (1000, 4))
    assert loose.balance.received.sum() < tight.balance.received.sum()
    assert loose.balance.loads.max() >= tight.balance.loads.max()


def test_a_large_case_takes_less_than_two_seconds() -> None:
    """CP 32, 256K tokens, of the processor time of this process."""
    seqlen, cluster = 262144, find_cluster("h200_8")
    problem = dataclasses.replace(worlds.problem(seqlen, "document", heads=32, kv_heads=32), head_dim=128)
    begin = time.process_time()
    found = simulate(problem, mask_of("document", seqlen), Ask(32), "forward", cluster)
    assert time.process_time() - begin < 2.0
    assert len(found.prediction.busy) == 32


def test_played_steps_are_the_prediction() -> None:
    found = run(8192, Ask(4, "ring"), worlds.cluster(), family="document")
    assert play(found.steps).total == found.prediction.full == found.times.total
    spent = [0.0] * 4
    for step in found.steps.steps:
        spent[step.rank] += step.work if step.kind == COMPUTE else 0.0
    assert tuple(spent) == found.prediction.busy


def test_loads_at_an_end_keep_the_plan_and_change_the_pace() -> None:
    mask, cluster = mask_of("full", 2048), worlds.cluster()
    plan = plan_of_ask(mask, Ask(2), cluster)
    loads = Loads(plan, worlds.problem(2048), "forward", cluster, worlds.kernel("forward"), mask_heads=1)
    slow = loads.at(1, 0.25)
    units = plan.units(0)
    assert slow.attention_ms(0, units) == pytest.approx(1.25 * loads.attention_ms(0, units))
    assert slow.launch(0, units) == loads.launch(0, units)
    assert Rate(1.0, 0.0, "x").as_speed(1) == 1.0
