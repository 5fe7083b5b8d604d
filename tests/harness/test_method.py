"""The experiments about measuring: what is read in which order, what is written down, and what the table makes of it."""

from __future__ import annotations

import csv
import gzip
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.cases import MaskSpec, Problem, Timing
from harness.gate import Incorrect
from harness.machine import Machine
from harness.method import bench as bench_module
from harness.method import experiments as run_of
from harness.method.__main__ import main, measure, place_of
from harness.method.bench import Bench, Effort
from harness.method.experiments import ORDER, PLAN, Experiment
from harness.method.readings import Book, Place, Reading, ReadingError, read
from harness.method.table import table

TINY = Problem(MaskSpec("causal"), 256, 1, 1, 1, 64, "float32")
EFFORT = Effort(rest_s=0.0, short_s=1e-6, sustained=Timing(target_s=1e-6, heat_s=0.0), repeats=2, rounds=3)
WANTED = (("dense", ("forward", "backward"), TINY),)
PLACE = Place("NVIDIA H200", "abc", 700.0, "fm3: sm_90a", "0123456789abcdef", "2026-12-01T10:00:00+00:00")


def experiment(run: Callable[[Experiment, Bench], run_of.Readings], **changes: Any) -> Experiment:
    return replace(Experiment("name", "title", ("broken", "kept"), WANTED, run), **changes)


def readings(plan: Experiment, bench: Bench | None = None) -> list[Reading]:
    return [one for some in plan.run(plan, bench or Bench("cpu", EFFORT)) for one in some]


def turns(found: list[Reading]) -> list[tuple[int, str]]:
    return list(dict.fromkeys((one.repeat, one.setting) for one in found))


TURNED = [(0, "broken"), (0, "kept"), (1, "kept"), (1, "broken")]


@pytest.mark.parametrize("run", [run_of.start, run_of.bits, run_of.cache])
def test_both_settings_are_read_in_every_repeat_and_the_order_turns(
    run: Callable[[Experiment, Bench], run_of.Readings],
) -> None:
    found = readings(experiment(run))
    assert turns(found) == TURNED
    assert {(one.kernel, one.pass_) for one in found} == {("dense", "forward"), ("dense", "backward")}
    assert all(one.ms > 0 and one.seqlen == 256 for one in found)


def test_one_after_the_other_and_by_turns() -> None:
    plan = experiment(partial(run_of.order, hot=False), settings=ORDER, wanted=(("dense", ("forward",), TINY),))
    found = readings(plan)
    queues = {
        setting: [one.kernel for one in found if (one.repeat, one.setting, one.sample) == (0, setting, 0)] for setting in ORDER
    }
    a, b = "dense", "dense again"
    assert queues == {ORDER[0]: [a, a, a, b, b, b], ORDER[1]: [a, b, b, a, a, b]}


def test_a_hot_start_is_heated_once_and_a_cool_one_rests_before_every_call(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, done = Bench("cpu", replace(EFFORT, repeats=1)), []
    monkeypatch.setattr(bench, "rest", lambda: done.append("rest"))
    monkeypatch.setattr(bench, "heat", lambda: done.append("heat"))
    for some in (plan := experiment(run_of.start)).run(plan, bench):
        done.append(some[0].pass_)
    assert done == ["rest", "forward", "rest", "backward", "heat", "forward", "backward"]


def test_the_cache_is_emptied_in_one_setting_only(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, flushed = Bench("cpu", EFFORT), []
    for timer in (bench.cold, bench.warm):
        monkeypatch.setattr(timer, "flush", partial(flushed.append, timer))
    seen = {}
    for some in (plan := experiment(run_of.cache)).run(plan, bench):
        seen[some[0].setting], flushed[:] = set(flushed), []
    assert seen == {"broken": {bench.warm}, "kept": {bench.cold}}
    assert bench.warm._flush is None and bench.cold._flush is not None


def test_a_wrong_kernel_gets_no_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    dense = bench_module.BACKENDS["dense"]
    attend = dense.prepare

    def wrong(*arguments: Any) -> Callable[..., Any]:
        right = attend(*arguments)
        return lambda q, k, v: tuple(None if t is None else t * 1.5 for t in right(q, k, v))

    monkeypatch.setattr(dense, "prepare", wrong)
    with pytest.raises(Incorrect):
        Bench("cpu", EFFORT).subjects("dense", TINY)
    monkeypatch.setattr(dense, "prepare", lambda *arguments: lambda q, k, v: (attend(*arguments)(q, k, v)[0] + 1.0, None))
    monkeypatch.setattr(bench_module, "check", lambda *arguments: {})
    with pytest.raises(Incorrect, match="zeros"):
        Bench("cpu", EFFORT).subjects("dense", TINY, zeros=True)


def test_what_is_written_down_is_what_was_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = tuple(replace(plan, wanted=(("dense", ("forward",), TINY),)) for plan in PLAN)
    monkeypatch.setattr("harness.method.__main__.PLAN", small)
    path = tmp_path / "method.csv"
    book = Book(path, place_of("cpu"))
    measure(Bench("cpu", EFFORT), book)
    book.close()
    place, found = read(path)
    with gzip.open(tmp_path / "method.csv.gz", "wb") as packed:
        packed.write(path.read_bytes())
    assert read(tmp_path / "method.csv.gz") == (place, found)
    assert place.gpu_hash is None and place.gpu
    assert {one.experiment for one in found} == {plan.name for plan in PLAN}
    lines = [line for line in table(place, found).splitlines() if line.startswith("| ")]
    assert [line.split(" | ")[0] for line in lines[1:]] == [f"| {plan.title}" for plan in PLAN]
    with pytest.raises(FileExistsError):
        Book(path, place)


def test_a_crash_leaves_whole_lines(tmp_path: Path) -> None:
    book = Book(tmp_path / "method.csv", PLACE)
    book.add([reading("start", "rested", 2.0)])
    assert read(tmp_path / "method.csv") == (PLACE, [reading("start", "rested", 2.0)])  # nothing was closed


def reading(experiment: str, setting: str, ms: float, repeat: int = 0, kernel: str = "fm3") -> Reading:
    return Reading(
        *(experiment, setting, kernel, "forward", "full", 8192, 16, 32, 128, "bfloat16", repeat, 0, ms),
        sm_mhz=1500.0,
        power_w=None,
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda text: "", "header"),
        (lambda text: text.replace("gpu_hash", "hash", 1), "header"),
        (lambda text: text.replace(",2.0,", ",-2.0,", 1), "line 2: ms=-2.0"),
        (lambda text: text.replace(",2.0,", ",nan,", 1), "line 2: ms=nan"),
        (lambda text: text.replace(",2.0,", ",two,", 1), "line 2"),
        (lambda text: text[: text.rindex(",1500")] + "\n", "line 3"),
        (lambda text: text.replace("NVIDIA H200", "NVIDIA H100", 1), "2 machines"),
        (lambda text: text.splitlines()[0] + "\n", "0 machines"),
    ],
)
def test_a_file_of_another_form_is_refused(tmp_path: Path, change: Callable[[str], str], said: str) -> None:
    book = Book(tmp_path / "method.csv", PLACE)
    book.add([reading("start", "rested", 2.0), reading("start", "heated", 1.0)])
    book.close()
    path = tmp_path / "changed.csv"
    path.write_text(change((tmp_path / "method.csv").read_text()))
    with pytest.raises(ReadingError, match=re.escape(said)):
        read(path)


@pytest.mark.parametrize("change", [{"time": ""}, {"gpu": ""}, {"power_limit": "nan"}, {"sm_mhz": "inf"}, {"power_w": "-1"}])
def test_a_reading_that_cannot_be_is_refused(tmp_path: Path, change: dict[str, str]) -> None:
    book = Book(tmp_path / "method.csv", PLACE)
    book.add([reading("start", "rested", 2.0)])
    book.close()
    with (tmp_path / "method.csv").open(newline="") as file:
        (line,) = csv.DictReader(file)
    path = tmp_path / "changed.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, line.keys())
        writer.writeheader()
        writer.writerow(line | change)
    with pytest.raises(ReadingError, match="changed.csv, line 2"):
        read(path)


@pytest.mark.parametrize("damage", [lambda packed: packed[:-12], lambda packed: b"not gzip", lambda packed: b""])
def test_a_damaged_packed_file_is_refused(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    book = Book(tmp_path / "method.csv", PLACE)
    book.add([reading("start", "rested", 2.0)])
    book.close()
    path = tmp_path / "method.csv.gz"
    path.write_bytes(damage(gzip.compress((tmp_path / "method.csv").read_bytes())))
    with pytest.raises(ReadingError, match=re.escape(str(path))):
        read(path)


def test_the_table_compares_within_repeats() -> None:
    """A machine that is twice as slow in the second repeat changes no ratio."""
    broken, kept = next(plan.settings for plan in PLAN if plan.name == "bits")
    found = [reading("bits", broken, 0.9), reading("bits", kept, 1.0)]
    found += [reading("bits", broken, 1.8, 1), reading("bits", kept, 2.0, 1), reading("bits", kept, 5.0, 2)]
    (line,) = [line for line in table(PLACE, found).splitlines() if line.startswith("| inputs")]
    assert line.endswith("| 0.900 (0.900 to 0.900) |")
    assert "zeros: 1.35 ms, 1500 MHz |" in line and "FM3 forward, full 8K, batch 16, 32 heads" in line


def test_the_tables_line_about_order_is_about_one_kernel_beside_itself() -> None:
    found = []
    for setting, again in zip(ORDER, (1.1, 1.0), strict=True):
        found += [reading("order", setting, 1.0), reading("order", setting, again, kernel="fm3 again")]
    (line,) = [line for line in table(PLACE, found).splitlines() if line.startswith("| order")]
    assert f"{ORDER[0]}: 1.100" in line and f"{ORDER[1]}: 1.000" in line
    assert "MEASURED · NVIDIA H200 (700 W) · fm3: sm_90a · commit 0123456789 · 2026-12-01" in table(PLACE, found)


NO_GPU = Machine(gpu=None, gpu_memory=None, cpu="a processor", cores=2, memory=None, memory_available=None)


def test_without_a_gpu_one_line_says_so_and_nothing_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--out", str(tmp_path / "method.csv")], NO_GPU) == 3
    assert capsys.readouterr().err.startswith("method: ") and not list(tmp_path.iterdir())


@pytest.mark.parametrize("place", ["there.csv", "nowhere/method.csv", "folder", "new.csv.gz"])
def test_a_file_that_cannot_be_written_is_told_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setattr("harness.method.__main__.place_of", lambda device: PLACE)
    (tmp_path / "there.csv").write_text("kept")
    (tmp_path / "folder").mkdir()
    assert main(["--out", str(tmp_path / place)], replace(NO_GPU, gpu="NVIDIA H200")) == 2
    assert str(tmp_path / place) in capsys.readouterr().err
    assert (tmp_path / "there.csv").read_text() == "kept"


@pytest.mark.gpu
def test_on_a_gpu_clocks_are_read_too() -> None:
    bench = Bench("cuda", replace(EFFORT, sustained=Timing(target_s=0.2)))
    problem = replace(TINY, seqlen=4096, heads=8, dtype="bfloat16")
    (subject,) = [one for one in bench.subjects("dense", problem) if one.pass_ == "forward"]
    found = bench.read(("cache", "emptied", 0), subject, bench.cold)
    assert torch.cuda.is_available() and len(found) > 1
    assert all(one.sm_mhz and one.power_w for one in found)
