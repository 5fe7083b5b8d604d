"""One group in this process: its competitors prepared, checked and timed in turn; every outcome is reported.

The same code in the worker and in every rank of a team. What differs there is the timer, whose samples are those of all ranks
and whose ``settle`` makes all of them go on alike.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch

from harness.backends import backend_of
from harness.backends.base import MissingBackend
from harness.calls import GRADIENTS, Passes
from harness.cases import Group
from harness.device import ClockSampler
from harness.gate import Incorrect, check
from harness.gate.oracle import Oracle
from harness.gate.whole import Answers
from harness.inputs import Inputs, make_inputs, make_mask
from harness.resume import Planned
from harness.timing import Event, Timer
from masks.column_mask import ColumnMask
from masks.tiles import exact_density, tile_density

Report = Callable[..., None]
Turn = Callable[[int], None]
"""Called before a group is prepared (``SETUP``) and before every round (its number). Returns when it may be done."""
SETUP = -1
T = TypeVar("T")


@dataclass
class Competitor:
    """One prepared and checked competitor: the passes that it can do, whole and in ``parts``."""

    name: str
    passes: list[str]
    whole: Passes
    parts: dict[str, Passes]
    facts: dict[str, Any]

    def forget(self) -> None:
        """Free what is only needed in its own turn."""
        for one in (self.whole, *self.parts.values()):
            one.forget()


def at_once(step: int) -> None:
    """The turn of a process that has the machine for itself."""


def run_group(planned: Planned, timer: Timer, report: Report, turn: Turn = at_once) -> None:
    """Prepare, check and time one group; every outcome is reported, none raises but what kills the process."""
    turn(SETUP)
    group, problem = planned.group, planned.group.problem
    # torch's own switch is how a user asks every competitor for it; without filling fresh memory, which is not timed.
    torch.use_deterministic_algorithms(group.deterministic)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    mask = make_mask(problem, group.device)
    report(
        event="mask",
        mask_digest=mask.digest(),
        mask_heads=mask.heads,
        density=exact_density(mask),
        tile_density=tile_density(mask),
    )
    inputs = make_inputs(problem, group.device)
    answers = Answers(Oracle(mask, inputs, problem.head_dim**-0.5))
    ready = []
    for name in planned.kernels:
        report(event="start", kernel=name, phase="check")
        competitor = _enter(name, group, mask, inputs, answers, timer, report)
        if competitor is not None:
            ready.append(competitor)
            if group.team is not None:
                competitor.forget()
    del answers
    if ready:
        _rounds(ready, planned, timer, report, turn)


def _enter(
    name: str, group: Group, mask: ColumnMask, inputs: Inputs, answers: Answers, timer: Timer, report: Report
) -> Competitor | None:
    """Prepare and check one competitor; None (and a verdict for every pass) when it cannot go on."""
    backend = backend_of(name, group)
    passes = []
    for pass_ in group.passes:
        reason = backend.unsupported(group.problem, mask, pass_, group.device)
        if reason is None:
            passes.append(pass_)
        else:
            report(event="verdict", kernel=name, passes=[pass_], status="unsupported", reason=reason)
    if not passes:
        return None
    gradients = any(pass_ in GRADIENTS for pass_ in passes)
    # The forward pass of training, whatever else is asked for; of a kernel that has no backward pass here, what there is.
    trains = gradients or backend.unsupported(group.problem, mask, "backward", group.device) is None

    def enter() -> Competitor:
        attend = backend.prepare(group.problem, mask)
        timer.sync()
        begin = time.perf_counter()
        whole = Passes(*backend.timed(attend, inputs), trains)
        parts = {name: Passes(*timed, trains) for name, timed in backend.alone(inputs).items()}
        for pass_ in passes:
            for one in (whole, *parts.values()):
                one.call(pass_)()
        timer.sync()
        compile_ms = (time.perf_counter() - begin) * 1000
        # Preparing is timed the second time: the first also pays for loading kernels.
        begin = time.perf_counter()
        backend.prepare(group.problem, mask)
        timer.sync()
        setup_ms = (time.perf_counter() - begin) * 1000
        errors = check(attend, backend.layout, mask, inputs, answers, gradients, group.problem.seed)
        facts: dict[str, Any] = backend.facts(inputs)
        facts |= {"setup_ms": round(setup_ms, 4), "compile_ms": round(compile_ms, 1), "errors": errors}
        facts["host_us"] = {pass_: timer.host_us(whole.call(pass_), 5) for pass_ in passes}
        return Competitor(name, passes, whole, parts, facts)

    return _attempt(enter, name, passes, timer, report)


def _rounds(ready: list[Competitor], planned: Planned, timer: Timer, report: Report, turn: Turn) -> None:
    """Rounds in alternating order (A B, B A): a drift of the machine hits every competitor alike."""
    group = planned.group
    cool = group.timing.protocol == "sustained"
    for number in sorted({number for number, _, _ in planned.todo}):
        turn(number)
        if cool:
            timer.heat(group.timing.heat_s)
            cool = False
        ordered = ready if number % 2 == 0 else ready[::-1]
        entries: list[dict[str, Any]] = []
        for position, competitor in enumerate(ordered):
            passes = [pass_ for pass_ in competitor.passes if (number, competitor.name, pass_) in planned.todo]
            if passes:
                report(event="start", kernel=competitor.name, phase=f"round {number}", round=number)
            for pass_ in passes:
                clocks = ClockSampler(group.device)
                time_it = partial(_round, timer, competitor, pass_, clocks)
                taken = _attempt(time_it, competitor.name, [pass_], timer, report)
                if taken is None:
                    competitor.passes.remove(pass_)  # its verdict is out; the next rounds go on without it
                    continue
                entries.append(
                    {
                        "kernel": competitor.name,
                        "pass": pass_,
                        "order": position,
                        "clocks": clocks.summary,
                        **competitor.facts,
                        **taken,
                        "ranks": _merged(competitor.facts.get("ranks"), taken.get("ranks")),
                        "host_us": competitor.facts["host_us"][pass_],
                    }
                )
            if group.team is not None:
                competitor.forget()  # every strategy's gathered keys at once fill a GPU
        report(event="round", round=number, entries=entries)


def _round(timer: Timer, competitor: Competitor, pass_: str, clocks: ClockSampler) -> dict[str, Any]:
    """The samples of one round, as fields of a row."""
    whole, parts = competitor.whole, competitor.parts
    for one in (whole, *parts.values()):
        one.remember(pass_)
    with clocks:
        return timer.round_of(whole.call(pass_), {name: part.call(pass_) for name, part in parts.items()})


def _merged(one: dict[str, Any] | None, other: dict[str, Any] | None) -> dict[str, Any] | None:
    return (one or {}) | (other or {}) or None


def _attempt(do: Callable[[], T], kernel: str, passes: list[str], timer: Timer, report: Report) -> T | None:
    """What ``do`` returns. Where it raises, here or on another rank, None: a verdict is out, and the next one has its turn."""
    found: T | None = None
    verdict: Event | None = None
    try:
        found = do()
    except Exception as error:  # whatever a competitor throws must not take the others with it
        verdict = {"event": "verdict", "kernel": kernel, "passes": passes} | _verdict(error)
    verdict = timer.settle(verdict)
    if verdict is None:
        return found
    report(**verdict)
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.synchronize()  # a broken context raises here and ends this process: the parent starts another
        torch.cuda.empty_cache()
    return None


def _verdict(error: Exception) -> dict[str, Any]:
    """Status and reason of what a competitor raised."""
    reason = str(error)
    if isinstance(error, Incorrect):
        return {"status": "incorrect", "reason": reason, "errors": error.errors}
    if isinstance(error, MissingBackend):
        return {"status": "missing_backend", "reason": reason}
    if "does not have a deterministic implementation" in reason:
        return {"status": "unsupported", "reason": _short(error)}
    # An allocation that failed on the host arrives as a plain RuntimeError.
    full = "can't allocate memory" in reason or "not enough memory" in reason or "out of memory" in reason
    if full or isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return {"status": "oom", "reason": _short(error)}
    compiles = type(error).__module__.startswith(("torch._dynamo", "torch._inductor"))
    return {"status": "compile_error" if compiles else "crash", "reason": _short(error)}


def _short(error: BaseException) -> str:
    """The first line of an error and its type, at most 300 characters."""
    first = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {first[0]}"[:300]
