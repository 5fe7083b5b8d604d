"""How a call is timed: one event pair or clock reading a call, every sample kept, the cache flushed in between.

``TIMING_VERSION`` changes whenever numbers taken before and after would not compare.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from harness.cases import Timing

TIMING_VERSION = 1
"""The head start of a slow host is no new version: no call of the 5,400 rows before it was shorter than twice its launching."""

Call = Callable[[], object]
Event = dict[str, Any]
"""One report of ``harness.measure``."""

# Where the cache size cannot be read.
_FALLBACK_CACHE = 64 << 20
# Seconds after which no further call is issued to see how long issuing takes.
_HOST_S = 1.0
# A product of matrices that lasts at least _BUSY_S on any GPU of today.
_BUSY_SIZE, _BUSY_S = 4096, 1e-4
# Of the samples' sum, what a GPU must have left to do when the last call is issued. Below that it may have waited for the host.
_LEFT = 0.5
# Seconds of a head start that are worth it; more needs only who compiles or waits in the call.
_LONGEST_START_S = 0.5


def cache_bytes(device: str) -> int:
    """Size of the last-level cache: the GPU's L2, or the largest cache the processor reports."""
    if device == "cuda":
        return int(torch.cuda.get_device_properties(0).L2_cache_size)
    sizes = []
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        if text.endswith("K"):
            sizes.append(int(text[:-1]) << 10)
        elif text.endswith("M"):
            sizes.append(int(text[:-1]) << 20)
    return max(sizes, default=_FALLBACK_CACHE)


class Timer:
    """Times calls on one device.

    Args:
        device: ``cuda`` or ``cpu``.
        timing: how many samples, cold or warm cache.
    """

    def __init__(self, device: str, timing: Timing) -> None:
        self.device, self.timing = device, timing
        flush = 2 * cache_bytes(device) if timing.l2 == "cold" else 0
        self._flush = torch.empty(flush, dtype=torch.uint8, device=device) if flush else None
        self._busy: torch.Tensor | None = None

    def sync(self) -> None:
        """Wait for the device."""
        if self.device == "cuda":
            torch.cuda.synchronize()

    def samples_for(self, seconds: float) -> int:
        """How many samples a round takes of a call that lasts ``seconds``."""
        t = self.timing
        wanted = t.max_samples if seconds <= 0 else math.ceil(t.target_s / seconds)
        return max(t.min_samples, min(t.max_samples, wanted))

    def flush(self) -> None:
        """Push everything else out of the last-level cache."""
        if self._flush is not None:
            self._flush.zero_()

    def once(self, call: Call) -> float:
        """Milliseconds of one call."""
        return self.measure(call, 1)[0]

    def round(self, call: Call) -> list[float]:
        """One warm-up that also tells how long a call lasts, then the samples of a round, milliseconds."""
        return self.measure(call, self.samples_for(self.once(call) / 1000))

    def round_of(self, whole: Call, parts: dict[str, Call]) -> Event:
        """A round, as fields of a row. ``parts`` of a call can be timed beside it where ranks share a sequence."""
        assert not parts, "only ranks that share a sequence have calls beside the whole one"
        return {"samples_ms": [round(sample, 6) for sample in self.round(whole)]}

    def measure(self, call: Call, count: int) -> list[float]:
        """``count`` samples, milliseconds. On a GPU the host runs ahead, so launching is not part of them.

        Where it does not get ahead by itself, since launching takes longer than the call, they are taken again behind a start.
        """
        return self._on_gpu(call, count) if self.device == "cuda" else self._on_cpu(call, count)

    def _on_gpu(self, call: Call, count: int) -> list[float]:
        samples, issuing_s, left_s = self._queued(call, count)
        start_s = 2 * issuing_s
        if left_s < _LEFT * sum(samples) / 1000 and start_s <= _LONGEST_START_S:
            samples, _, _ = self._queued(call, count, start_s)
        return samples

    def _queued(self, call: Call, count: int, start_s: float = 0.0) -> tuple[list[float], float, float]:
        """Samples, milliseconds; seconds that the host issued calls, and seconds that it then waited for them.

        start_s: how long the GPU is kept busy first, so that a host that is slower than the call is ahead of it all the same.
        """
        events = []
        torch.cuda.synchronize()
        self.occupy(start_s)
        begun = time.perf_counter()
        for _ in range(count):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            self.flush()
            begin.record()
            result = call()
            end.record()
            del result
            events.append((begin, end))
        issued = time.perf_counter()
        torch.cuda.synchronize()
        left_s = time.perf_counter() - issued
        return [begin.elapsed_time(end) for begin, end in events], issued - begun, left_s

    def occupy(self, seconds: float) -> None:
        """Have the GPU multiply matrices for at least ``seconds``, while the host goes on."""
        if seconds <= 0:
            return
        if self._busy is None:
            self._busy = torch.randn((_BUSY_SIZE, _BUSY_SIZE), device=self.device, dtype=torch.bfloat16)
        for _ in range(math.ceil(seconds / _BUSY_S)):
            self._busy @ self._busy

    def _on_cpu(self, call: Call, count: int) -> list[float]:
        samples = []
        for _ in range(count):
            self.flush()
            begin = time.perf_counter()
            result = call()
            samples.append((time.perf_counter() - begin) * 1000)
            del result
        return samples

    def settle(self, event: Event | None) -> Event | None:
        """What became of a step: the verdict on it, None for none. Where ranks share a sequence, what became of it on all."""
        return event

    def host_us(self, call: Call, count: int = 20) -> float | None:
        """Median host time to issue one call, microseconds; None on a CPU, where issuing is computing.

        Of ``count`` calls, or of as many as begin within a second: of long ones that is one, whose issuing is a small part.
        """
        if self.device != "cuda":
            return None
        spent: list[float] = []
        torch.cuda.synchronize()
        start = time.perf_counter()
        while len(spent) < count and (not spent or time.perf_counter() - start < _HOST_S):
            begin = time.perf_counter()
            result = call()
            spent.append((time.perf_counter() - begin) * 1e6)
            del result
            torch.cuda.synchronize()
        return sorted(spent)[len(spent) // 2]

    def heat(self, seconds: float) -> None:
        """Keep the matrix units busy for ``seconds``: the sustained protocol starts from a hot chip with flat clocks."""
        if self.device != "cuda" or seconds <= 0:
            return
        a = torch.randn((8192, 8192), device="cuda", dtype=torch.bfloat16)
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            for _ in range(20):
                a @ a
            torch.cuda.synchronize()
