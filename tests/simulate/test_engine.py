"""The clock against times worked out by hand; sharing of ports; the order of events."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.simulate.engine import play
from harness.simulate.network import shares
from harness.simulate.steps import COMPUTE, EXCHANGE, Lane, Steps

LANE = Lane(bytes_per_ms=100.0, beside=1.0, network=False)
SLOWING = Lane(bytes_per_ms=100.0, beside=0.25, network=False)
NETWORK = Lane(bytes_per_ms=10.0, beside=1.0, network=True)


def test_two_ranks_one_transfer() -> None:
    steps = Steps(2)
    sent = steps.send(0, 1, LANE, "keys", 1000, 0.5, ())
    steps.work(1, COMPUTE, "attention", 3.0, [sent])
    times = play(steps)
    assert times.begin.tolist() == [0.5, 10.5]
    assert times.end.tolist() == [10.5, 13.5]
    assert times.total == 13.5


def test_computing_beside_a_transfer_that_costs_it_nothing_is_hidden_whole() -> None:
    steps = Steps(2)
    steps.send(0, 1, LANE, "", 500, 0.0, ())
    steps.work(1, COMPUTE, "", 8.0)
    assert play(steps).total == 8.0
    assert play(steps.only(EXCHANGE)).total == 5.0
    assert play(steps.only(COMPUTE)).total == 8.0


def test_a_transfer_slows_computing_on_both_of_its_ranks_and_on_no_other() -> None:
    steps = Steps(3)
    steps.send(0, 1, SLOWING, "", 400, 0.0, ())
    works = [steps.work(rank, COMPUTE, "", 8.0) for rank in range(3)]
    # 4 ms at a quarter of the speed do 1 ms of the work.
    assert play(steps).end[works].tolist() == [11.0, 11.0, 8.0]


def test_transfers_share_a_port_and_take_it_back() -> None:
    steps = Steps(3)
    one = steps.send(0, 1, LANE, "", 500, 0.0, ())
    two = steps.send(0, 2, LANE, "", 1500, 0.0, ())
    # Half each for 10 ms; then the second has the port alone for its last 1000 bytes.
    assert play(steps).end[[one, two]].tolist() == [10.0, 20.0]


def test_both_directions_and_both_networks_are_ports_of_their_own() -> None:
    steps = Steps(2)
    steps.send(0, 1, LANE, "", 1000, 0.0, ())
    steps.send(1, 0, LANE, "", 1000, 0.0, ())
    steps.send(0, 1, NETWORK, "", 100, 0.0, ())
    assert play(steps).end.tolist() == [10.0, 10.0, 10.0]


def test_only_one_kind_leaves_the_order_and_takes_the_time_away() -> None:
    steps = Steps(1)
    packed = steps.work(0, EXCHANGE, "pack", 2.0)
    there = steps.delay(0, EXCHANGE, "flag", 1.0, [packed])
    steps.work(0, COMPUTE, "attention", 4.0, [there])
    assert play(steps).total == 7.0
    assert play(steps.only(COMPUTE)).total == 4.0
    assert play(steps.only(EXCHANGE)).total == 3.0


def test_steps_wait_for_earlier_ones_only() -> None:
    steps = Steps(1)
    steps.work(0, COMPUTE, "", 1.0, [0])
    with pytest.raises(ValueError, match="waits for step 0"):
        play(steps)


def test_the_same_steps_give_the_same_numbers() -> None:
    draw = random.Random(3)
    steps = Steps(6)
    for number in range(200):
        after = draw.sample(range(number), min(number, draw.randrange(3)))
        if draw.random() < 0.5:
            source, target = draw.sample(range(6), 2)
            steps.send(source, target, draw.choice([LANE, SLOWING, NETWORK]), "", draw.randrange(1, 900), 0.1, after)
        else:
            steps.work(draw.randrange(6), COMPUTE, "", draw.random(), after)
    first, second = play(steps), play(steps)
    assert first.end.tobytes() == second.end.tobytes() and first.begin.tobytes() == second.begin.tobytes()
    assert (first.end >= first.begin).all()
    for number, step in enumerate(steps.steps):
        assert all(first.end[earlier] <= first.begin[number] for earlier in step.after)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(5, 9)), min_size=1, max_size=20))
def test_shares_fill_a_port_of_every_transfer_and_overfill_none(pairs: list[tuple[int, int]]) -> None:
    outwards, inwards = [a for a, _ in pairs], [b for _, b in pairs]
    found = shares(outwards, inwards, 10)
    load = np.bincount(outwards, found, minlength=10) + np.bincount(inwards, found, minlength=10)
    assert (load <= 1 + 1e-9).all()
    # Max-min: every transfer crosses a full port on which nobody has more.
    for number, ends in enumerate(pairs):
        tight = [
            port
            for port in ends
            if load[port] > 1 - 1e-9 and all(found[n] <= found[number] + 1e-9 for n, other in enumerate(pairs) if port in other)
        ]
        assert tight
