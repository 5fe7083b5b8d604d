"""Plans made ahead: as those made at once and in order, errors where their step is asked for, an end to the thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
import torch
from test_attention import alone, family_mask, inputs, together

from context_parallel import ContextParallel
from context_parallel.grid import PlanError
from masks.column_mask import ColumnMask


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "plans ahead"]


def test_steps_come_in_order_and_are_ready() -> None:
    first = ContextParallel(None, family_mask("causal", 300))
    masks = [family_mask("random_eviction", 300, seed=seed) for seed in range(7)]
    tensors = inputs(300)
    for mask, step in zip(masks, first.ahead(iter(masks), "cpu"), strict=True):
        (prepared,) = step.prepared()
        assert step.mask is mask and torch.equal(prepared.mask.lts, mask.lts)
        assert step.plan.balance.placement.tolist() == first.plan.balance.placement.tolist()
        assert all(torch.equal(a, b) for a, b in zip(together(step, tensors), alone(mask, tensors), strict=True))
    assert not threads()


def test_no_more_steps_are_made_than_there_is_room_for() -> None:
    """``depth`` wait in the queue and one in the thread's hands; leaving early ends the thread."""
    asked: list[int] = []

    def masks() -> Iterator[ColumnMask]:
        for number in range(100):
            asked.append(number)
            yield family_mask("causal", 300)

    steps = ContextParallel(None, family_mask("causal", 300)).ahead(masks(), "cpu", depth=3)
    next(steps)
    deadline = time.monotonic() + 20
    while len(asked) < 5 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.1)
    assert len(asked) == 5 and threads()
    steps.close()
    assert not threads() and len(asked) <= 6


def test_errors_are_raised_where_the_step_is_asked_for() -> None:
    def masks() -> Iterator[ColumnMask]:
        yield family_mask("causal", 300)
        yield family_mask("causal", 400)

    first = ContextParallel(None, family_mask("full", 300))
    steps = first.ahead(masks(), "cpu")
    assert next(steps).mask.causal
    with pytest.raises(PlanError, match="both must be the grid's 300"):
        next(steps)
    assert not threads()

    def broken() -> Iterator[ColumnMask]:
        raise OSError("no such file")
        yield

    with pytest.raises(OSError, match="no such file"):
        next(first.ahead(broken(), "cpu"))
    for depth in (0, True, 1.5):
        with pytest.raises(PlanError, match="depth is .*; it must be an integer >= 1"):
            first.ahead([], "cpu", depth=depth)
    assert list(first.ahead([], "cpu")) == []
