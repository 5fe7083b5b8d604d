"""How calls are timed: how many samples, what is inside, what is flushed."""

from __future__ import annotations

import time

import pytest
import torch

from harness.cases import Timing
from harness.timing import Timer, cache_bytes


@pytest.mark.parametrize(("seconds", "count"), [(1.0, 3), (0.1, 3), (0.05, 6), (0.02, 15), (0.001, 20), (0.0, 20)])
def test_samples_follow_the_length_of_a_call(seconds: float, count: int) -> None:
    assert Timer("cpu", Timing(l2="warm")).samples_for(seconds) == count


class Clock:
    """A clock of the test's own: a busy machine does not change what it says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)

    def passes(self, seconds: float) -> None:
        self.now += seconds


def test_a_sample_is_the_call_and_not_the_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, timer = Clock(monkeypatch), Timer("cpu", Timing(l2="cold", max_samples=4))
    monkeypatch.setattr(timer, "flush", lambda: clock.passes(1.0))
    assert timer.measure(lambda: clock.passes(0.02), 4) == pytest.approx([20.0] * 4)


def test_cold_flushes_twice_the_cache_before_every_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    timer = Timer("cpu", Timing(l2="cold"))
    assert timer._flush is not None and timer._flush.numel() == 2 * cache_bytes("cpu")
    events: list[str] = []
    monkeypatch.setattr(timer, "flush", lambda: events.append("flush"))
    timer.measure(lambda: events.append("call"), 3)
    assert events == ["flush", "call"] * 3
    assert Timer("cpu", Timing(l2="warm"))._flush is None


def test_a_round_warms_up_before_it_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[float] = []
    clock, timer = Clock(monkeypatch), Timer("cpu", Timing(l2="warm", target_s=0.05))

    def call() -> None:
        calls.append(clock.now)
        clock.passes(0.01)

    assert len(timer.round(call)) == len(calls) - 1 == 5


@pytest.mark.parametrize(("seconds", "calls"), [(0.01, 5), (0.3, 4), (3.0, 1)])
def test_issuing_of_long_calls_is_timed_fewer_times(monkeypatch: pytest.MonkeyPatch, seconds: float, calls: int) -> None:
    clock, timer = Clock(monkeypatch), Timer("cpu", Timing(l2="warm"))
    timer.device = "cuda"
    queued: list[float] = []  # what the device has yet to do when the host waits for it
    issued = 0

    def call() -> None:
        nonlocal issued
        issued += 1
        queued.append(seconds)
        clock.passes(20e-6)

    monkeypatch.setattr(torch.cuda, "synchronize", lambda: [clock.passes(queued.pop()) for _ in queued[:]])
    assert timer.host_us(call, 5) == pytest.approx(20)
    assert issued == calls


@pytest.mark.gpu
def test_gpu_samples_wait_for_the_kernel() -> None:
    a = torch.randn((4096, 4096), device="cuda")
    timer = Timer("cuda", Timing())
    timer.round(lambda: a @ a)
    begin = time.perf_counter()
    samples = timer.measure(lambda: a @ a, 10)
    spent = (time.perf_counter() - begin) * 1000
    assert 0.1 < sum(samples) <= spent
