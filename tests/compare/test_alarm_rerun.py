"""Two builds by turns: the order, the rows, the verdict, and what happens where it cannot be done."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from alarm_rows import case_rows
from fake_problem import group
from row_factory import write_rows

from harness.compare import rerun
from harness.compare.abba import LOG, Build, Step, TurnError, Turns, alternate, whose
from harness.compare.builds import KERNELS, MEASURING, tree_of
from harness.compare.reading import SideError, from_folder, recording
from harness.compare.settings import Settings
from harness.compare.verdict import Kind
from harness.machine import Machine
from harness.measure import SETUP
from harness.provenance import ROOT
from harness.rows import read_rows

FAKE_TURN = (sys.executable, str(ROOT / "tests" / "fake_turn.py"))
GPU = Machine(gpu="NVIDIA H200", gpu_memory=140 << 30, cpu="c", cores=8, memory=1 << 40, memory_available=1 << 40, gpus=1)


def build(tmp_path: Path, name: str, **environment: str) -> Build:
    return Build(name, ROOT, tmp_path / name, FAKE_TURN, {"PYTHONPATH": str(ROOT / "tests"), **environment})


def test_builds_take_turns_and_every_round_is_measured_once(tmp_path: Path) -> None:
    """Real processes, fake competitors: the second build pauses in every call."""
    pair = (build(tmp_path, "base"), build(tmp_path, "new", FAKE_PAUSE="0.4"))
    told: list[str] = []
    alternate(pair, [group(("good",), rounds=9)], rounds=3, told=told.append)
    steps = [(what, name) for _, what, name in (line.rsplit(": ", 2) for line in told)]
    check = "prepares and checks"
    assert steps[:2] == [(check, "base"), (check, "new")]
    rounds = ["round 1 of 3", "round 1 of 3", "round 2 of 3", "round 2 of 3", "round 3 of 3", "round 3 of 3"]
    assert steps[2:] == list(zip(rounds, ["base", "new", "new", "base", "base", "new"], strict=True))
    sides = [read_rows(one.results) for one in pair]
    for rows in sides:
        assert sorted((row["pass"], row["round"]) for row in rows) == [
            (p, n) for p in ("backward", "forward") for n in range(3)
        ]
        assert {row["status"] for row in rows} == {"ok"}
    forward = [min(ms for row in rows if row["pass"] == "forward" for ms in row["samples_ms"]) for rows in sides]
    assert forward[1] > forward[0] + 100


def test_only_one_has_the_machine(tmp_path: Path) -> None:
    """While one waits for its turn it does nothing: what it does next is told only after the other's step has ended."""
    turns = [Turns(build(tmp_path, name), [group(("good",), rounds=2)], None) for name in ("base", "new")]
    try:
        assert [one.asks() for one in turns] == [(0, SETUP), (0, SETUP)]
        turns[0].go()
        assert turns[0].asks() == (0, 0)
        turns[0].go()
        assert turns[0].asks() == (0, 1)
        assert len(read_rows(tmp_path / "base")) == 2 and not turns[1].build.has_rows
    finally:
        for one in turns:
            one.end()
    assert [row["status"] for row in read_rows(tmp_path / "base")] == ["ok", "ok"]


@pytest.mark.parametrize(
    ("asked", "turn"),
    [
        ([(0, SETUP), (0, SETUP)], 0),
        ([(0, 0), (0, SETUP)], 1),  # who is behind
        ([(1, SETUP), (0, 7)], 1),
        ([(0, 4), (0, 4)], 0),
        ([(0, 5), (0, 5)], 1),
        ([None, (0, 4)], 1),
        ([(0, 5), None], 0),
        ([None, None], None),
    ],
)
def test_whose_turn_it_is(asked: list[Step | None], turn: int | None) -> None:
    assert whose(asked) == turn


def test_the_order_drifts_cancel_in() -> None:
    """A machine that gets slower with every turn favours neither build."""
    asked: list[Step | None] = [(0, 0), (0, 0)]
    turns = ""
    while (number := whose(asked)) is not None:
        turns += "AB"[number]
        _, step = asked[number] or (0, 0)
        asked[number] = (0, step + 1) if step < 3 else None
    assert turns == "ABBAABBA"
    places = {name: sum(i for i, turn in enumerate(turns) if turn == name) for name in "AB"}
    assert places["A"] == places["B"]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("raise SystemExit(3)", r"new gave up \(exit code 3\); its rows and turns.log: .*new"),
        ("import no_such_room", r"new gave up \(exit code 1\): ModuleNotFoundError: No module named 'no_such_room'; its"),
        (
            "import os, sys; os.write(int(sys.argv[1]), b'[0, -1]\\n'); sys.stdin.readline(); 1 / 0",
            r"division by zero; its rows",
        ),
        ("import os; os.kill(os.getpid(), 9)", r"new gave up \(exit code -9\)"),
    ],
)
def test_a_build_that_gives_up_ends_it_and_is_named(tmp_path: Path, code: str, message: str) -> None:
    gone = replace(build(tmp_path, "new"), command=(sys.executable, "-c", code))
    once = "import os, sys; os.write(int(sys.argv[1]), b'[0, -1]\\n'); sys.stdin.readline()"
    other = replace(build(tmp_path, "base"), command=(sys.executable, "-c", once))
    with pytest.raises(TurnError, match=message):
        alternate((other, gone), [group(("good",))], rounds=3)


def test_a_case_that_fails_is_recorded_and_the_others_go_on(tmp_path: Path) -> None:
    pair = (build(tmp_path, "base"), build(tmp_path, "new"))
    told: list[str] = []
    alternate(pair, [group(("wrong",)), group(("good",), seqlen=256)], rounds=1, told=told.append)
    for one in pair:
        assert {row["kernel"]: row["status"] for row in read_rows(one.results)} == {"wrong": "incorrect", "good": "ok"}
    assert sum("prepares" in line for line in told) == 4 and sum("round 1" in line for line in told) == 2


def test_an_interrupted_one_leaves_its_rounds_and_no_process(tmp_path: Path) -> None:
    pair = (build(tmp_path, "base"), build(tmp_path, "new"))
    started: list[Turns] = []

    def told(line: str) -> None:
        if "round 2 of 9" in line:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        first = Turns.__init__

        def start(self: Turns, *arguments: Any) -> None:
            first(self, *arguments)
            started.append(self)

        patch.setattr(Turns, "__init__", start)
        with pytest.raises(KeyboardInterrupt):
            alternate(pair, [group(("good",))], rounds=9, told=told)
    assert [one._process.poll() is not None for one in started] == [True, True]
    for one in pair:
        assert [(row["round"], row["status"]) for row in read_rows(one.results)] == [(0, "ok")] * 2


# -- the verdict -----------------------------------------------------------------------------------------------------


def judged(slower: float, noise: float = 0.002, rounds: int = 12) -> dict[str, Any]:
    """Two masks, the document one slower; another clock from round to round, the same for both."""
    sides = []
    for name, seed, share in (("new", 1, slower), ("base", 2, 0.0)):
        rows = []
        for mask in ("document", "causal"):
            how = {"slower": share if mask == "document" else 0.0, "seed": seed, "noise": noise, "rounds": rounds}
            rows += case_rows(mask, **how)
        for row in rows:
            drift = 1 + 0.1 * (row["round"] % 5)
            row["samples_ms"] = [ms * drift for ms in row["samples_ms"]]
        sides.append(recording(name, rows))
    found = rerun.judge(*sides, Settings())
    return {"exit": found.exit_code, **{v.row["mask"]: v for v in found.verdicts}}


def test_a_slower_build_is_confirmed_without_an_anchor() -> None:
    found = judged(0.03)
    assert (found["document"].kind, found["document"].certain) == (Kind.REGRESSION, True)
    assert found["document"].numbers.ratio == pytest.approx(0.97, abs=0.004)
    assert (found["causal"].kind, found["exit"]) == (Kind.SAME, 1)


def test_builds_that_are_equal_and_one_that_is_faster() -> None:
    same, faster = judged(0.0), judged(-0.05)
    assert (same["document"].kind, same["exit"]) == (Kind.SAME, 0)
    assert (faster["document"].kind, faster["exit"]) == (Kind.IMPROVED, 0)


def test_rounds_too_few_or_too_noisy_confirm_nothing() -> None:
    for found in (judged(0.03, rounds=4), judged(0.0, noise=0.08)):
        assert (found["document"].kind, found["exit"]) == (Kind.AMBIGUOUS, 3)


def test_a_build_that_fails_is_lost() -> None:
    base = recording("base", case_rows("document"))
    crashed = [replace_status(row) for row in case_rows("document", rounds=1)]
    assert rerun.judge(recording("new", crashed), base, Settings()).counts == {Kind.LOST: 1}


def test_a_case_that_has_no_figure_on_either_side_is_told() -> None:
    """Both out of memory, for both are there at once; or a build that never came to it."""
    failed = [replace_status(row) for row in case_rows("document", rounds=1)]
    causal = case_rows("causal", noise=0.001)
    for ours, theirs, reason in (
        (failed, failed, "neither has a figure: crash: gone"),
        ([], case_rows("document"), "no round of"),
    ):
        found = rerun.judge(recording("new", [*causal, *ours]), recording("base", [*causal, *theirs]), Settings())
        one = next(verdict for verdict in found.verdicts if verdict.row["mask"] == "document")
        assert one.kind is Kind.AMBIGUOUS and reason in one.reason
        assert found.exit_code == 3


def replace_status(row: dict[str, Any]) -> dict[str, Any]:
    gone = dict.fromkeys(("samples_ms", "setup_ms", "compile_ms", "host_us", "flops", "flops_tile128", "errors"))
    return row | gone | {"status": "crash", "reason": "gone"}


# -- the command -----------------------------------------------------------------------------------------------------


def test_without_a_gpu_it_says_that_it_cannot(capsys: pytest.CaptureFixture[str]) -> None:
    none = replace(GPU, gpu=None, gpus=0)
    assert rerun.main(["--against", "HEAD", "mask=document"], none) == 3
    assert "torch sees no GPU here" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--against", "HEAD"], "nothing to measure"),
        (["--against", "HEAD", "mask=dokument", "seqlen=1024"], "did you mean 'document'"),
        (["--against", "no-such-ref", "mask=document", "seqlen=1024", "batch=1"], "neither a folder nor a commit"),
        (["--against", "HEAD", "--alarms", "nowhere.json"], "nowhere.json is not what"),
    ],
)
def test_wrong_questions_are_2(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert rerun.main(words, GPU) == 2
    assert message in capsys.readouterr().err


def test_rounds_have_a_range(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        rerun.main(["--against", "HEAD", "--rounds", "1", "mask=document"], GPU)
    assert "'1'; allowed: 2 to 100 rounds" in capsys.readouterr().err


@pytest.mark.parametrize(("interrupted", "code"), [(False, 1), (True, 130)])
def test_the_whole_command_with_turns_that_are_recorded(
    interrupted: bool, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All but the turns themselves: they store rows that say the candidate is 4% slower."""

    def measured(builds: tuple[Build, Build], groups: list[Any], rounds: int, peak: float, told: Any) -> None:
        assert (peak, rounds) == (989, 10)
        assert [(one.problem.mask.family, one.kernels) for one in groups] == [("document", ("fm3",))]
        for one, slower in zip(builds, (0.0, 0.04), strict=True):
            write_rows(one.results, case_rows("document", rounds=rounds, slower=slower, noise=0.001))
        if interrupted:
            raise KeyboardInterrupt

    monkeypatch.setattr(rerun, "alternate", measured)
    monkeypatch.setattr(rerun, "PLACE", tmp_path)
    assert rerun.main(["--against", "HEAD", "mask=document", "seqlen=1024", "batch=1", "--rounds", "10"], GPU) == code
    shown = capsys.readouterr()
    assert "REGRESSION, certain" in shown.out and "10/10" in shown.out
    assert ("interrupted; the rounds so far are in" in shown.err) == interrupted


def test_a_case_that_is_asked_for_twice_is_measured_once() -> None:
    words = ["mask=document", "seqlen=1024", "batch=1"]
    asked = [[*words, "passes=[forward]", "timing.rounds=5"], [*words, "passes=[backward,forward]", "timing.rounds=9"]]
    (one,), _ = rerun.groups_of(asked, GPU)
    assert sorted(one.passes) == ["backward", "forward"]


def test_a_worker_that_dies_while_it_waits_is_not_to_blame(tmp_path: Path) -> None:
    """Nothing ran: it is started again, and goes on where it was."""
    turns = Turns(build(tmp_path, "base"), [group(("good",), rounds=2)], None)
    try:
        assert turns.asks() == (0, SETUP)
        turns.go()
        assert turns.asks() == (0, 0)
        children = subprocess.run(["pgrep", "-P", str(turns._process.pid)], capture_output=True, text=True, check=True)
        (worker,) = children.stdout.split()
        os.kill(int(worker), signal.SIGKILL)
        for step in ((0, SETUP), (0, 0), (0, 1), None):
            turns.go()
            assert turns.asks() == step
    finally:
        turns.end()
    rows = sorted((row["status"], row["pass"], row["round"]) for row in read_rows(tmp_path / "base"))
    assert rows == [("ok", pass_, number) for pass_ in ("backward", "forward") for number in (0, 1)]


def test_interrupted_before_any_round_there_is_nothing_to_judge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measured(*arguments: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(rerun, "alternate", measured)
    monkeypatch.setattr(rerun, "PLACE", tmp_path)
    assert rerun.main(["--against", "HEAD", "mask=document", "seqlen=1024", "batch=1"], GPU) == 130
    assert capsys.readouterr().out == ""


def test_words_come_from_the_alarms_that_need_a_rerun(tmp_path: Path) -> None:
    def entry(verdict: str, kernel: str, words: str) -> dict[str, Any]:
        return {"verdict": verdict, "case": {"kernel": kernel}, "command": f"python -m harness {words} results_dir=x"}

    path = tmp_path / "alarms.json"
    some = [
        entry("REGRESSION", "fm3", "mask=document 'kernel.names=[fm3]'"),
        entry("REGRESSION", "flex", "mask=full"),
        entry("SAME", "fm3", "mask=causal"),
        entry("OTHER_MACHINE", "fm3", "mask=document 'kernel.names=[fm3]'"),
    ]
    path.write_text(json.dumps({"verdicts": some}))
    assert rerun.words_of(path) == [["mask=document", "kernel.names=[fm3]"]]
    path.write_text(json.dumps({"verdicts": some[1:3]}))
    with pytest.raises(SideError, match="no case of fm3 that needs a rerun"):
        rerun.words_of(path)
    path.write_text("[]")
    with pytest.raises(SideError, match="is not what"):
        rerun.words_of(path)


# -- the other build -------------------------------------------------------------------------------------------------


def test_kernels_come_from_the_commit_and_the_harness_from_here(tmp_path: Path) -> None:
    root = tmp_path / "root"
    for room in (*KERNELS, *MEASURING):
        (root / room).mkdir(parents=True)
        (root / room / "code.py").write_text("old")
    subprocess.run(["git", "init", "-q", root], check=True)
    who = ["-c", "user.name=test", "-c", "user.email=test@example.com"]
    subprocess.run(["git", "-C", root, "add", "-A"], check=True)
    subprocess.run(["git", "-C", root, *who, "commit", "-qm", "old"], check=True)
    for room in (*KERNELS, *MEASURING):
        (root / room / "code.py").write_text("new")
    for _ in range(2):  # the second time over the first
        place, name = tree_of("HEAD", tmp_path / "trees", root)
        assert {room: (place / room / "code.py").read_text() for room in KERNELS} == dict.fromkeys(KERNELS, "old")
        assert {room: (place / room / "code.py").read_text() for room in MEASURING} == dict.fromkeys(MEASURING, "new")
        sha = json.loads((place / "build" / "provenance.json").read_text())["git_sha"]
        assert (sha[:10], sha[:12]) == (name, place.name)
        (place / "build" / "kernels").mkdir(exist_ok=True)
    assert (place / "build" / "kernels").is_dir()


def test_kernels_come_from_a_folder_that_is_no_checkout(tmp_path: Path) -> None:
    """Where there is no git at all; a folder with other code is another build."""
    root, other = tmp_path / "root", tmp_path / "tried"
    for room in (*KERNELS, *MEASURING):
        (root / room).mkdir(parents=True)
        (root / room / "code.py").write_text("new")
    for room in KERNELS:
        (other / room).mkdir(parents=True)
        (other / room / "code.py").write_text("old")
    place, name = tree_of(str(other), tmp_path / "trees", root)
    assert [(place / room / "code.py").read_text() for room in ("csrc", "harness")] == ["old", "new"]
    assert name == f"tried ({place.name[:10]})"
    assert json.loads((place / "build" / "provenance.json").read_text())["git_sha"] is None
    (other / "csrc" / "code.py").write_text("older")
    assert tree_of(str(other), tmp_path / "trees", root)[0] != place
    (other / "masks" / "code.py").unlink()
    (other / "masks").rmdir()
    with pytest.raises(SideError, match="has no folder masks; allowed: a checkout, or a git ref"):
        tree_of(str(other), tmp_path / "trees", root)


def test_a_turn_runs_the_code_of_its_tree(tmp_path: Path) -> None:
    """The commit's kernels beside this harness: its own process imports both from the tree."""
    place, _ = tree_of("HEAD", tmp_path)
    code = "import fm3_kernel, harness, masks; print(*(m.__file__ for m in (fm3_kernel, harness, masks)))"
    seen = Turns(Build("base", place, tmp_path / "rows", (sys.executable, "-c", code)), [group(("good",))], None)
    assert seen.asks() is None
    seen.end()
    files = (tmp_path / "rows" / LOG).read_text().split()
    assert len(files) == 3 and all(name.startswith(str(place)) for name in files)


def test_rows_of_both_builds_are_read_from_their_folders(tmp_path: Path) -> None:
    with pytest.raises(SideError, match="no folder"):
        from_folder(tmp_path / "nothing")
