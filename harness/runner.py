"""The runner: takes a plan through worker processes into the store, whatever a competitor does on the way.

Resumes from what is recorded, blames the competitor in flight when a worker dies or hangs and goes on without it,
appends every round as one block, and says in the exit code whether everything went well. It never touches the device
itself.
"""

from __future__ import annotations

import signal
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.backends import backend_of
from harness.cases import Group, kernel_of, stable_hash
from harness.child import WORKER, Child, ChildDied, ChildHung
from harness.limits import PASS_FACTOR
from harness.progress import Display
from harness.provenance import environment, git_state, tree_hash
from harness.resume import Entry, Planned, Recorded, plan
from harness.row_limits import FIGURES
from harness.rows import BUSY_CORES, SCHEMA_VERSION, Row, RowError, read_rows
from harness.simulate.backend import Simulated
from harness.store import Store, StoreError, new_run_id
from harness.timing import TIMING_VERSION

EXIT_OK, EXIT_FAILED, EXIT_USAGE, EXIT_BAD_DATA, EXIT_INTERRUPTED = 0, 1, 2, 4, 130

# Floating-point operations of a forward pass per visible pair, query head and element of the head: two products.
_FORWARD_FLOPS = 4.0
_GOOD = ("ok", "unsupported")
_WAITING, _WAITS = "waiting for its turn", 2


@dataclass(frozen=True)
class RunOptions:
    """How to run. ``peak_tflops``: the machine's peak; a faster figure is refused as wrong. ``turn``: called before every step
    of a group with the group's number and the step (``harness.measure.Turn``); it is done when that returns."""

    results_dir: Path
    dry_run: bool = False
    overrides: tuple[str, ...] = ()
    config_hash: str = ""
    peak_tflops: float | None = None
    worker: tuple[str, ...] = WORKER
    turn: Callable[[int, int], None] | None = None


def run(groups: list[Group], options: RunOptions) -> int:
    """Measure what the plan asks for and the store does not have yet.

    Returns:
        0 all cases ok or unsupported; 1 some failed; 2 the results folder cannot be written; 4 stored rows are broken;
        130 interrupted.
    """
    if not groups:
        print("nothing to run: the plan is empty")
        return EXIT_OK
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        return _Run(groups, options).go()
    except RowError as error:
        print(f"error: a stored row cannot be read: {error}", file=sys.stderr)
        return EXIT_BAD_DATA
    except StoreError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_USAGE


def _interrupt(signum: int, frame: object) -> None:
    raise KeyboardInterrupt


class _Run:
    def __init__(self, groups: list[Group], options: RunOptions) -> None:
        self.options = options
        self.device = groups[0].device
        kernels = {kernel for group in groups for kernel in group.kernels}
        passes = {pass_ for group in groups for pass_ in group.passes}
        # All groups of a run share in the same way but for the degree, which is no other source, or not at all.
        by_name = {kernel: backend_of(kernel, groups[0]) for kernel in kernels}
        self.available = {kernel: backend.probe(self.device) for kernel, backend in by_name.items()}
        self.hashes = {(k, pass_): by_name[k].source_hash(self.device, pass_) for k in kernels for pass_ in passes}
        simulated = [backend for backend in by_name.values() if isinstance(backend, Simulated)]
        self.record = simulated[0].environment() if simulated else environment(self.device)
        self.told = f"SIMULATED on {self.record['gpu']}: nothing of this is a measurement" if simulated else None
        self.groups = groups
        self.statuses: Counter[str] = Counter()
        self.told_busy = False

    def go(self) -> int:
        options = self.options
        if options.dry_run:
            return self._show_plan(self._plan(stable_hash(self.record)))
        self.store = Store(options.results_dir, new_run_id())
        try:
            self.environment = self.store.write_environment(self.record)
            planned = self._plan(self.environment)
            return self._execute(planned)
        finally:
            self.store.close()

    def _plan(self, environment_hash: str) -> list[Planned]:
        self.recorded = Recorded(read_rows(self.options.results_dir), environment_hash)
        return plan(self.groups, self.hashes, self.recorded)

    def _show_plan(self, planned: list[Planned]) -> int:
        if self.told is not None:
            print(self.told)
        for item in planned:
            rounds = sorted({number for number, _, _ in item.todo})
            passes = ", ".join(item.group.passes)
            print(f"{item.group.title}: {', '.join(item.kernels)} ({passes}; rounds {rounds[0]}-{rounds[-1]})")
        total = sum(len(group.kernels) * group.timing.rounds for group in self.groups)
        left = sum(item.steps - len(item.kernels) for item in planned)
        todo = "measure" if self.told is None else "simulate"
        print(f"{left} of {total} rounds to {todo} into {self.options.results_dir}; nothing was run")
        return EXIT_OK

    def _execute(self, planned: list[Planned]) -> int:
        steps = sum(item.steps for item in planned)
        self.child: Child | None = None
        with Display(steps) as self.display:
            if self.told is not None:
                self.display.note(self.told)
            if not planned:
                self.display.note("everything asked for is already recorded")
            try:
                for item in planned:
                    self._group(item)
            except KeyboardInterrupt:
                self.display.note("interrupted; recorded rounds are kept, the same command goes on from here")
                if self.child is not None:
                    self.child.kill()
                return EXIT_INTERRUPTED
            except BaseException:
                if self.child is not None:
                    self.child.kill()
                raise
            if self.child is not None:
                self.child.close()
        failed = {status: n for status, n in sorted(self.statuses.items()) if status not in _GOOD}
        if failed:
            self.display.note("not every case went well: " + ", ".join(f"{n} {status}" for status, n in failed.items()))
        return EXIT_FAILED if failed else EXIT_OK

    def _group(self, item: Planned) -> None:
        """One group, with a fresh worker and one competitor less after every death or hang."""
        self.display.group(item.group.title)
        for kernel in item.kernels:
            found = self.available[kernel]
            if not found.ok:
                hint = f" ({found.install})" if found.install else ""
                self._verdict(item.group, kernel, item.group.passes, 0, "missing_backend", f"{found.reason}{hint}", {})
                item = item.without([kernel])
        waits = 0
        while item.todo:
            flight = _Flight()
            try:
                if self.child is None:
                    self.child = Child(self.options.worker)
                for report in self.child.reports(item, self.options.turn is not None):
                    self._take(report, item.group, flight)
                return
            except (ChildDied, ChildHung) as error:
                assert self.child is not None
                self.child.kill()
                self.child = None
                if not item.without(done=flight.done).todo:
                    return  # it had said everything
                if flight.phase == _WAITING and waits < _WAITS:
                    waits += 1  # nothing ran, so nothing is to blame: prepared once more
                    item = item.without(done=flight.done)
                    continue
                status = "timeout" if isinstance(error, ChildHung) else "crash"
                blamed = [flight.kernel] if flight.kernel is not None else list(item.kernels)
                for kernel in blamed:
                    reason = f"{error} during {flight.phase}"
                    self._verdict(item.group, kernel, item.group.passes, flight.round, status, reason, flight.mask)
                item = item.without(blamed, flight.done)
            except KeyboardInterrupt:
                if flight.kernel is not None:
                    reason = f"during {flight.phase}"
                    passes = item.group.passes
                    self._verdict(item.group, flight.kernel, passes, flight.round, "interrupted", reason, flight.mask)
                raise

    def _take(self, report: dict[str, Any], group: Group, flight: _Flight) -> None:
        """One report of the worker."""
        kind = report.pop("event")
        if kind == "mask":
            flight.mask = report
        elif kind == "turn":
            assert self.options.turn is not None and self.child is not None
            flight.kernel, flight.phase = None, _WAITING
            self.options.turn(self.groups.index(group), report["step"])
            self.child.go()
        elif kind == "start":
            flight.kernel, flight.phase, flight.round = report["kernel"], report["phase"], report.get("round", 0)
            self.display.step(1 if report["phase"] == "check" else 0)
        elif kind == "verdict":
            facts = flight.mask | {"errors": report.get("errors")}
            kernel, passes = report["kernel"], report["passes"]
            self._verdict(group, kernel, passes, flight.round, report["status"], report["reason"], facts)
            flight.done |= {(n, kernel, pass_) for n in range(group.timing.rounds) for pass_ in passes}
        elif kind == "round":
            timed = {(report["round"], entry["kernel"], entry["pass"]) for entry in report["entries"]}
            rows = [self._measured(group, report["round"], entry, flight.mask) for entry in report["entries"]]
            self.store.append(rows)
            self.statuses.update(row["status"] for row in rows)
            self._note_others(rows)
            flight.done |= timed
            self.display.step(len({kernel for _, kernel, _ in timed}))

    def _note_others(self, rows: list[Row]) -> None:
        """A processor that others use too gives figures that say little: tell once."""
        busy = max(((row["clocks"] or {}).get("other_busy_cores", 0.0) for row in rows), default=0.0)
        if busy > BUSY_CORES and not self.told_busy:
            self.told_busy = True
            self.display.note(f"  other programs keep {busy:.1f} cores busy: these figures are slower than the machine")

    def _measured(self, group: Group, number: int, entry: dict[str, Any], mask: dict[str, Any]) -> Row:
        """The row of one timed round."""
        pass_, kernel = entry["pass"], entry.pop("kernel")
        p = group.problem
        pairs = _FORWARD_FLOPS * PASS_FACTOR[pass_] * p.batch * p.heads * p.seqlen**2 * p.head_dim
        row = self._row(group, kernel, pass_, number) | mask | entry
        row |= {"flops": pairs * mask["density"], "flops_tile128": pairs * mask["tile_density"]}
        tflops = row["flops"] / statistics.median(entry["samples_ms"]) / 1e9
        peak = self.options.peak_tflops
        if peak is not None and group.team is not None:
            peak *= group.team.cp_degree  # what all ranks compute together
        if peak is not None and tflops > peak:
            row |= dict.fromkeys(FIGURES)
            row |= {"status": "incorrect", "reason": f"{tflops:.0f} TFLOP/s is above this machine's peak of {peak:g}"}
            self.display.note(f"  {kernel} {pass_}: {row['reason']}")
        return row

    def _verdict(
        self,
        group: Group,
        kernel: str,
        passes: Iterable[str],
        number: int,
        status: str,
        reason: str,
        facts: dict[str, Any],
    ) -> None:
        """Rows without figures: why these passes of a competitor have none."""
        rows = []
        for pass_ in passes:
            self.statuses[status] += 1
            if not self.recorded.is_told(group.case(kernel, pass_).id, self.hashes[kernel, pass_], status):
                rows.append(self._row(group, kernel, pass_, number) | facts | {"status": status, "reason": reason})
        self.store.append(rows)
        if status != "unsupported":
            self.display.note(f"  {kernel}: {status} ({reason})")

    def _row(self, group: Group, kernel: str, pass_: str, number: int) -> Row:
        """Everything about a row that is known before it is measured."""
        p, case, sharing = group.problem, group.case(kernel, pass_), group.sharing(kernel)
        sha, dirty = git_state()
        return {
            "schema_version": SCHEMA_VERSION,
            "case_id": case.id,
            "run_id": self.store.run_id,
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "status": "ok",
            "reason": None,
            "source": "measured" if group.cluster is None else "simulated",
            "protocol": group.timing.protocol,
            "l2": group.timing.l2,
            "round": number,
            "order": 0,
            "kernel": kernel_of(kernel),
            "kernel_version": self.available[kernel].version,
            "source_hash": self.hashes[kernel, pass_],
            "build_flags": None,
            "strategy": sharing.strategy if sharing is not None else None,
            "exchange": sharing.exchange if sharing is not None else None,
            "cp_degree": sharing.cp_degree if sharing is not None else 1,
            "mask": p.mask.family,
            "mask_variant": p.mask.variant,
            "mask_params": dict(p.mask.params),
            "mask_digest": None,
            "mask_heads": None,
            "density": None,
            "tile_density": None,
            "seed": p.seed,
            "seqlen": p.seqlen,
            "batch": p.batch,
            "heads": p.heads,
            "kv_heads": p.kv_heads,
            "head_dim": p.head_dim,
            "dtype": p.dtype,
            "pass": pass_,
            "deterministic": group.deterministic,
            "samples_ms": None,
            "comp_samples_ms": None,
            "comm_samples_ms": None,
            "bare_samples_ms": None,
            "setup_ms": None,
            "plan_ms": None,
            "recv_share": None,
            "ranks": None,
            "compile_ms": None,
            "host_us": None,
            "flops": None,
            "flops_tile128": None,
            "errors": None,
            "simulation": None,
            "device": group.device,
            "gpu": self.record["gpu"],
            "gpu_hash": self.record["gpu_hash"],
            "power_limit": self.record["power_limit"],
            "clocks": None,
            "environment": self.environment,
            "git_sha": sha,
            "git_dirty": dirty,
            "tree_hash": tree_hash(),
            "timing_version": TIMING_VERSION,
            "config_hash": self.options.config_hash,
            "overrides": [word for word in self.options.overrides if not _is_a_place(word)],
        }


def _is_a_place(word: str) -> bool:
    """Whether it says where on this machine rows go: no part of what was asked, and of no use on another one."""
    return word.startswith("results_dir=") and Path(word.partition("=")[2].strip("'\"")).is_absolute()


@dataclass
class _Flight:
    """Where the worker is: what to blame if it dies now, and what need not be done again."""

    kernel: str | None = None
    phase: str = "building the mask"
    round: int = 0
    mask: dict[str, Any] = field(default_factory=dict)
    done: set[Entry] = field(default_factory=set)
