"""The device as NVML and the operating system see it: facts, and clocks sampled beside a measurement.

Clocks and limits are read, never set. Everything NVML does not support on a card is None.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from harness.provenance import cpu_model

# NVML_FI_DEV_POWER_INSTANT: the averaged reading lags a second behind.
_POWER_INSTANT = 186
_SALT = "flashmask3"


@dataclass(frozen=True)
class DeviceFacts:
    """What does not change during a run. ``uuid_hash`` tells two cards apart without naming one."""

    name: str
    uuid_hash: str | None = None
    power_limit: float | None = None
    driver: str | None = None
    mig: bool | None = None
    ecc: bool | None = None


def _nvml() -> Any:
    """NVML, initialised, or None where there is none."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # missing library, missing driver, no permission: all mean the same here
        return None
    return pynvml


def _handle(nvml: Any, index: int = 0) -> Any:
    """NVML's handle of torch's device ``index``, matched by UUID: the two number devices differently."""
    import torch

    uuid = str(torch.cuda.get_device_properties(index).uuid)
    name = uuid if uuid.startswith("GPU-") else f"GPU-{uuid}"
    try:
        return nvml.nvmlDeviceGetHandleByUUID(name)
    except Exception:  # an older driver wants bytes; a MIG slice has another form of UUID
        return nvml.nvmlDeviceGetHandleByIndex(index)


def _ask(question: Callable[[], Any]) -> Any:
    try:
        return question()
    except Exception:  # NotSupported and its relatives: the card does not tell
        return None


def device_facts(device: str) -> DeviceFacts:
    """Facts of the current CUDA device, or of the processor."""
    if device != "cuda":
        return DeviceFacts(name=cpu_model())
    import torch

    properties = torch.cuda.get_device_properties(0)
    digest = hashlib.sha256(f"{_SALT} {properties.uuid}".encode()).hexdigest()[:12]
    nvml = _nvml()
    if nvml is None:
        return DeviceFacts(name=properties.name, uuid_hash=digest)
    handle = _handle(nvml)
    limit = _ask(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle))
    mig = _ask(lambda: nvml.nvmlDeviceGetMigMode(handle)[0])
    ecc = _ask(lambda: nvml.nvmlDeviceGetEccMode(handle)[0])
    driver = _ask(nvml.nvmlSystemGetDriverVersion)
    return DeviceFacts(
        name=properties.name,
        uuid_hash=digest,
        power_limit=None if limit is None else limit / 1000,
        driver=driver.decode() if isinstance(driver, bytes) else driver,
        mig=None if mig is None else bool(mig),
        ecc=None if ecc is None else bool(ecc),
    )


def _processor_seconds() -> tuple[float, float] | None:
    """(seconds all cores were busy since boot, of these by this process); None where the system does not tell."""
    try:
        fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    except (OSError, IndexError):
        return None
    user, nice, system, _, _, irq, softirq, steal = (int(field) for field in fields[:8])
    own = os.times()
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK"), own.user + own.system


class ClockSampler:
    """Watches the device while its ``with`` block runs: a GPU's clocks, or how busy others keep the processor.

    ``summary`` afterwards. GPU: minimum, median and maximum of each series that the card reports, and the throttle
    reasons seen. CPU: ``other_busy_cores``, the cores that other processes kept busy, on average. None where neither
    can be read.
    """

    def __init__(self, device: str, period_s: float = 0.05) -> None:
        self._on_cpu = device != "cuda"
        self._busy: float | None = None
        self._nvml: Any = _nvml() if device == "cuda" else None
        self._handle = _handle(self._nvml) if self._nvml is not None else None
        self._period = period_s
        self._series: dict[str, list[float]] = {"sm_mhz": [], "mem_mhz": [], "power_w": [], "temp_c": []}
        self._throttle = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> ClockSampler:
        self._begin = time.monotonic()
        self._processor = _processor_seconds() if self._on_cpu else None
        if self._nvml is not None:
            self._thread = threading.Thread(target=self._loop, daemon=True)
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        now = _processor_seconds() if self._processor is not None else None
        if self._processor is not None and now is not None:
            others = (now[0] - self._processor[0]) - (now[1] - self._processor[1])
            self._busy = max(0.0, others / max(1e-3, time.monotonic() - self._begin))
        if self._thread is not None:
            self._thread.join()

    def _loop(self) -> None:
        while not self._stop.is_set():
            self._sample()
            self._stop.wait(self._period)

    def _sample(self) -> None:
        nvml, handle = self._nvml, self._handle
        readings = {
            "sm_mhz": _ask(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
            "mem_mhz": _ask(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)),
            "power_w": _ask(self._power),
            "temp_c": _ask(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
        }
        for name, value in readings.items():
            if value is not None:
                self._series[name].append(float(value))
        reasons = _ask(lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
        # Bit 0 is "idle": seen between launches, not a throttle.
        self._throttle |= int(reasons or 0) & ~1

    def _power(self) -> float | None:
        value = self._nvml.nvmlDeviceGetFieldValues(self._handle, [_POWER_INSTANT])[0]
        if value.nvmlReturn != 0:
            return float(self._nvml.nvmlDeviceGetPowerUsage(self._handle)) / 1000
        return float(value.value.uiVal) / 1000

    @property
    def summary(self) -> dict[str, Any] | None:
        """{"sm_mhz": [min, median, max], ..., "throttle": bits} or {"other_busy_cores": n}; None when nothing was read."""
        if self._on_cpu:
            return None if self._busy is None else {"other_busy_cores": round(self._busy, 2)}
        seen = {name: sorted(values) for name, values in self._series.items() if values}
        if not seen:
            return None
        table: dict[str, Any] = {name: [v[0], v[len(v) // 2], v[-1]] for name, v in seen.items()}
        return table | {"throttle": self._throttle}
