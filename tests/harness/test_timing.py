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


class Device:
    """A GPU that does what is queued in order, on the test's clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
        self.clock, self.free_at = clock, 0.0
        device = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                self.at = 0.0

            def record(self) -> None:
                self.at = max(device.free_at, clock.now)

            def elapsed_time(self, end: Event) -> float:
                return (end.at - self.at) * 1000

        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "synchronize", self.synchronize)

    def synchronize(self) -> None:
        self.clock.now = max(self.clock.now, self.free_at)

    def queue(self, seconds: float) -> None:
        self.free_at = max(self.free_at, self.clock.now) + seconds


@pytest.mark.parametrize(
    ("host_s", "device_s", "sample_s", "calls"),
    [
        (100e-6, 20e-6, 20e-6, 40),  # the device waits for the host: once more behind a head start
        (100e-6, 5e-3, 5e-3, 20),  # ahead by itself
        (0.0, 20e-6, 20e-6, 20),
        (50e-3, 1e-3, 50e-3, 20),  # who takes that long is no launch
    ],
)
def test_what_a_host_needs_to_launch_a_call_is_no_part_of_it(
    monkeypatch: pytest.MonkeyPatch, host_s: float, device_s: float, sample_s: float, calls: int
) -> None:
    clock, timer = Clock(monkeypatch), Timer("cpu", Timing(l2="warm"))
    timer.device = "cuda"
    device = Device(monkeypatch, clock)
    monkeypatch.setattr(timer, "occupy", device.queue)
    issued = 0

    def call() -> None:
        nonlocal issued
        issued += 1
        clock.passes(host_s)
        device.queue(device_s)

    assert sorted(timer.measure(call, 20))[10] == pytest.approx(sample_s * 1000)
    assert issued == calls


@pytest.mark.gpu
def test_gpu_samples_of_a_short_call_are_not_its_launching() -> None:
    """Python that takes 300 us around a kernel of a few."""
    a, timer = torch.zeros(1, device="cuda"), Timer("cuda", Timing())

    def call() -> None:
        until = time.perf_counter() + 300e-6
        while time.perf_counter() < until:
            pass
        a.add_(1)

    timer.round(call)
    assert 0 < sorted(timer.round(call))[10] < 0.1


@pytest.mark.gpu
def test_gpu_samples_wait_for_the_kernel() -> None:
    a = torch.randn((4096, 4096), device="cuda")
    timer = Timer("cuda", Timing())
    timer.round(lambda: a @ a)
    begin = time.perf_counter()
    samples = timer.measure(lambda: a @ a, 10)
    spent = (time.perf_counter() - begin) * 1000
    assert 0.1 < sum(samples) <= spent
