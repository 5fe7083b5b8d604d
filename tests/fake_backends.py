"""Competitors that misbehave in every way a real one can. ``install`` puts them among the others.

They answer with dense maths, so their figures pass the gate; each has one fault.
"""

from __future__ import annotations

import os
import time
from typing import Any

import torch

from harness.backends import BACKENDS
from harness.backends.base import Attend, Availability, Backend
from harness.backends.dense import Dense


class Fake(Backend):
    """Right, on any device, and slow enough to be interrupted when told so."""

    name = "good"
    title = "good"

    def probe(self, device: str) -> Availability:
        return Availability(True, "1")

    def unsupported(self, problem: Any, mask: Any, pass_: str, device: str) -> str | None:
        return None

    def prepare(self, problem: Any, mask: Any) -> Attend:
        attend = Dense().prepare(problem, mask)
        calls = iter(range(10**9))

        def faulty(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
            out, lse = attend(q, k, v)
            return self.fault(out, next(calls)), lse

        return faulty

    def fault(self, out: torch.Tensor, call: int) -> torch.Tensor:
        pause = os.environ.get("FAKE_PAUSE")
        if pause:
            time.sleep(float(pause))
        return out


class Other(Fake):
    name = "other"


class Wrong(Fake):
    name = "wrong"

    def fault(self, out: torch.Tensor, call: int) -> torch.Tensor:
        return out * 1.02


class Raises(Fake):
    name = "raises"

    def fault(self, out: torch.Tensor, call: int) -> torch.Tensor:
        raise ValueError("no luck\nsecond line")


class OutOfMemory(Fake):
    name = "oom"

    def fault(self, out: torch.Tensor, call: int) -> torch.Tensor:
        raise torch.OutOfMemoryError("no more")


class NoBackward(Fake):
    """Its backward pass runs out of memory after some calls, when the gate is long passed."""

    name = "no_backward"
    backward_calls = 0

    def fault(self, out: torch.Tensor, call: int) -> torch.Tensor:
        def refuse(gradient: torch.Tensor) -> None:
            NoBackward.backward_calls += 1
            if NoBackward.backward_calls >= int(os.environ.get("FAKE_DIES_AT", "0")):
                raise torch.OutOfMemoryError("backward")

        if out.requires_grad:
            out.register_hook(refuse)
        return out


class Dies(Fake):
    """Ends the process in the middle of a round, after it passed the gate."""

    name = "dies"

    def fault(self, out: torch.Tensor, call: int) -> torch.Tensor:
        if call >= int(os.environ.get("FAKE_DIES_AT", "0")):
            os.abort()
        return out


class Hangs(Fake):
    name = "hangs"

    def fault(self, out: torch.Tensor, call: int) -> torch.Tensor:
        time.sleep(1000)
        return out


class Histogram(Fake):
    """Uses an operator that has no deterministic form."""

    name = "histogram"

    def fault(self, out: torch.Tensor, call: int) -> torch.Tensor:
        if torch.are_deterministic_algorithms_enabled():
            raise RuntimeError("histc does not have a deterministic implementation, but you set it")
        return out


class Cannot(Fake):
    name = "cannot"

    def unsupported(self, problem: Any, mask: Any, pass_: str, device: str) -> str | None:
        return "no backward pass here" if pass_ == "backward" else None


class Missing(Fake):
    name = "missing"

    def probe(self, device: str) -> Availability:
        return Availability(False, reason="not installed", install="pip install it")


FAKES = (Fake, Other, Wrong, Raises, OutOfMemory, NoBackward, Dies, Hangs, Histogram, Cannot, Missing)


def install() -> None:
    """Add the fakes to the registry of this process."""
    for kind in FAKES:
        BACKENDS[kind.name] = kind()
