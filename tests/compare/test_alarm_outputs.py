"""One comparison with every class in it, in every output, against stored files; and text of rows that tries to break out.

``PYTHONPATH=.:tests:tests/compare python tests/compare/test_alarm_outputs.py`` writes the stored files anew: look at the
difference before committing it.
"""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path

import pytest
from alarm_rows import NEW, case_rows, compared
from row_factory import make_row

from harness.compare import machine_readable, text
from harness.compare.reading import recording
from harness.compare.settings import Acknowledgement, Settings
from harness.compare.verdict import Comparison, Kind, Verdict

GOLDEN = Path(__file__).with_name("golden")


def everything() -> Comparison:
    """Every class once at least, two machines, notes, an acknowledged alarm."""
    new, base = [], []
    for side, how in ((new, NEW), (base, {"rounds": 40})):
        fresh = side is new
        side += case_rows("full", kernel="sdpa_cudnn", **how)
        side += case_rows("causal", **how, slower=0.05 if fresh else 0.0)
        side += case_rows("causal", **how, kernel="flex", slower=0.04 if fresh else 0.0)
        side += case_rows("sliding_window", **how, slower=-0.06 if fresh else 0.0)
        side += case_rows("document", **how, variant="same")
        side += case_rows("document", **how, variant="throttled", **({"clock": 1500.0, "throttle": 0x44} if fresh else {}))
        side += case_rows("document", **how, variant="noisy", noise=0.05)
        side += case_rows("document", **how, variant="elsewhere", gpu_hash="card-2" if fresh else "card-1")
    new += case_rows("document", **NEW, variant="new | <b>x</b> `::error::`\n\x1b[31m")
    base += case_rows("document", variant="lost")
    new.append(make_row(kernel="fm3", mask="document", variant="lost", status="crash", run_id="run-new",
                        time="2026-03-01T00:00:00Z", reason="died, 100%: signal 11", gpu_hash="card-1"))  # fmt: skip
    base += case_rows("document", gpu="Another GPU", variant="same")
    settings = Settings(acknowledged=(Acknowledgement("torch 9 does it", date(2026, 9, 1), kernel="flex"),))
    now = datetime(2026, 6, 1, tzinfo=UTC)
    return compared(recording("results/new", new, ["run-x.jsonl"], now), recording("abc1234", base, now=now), settings)


OUTPUTS: dict[str, Callable[[Comparison], str]] = {
    "terminal.txt": text.terminal,
    "terminal_all.txt": lambda found: text.terminal(found, every=True),
    "summary.md": text.markdown,
    "annotations.txt": machine_readable.github,
    "alarms.xml": machine_readable.junit,
    "alarms.json": machine_readable.as_json,
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_outputs_are_what_is_stored(name: str) -> None:
    assert OUTPUTS[name](everything()) == (GOLDEN / name).read_text()


@pytest.mark.parametrize("width", [80, 100, 300])
def test_tables_on_a_terminal_fit_it(width: int) -> None:
    """Classes, figures and reasons are all there, whole, at any width."""
    found = everything()
    lines = text.terminal(found, every=True, width=width).splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("  verdict"))
    table = lines[first : lines.index("", first)]
    assert max(map(len, table)) <= width
    words = " ".join(" ".join(table).split())
    for verdict in found.verdicts:
        if verdict.setting == found.verdicts[0].setting:
            assert verdict.word in words and " ".join(verdict.reason.split()) in words
            assert verdict.numbers is None or verdict.numbers.change in words


def test_the_stored_comparison_has_every_class() -> None:
    found = everything()
    assert set(found.counts) == set(Kind)
    assert found.exit_code == 1


def test_no_output_lets_text_of_rows_break_out() -> None:
    found = everything()
    outputs = {name: make(found) for name, make in OUTPUTS.items()}
    assert not any("\x1b" in content for content in outputs.values())
    assert all(line.startswith("::") and line.count("::error") <= 1 for line in outputs["annotations.txt"].splitlines())
    table = [line for line in outputs["summary.md"].splitlines() if line.startswith("|")]
    assert {line.replace("\\|", "").count("|") for line in table} == {9}
    root = ET.fromstring(outputs["alarms.xml"])
    assert {suite.get("failures") for suite in root} == {"2"}
    assert len(root.findall(".//testcase")) == len(found.verdicts)


def test_annotations_are_few_however_many_alarms_there_are() -> None:
    row = make_row(kernel="fm3")
    many = tuple(Verdict(kind, row, "") for kind in Kind for _ in range(300))
    found = Comparison("a", "b", many, tuple("note" for _ in range(50)), Settings().thresholds)
    lines = machine_readable.github(found).splitlines()
    assert len(lines) <= 10
    assert "REGRESSION%3A 300 cases" in lines[0] and "and 295 more" in lines[0]


def test_json_has_no_nan_and_says_what_was_compared() -> None:
    found = json.loads(machine_readable.as_json(everything()), parse_constant=lambda name: pytest.fail(name))
    assert (found["candidate"], found["baseline"], found["exit_code"]) == ("results/new", "abc1234", 1)
    regression = next(v for v in found["verdicts"] if v["verdict"] == "REGRESSION" and not v["acknowledged"])
    assert regression["numbers"]["ratio"] == pytest.approx(0.95, abs=0.01)
    assert regression["command"].startswith("python -m harness mask=causal")


def test_a_long_list_is_cut_and_counted() -> None:
    row = make_row(kernel="fm3")
    found = Comparison("a", "b", tuple(Verdict(Kind.LOST, row, "") for _ in range(100)), (), Settings().thresholds)
    assert text.terminal(found).count("\n  LOST") == 40 and "and 60 LOST" in text.terminal(found)
    assert text.terminal(found, every=True).count("\n  LOST") == 100
    assert text.markdown(found).count("| LOST") == 40


if __name__ == "__main__":
    for name, make in OUTPUTS.items():
        (GOLDEN / name).write_text(make(everything()))
