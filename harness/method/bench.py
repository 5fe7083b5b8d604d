"""The bench: kernels prepared and checked as the harness does, and readings of their calls."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace

import torch

from harness.backends import BACKENDS, Attend
from harness.calls import Passes
from harness.cases import Problem, Timing, stable_hash
from harness.device import ClockSampler
from harness.gate import Incorrect, check
from harness.gate.oracle import Oracle
from harness.gate.whole import Answers
from harness.inputs import Inputs, make_inputs, make_mask
from harness.method.readings import Reading
from harness.timing import Call, Timer

PASSES = ("forward", "backward")
SUSTAINED = Timing()


@dataclass(frozen=True)
class Effort:
    """How long everything takes, in seconds, and how often it is done.

    rest_s: how long the card idles before a cool start. short_s: what a round of samples lasts in the ``burst`` protocol.
    sustained: the other protocol, how long it heats and samples. rounds: of each side of a comparison.
    """

    rest_s: float = 1.5
    short_s: float = 0.1
    sustained: Timing = SUSTAINED
    repeats: int = 5
    rounds: int = 6


@dataclass(frozen=True)
class Subject:
    """A pass of a kernel on a problem, ready to be called."""

    kernel: str
    pass_: str
    problem: Problem
    call: Call


class Bench:
    """Timers and clocks of one device."""

    def __init__(self, device: str, effort: Effort | None = None) -> None:
        self.device, self.effort = device, effort or Effort()
        sustained = self.effort.sustained
        self.cold = Timer(device, replace(sustained, l2="cold"))
        self.warm = Timer(device, replace(sustained, l2="warm"))
        self.short = Timer(device, replace(sustained, l2="cold", target_s=self.effort.short_s))
        self._known: dict[tuple[str, str], tuple[Attend, Inputs]] = {}

    def subjects(self, kernel: str, problem: Problem, zeros: bool = False) -> list[Subject]:
        """Both passes of a kernel, checked: against the oracle on random inputs, which come first; zeros must give zeros.

        Raises:
            Incorrect: the result is wrong.
        """
        attend, inputs = self._checked(kernel, problem)
        if zeros:
            inputs = Inputs(*(torch.zeros_like(tensor) for tensor in (inputs.q, inputs.k, inputs.v, inputs.dout)))
        passes = Passes(*BACKENDS[kernel].timed(attend, inputs), True)
        passes.remember("backward")
        calls = {name: passes.call(name) for name in PASSES}
        if zeros and any(bool(tensor.any()) for tensor in (calls["forward"](), *calls["backward"]())):  # type: ignore[misc]
            raise Incorrect(f"{kernel} makes of zeros something else", {})
        return [Subject(kernel, name, problem, call) for name, call in calls.items()]

    def _checked(self, kernel: str, problem: Problem) -> tuple[Attend, Inputs]:
        key = (kernel, stable_hash(asdict(problem)))
        if key not in self._known:
            backend, mask = BACKENDS[kernel], make_mask(problem, self.device)
            attend, inputs = backend.prepare(problem, mask), make_inputs(problem, self.device)
            answers = Answers(Oracle(mask, inputs, problem.head_dim**-0.5))
            check(attend, backend.layout, mask, inputs, answers, True, problem.seed)
            self._known[key] = attend, inputs
        return self._known[key]

    def rest(self) -> None:
        """Let the card idle."""
        self.cold.sync()
        time.sleep(self.effort.rest_s)

    def heat(self) -> None:
        """Heat the card until its clock is flat."""
        self.cold.heat(self.effort.sustained.heat_s)

    def read(self, where: tuple[str, str, int], subject: Subject, timer: Timer) -> list[Reading]:
        """One round of samples.

        Args:
            where: experiment, setting and repeat.
            timer: one of the bench's.
        """
        clocks = ClockSampler(self.device, 0.02)
        with clocks:
            samples = timer.round(subject.call)
        seen = clocks.summary or {}
        sm, power = (seen[name][1] if name in seen else None for name in ("sm_mhz", "power_w"))
        experiment, setting, repeat = where
        p = subject.problem
        what = (subject.kernel, subject.pass_, p.mask.family, p.seqlen, p.batch, p.heads, p.head_dim, p.dtype, repeat)
        return [Reading(experiment, setting, *what, number, round(ms, 6), sm, power) for number, ms in enumerate(samples)]
