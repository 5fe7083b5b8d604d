"""The command line: exit codes, what is said where and how often, and Hydra's loop over jobs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from row_factory import make_row, write_rows

from harness import __main__ as cli
from harness import runner
from harness.cases import Group
from harness.rows import read_rows
from harness.runner import RunOptions

ROOT = Path(__file__).resolve().parents[2]
Call = tuple[list[Group], RunOptions]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    return tmp_path


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Call]:
    """What the runner is asked for; nothing is measured."""
    seen: list[Call] = []
    replace_runner(monkeypatch, lambda groups, options: seen.append((groups, options)) or 0)
    return seen


def replace_runner(monkeypatch: pytest.MonkeyPatch, run: Callable[[list[Group], RunOptions], Any]) -> None:
    monkeypatch.setattr(runner, "run", run)


def harness(*words: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """The real command in a process of its own."""
    variables = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | environment
    command = [sys.executable, "-m", "harness", *words]
    return subprocess.run(command, cwd=cwd, env=variables, capture_output=True, text=True, timeout=240)


# -- the real command ---------------------------------------------------------------------------------------------------


def test_one_measurement_through_the_real_command(tmp_path: Path) -> None:
    words = ["device=cpu", "mask=document", "seqlen=128", "kernel=reference", "passes=[forward]", "timing.rounds=1"]
    done = harness(*words, "results_dir=out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (row,) = read_rows(tmp_path / "out")
    assert (row["status"], row["mask"], row["mask_variant"], row["kernel"]) == ("ok", "document", "a", "reference")
    assert row["overrides"] == [*words, "results_dir=out"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"], "no folder but the one asked for"


def test_a_wrong_word_through_the_real_command(tmp_path: Path) -> None:
    done = harness("mask=docment", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("docment") == 1
    assert len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


# -- showing ------------------------------------------------------------------------------------------------------------


def test_cfg_job_prints_what_was_composed(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--cfg", "job", "cp_degree=16", "mask=document", 'mask.lengths="é=1.csv"', "device=cpu"]) == 0
    printed = capsys.readouterr()
    shown = OmegaConf.create(printed.out)
    assert (shown.cp_degree, shown.mask.family, shown.mask.lengths) == (16, "document", "é=1.csv")
    assert "hydra" not in shown
    assert "hardware=cpu" in printed.err
    assert "dtype=float32" in printed.err
    assert list(here.iterdir()) == []


def test_help_names_the_groups_and_examples(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert "python -m harness mask=document seqlen=4096" in shown
    assert "sweep: cp_scaling, none, reproduce, single_gpu, smoke" in shown
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("words", [["--hydra-help"], ["--info", "searchpath"], ["--version"]])
def test_hydras_own_pages_are_reachable(words: list[str], here: Path) -> None:
    assert cli.main(words) == 0
    assert list(here.iterdir()) == []


# -- refusing -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["mask=docment"], "did you mean 'document'"),
        (["--multirun", "mask=causal,docment"], "did you mean 'document'"),
        (["--multirun", "--dry-run", "mask=causal,document,causal"], "mask names causal more than once"),
        (["--multirun", "mask=causal,document", "mask.variant=b"], "does not apply to mask=causal"),
        (["--cfg", "job", "mask=docment"], "did you mean 'document'"),
        (["--help", "sedlen=3"], "did you mean 'seqlen'"),
        (["seqlen=ten"], "an integer"),
        (["mask=document", "seqlen=10"], "at least 64"),
        (["mask=document", "mask.lengths=no_such.csv"], "no_such.csv"),
        (["device=cpu", "hardware=h200"], "contradict"),
        (["cp_degree=16", "source=measured", "hardware=h200_8"], "runs on a GPU and torch sees none here"),
        (["cp_degree=12"], "cp_degree=12: h200_8 holds 1 to 8 ranks and multiples of 8 up to 64"),
        (["cp_degree=16", "hardware=h200_node", "--dry-run"], "cp_degree=16: h200_node holds 1 to 8 ranks"),
        (["cp_degree=16", "head_dim=96"], "no rates of fm3 forward D=96"),
        (["cp_degree=16", "dtype=fp32"], "dtype=float32: rates were fitted for 16-bit elements"),
        (["cp_degree=16", "deterministic=true"], "no rates of the deterministic backward pass"),
        (["cp_degree=16", "kernel=flex"], "what is simulated is fm3"),
        (["cp_degree=16", "strategy=ulysses"], "strategy=ulysses: there is no model of it; allowed: fm3, "),
        (["cp_degree=16", "exchange=gloo"], "exchange=gloo: there is no model of it; allowed: nccl, symmetric"),
        (
            ["cp_degree=16", "strategy=ring", "exchange=symmetric"],
            "strategy=ring passes its shards on by nccl; with",
        ),
        (["cp_degree=16", "hardware.cluster=h200_9"], "did you mean 'h200_8'"),
        (["cp_degree=16", "hardware.cluster=no_such.yaml"], "hardware.cluster=no_such.yaml"),
        (["cp_degree=4096", "device=cpu", "mask=full"], "ranks at most; allowed: 1 to "),
        (["cp_degree=2", "device=cpu", "strategy=mgai"], "did you mean 'magi'"),
        (["cp_degree=2", "device=cpu", "exchange=nccl"], "exchange=nccl does not exist with device=cpu; allowed: auto, gloo"),
        (["cp_degree=2", "device=cpu", "kernel.names=[dense]"], "kernel.names=dense: ranks that share a sequence run one of"),
        (["source=simulated"], "one GPU is measured"),
        (["device=cpu", "mask=full", "seqlen=131072"], "timing.timeout_s"),
        (["--config-name", "other"], "--config-name=other"),
        (["--config-dir", "x"], "--config-dir=x"),
        (["--config-path", "x"], "--config-path=x"),
        (["--experimental-rerun", "x.pickle"], "--experimental-rerun=x.pickle"),
        (["--multirun", "--cfg", "job"], "exclude each other"),
        (["--resolve"], "--resolve belongs to --cfg"),
    ],
)
def test_a_wrong_question_exits_2_and_says_so_once(
    words: list[str], said: str, here: Path, calls: list[Call], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert said in printed.err
    assert printed.err.startswith("error: ")
    assert len(printed.err.splitlines()) == 1
    assert calls == []
    assert list(here.iterdir()) == []


def test_an_unknown_flag_exits_2(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--frobnicate"]) == 2
    assert "--frobnicate" in capsys.readouterr().err


def test_a_package_that_is_not_there_exits_2(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--cfg", "job", "--package", "nothing"]) == 2
    assert "nothing" in capsys.readouterr().err


def test_the_full_error_on_request(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    assert cli.main(["seqlen=ten"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_a_results_folder_that_cannot_be_made(here: Path, calls: list[Call], capsys: pytest.CaptureFixture[str]) -> None:
    (here / "taken").write_text("a file")
    assert cli.main(["results_dir=taken/below"]) == 2
    assert "results_dir=taken/below cannot be made" in capsys.readouterr().err
    assert calls == []


# -- running ------------------------------------------------------------------------------------------------------------


def test_the_runner_gets_the_plan_and_the_options(here: Path, calls: list[Call]) -> None:
    words = ["device=cpu", "mask=document", "seqlen=4096", "mask.variant=b", 'results_dir="my=ü"']
    assert cli.main(words) == 0
    ((groups, options),) = calls
    assert [(g.problem.mask.family, g.problem.mask.variant, g.problem.seqlen) for g in groups] == [("document", "b", 4096)]
    assert (options.results_dir, options.dry_run, options.overrides) == (Path("my=ü"), False, tuple(words))
    assert options.config_hash
    assert options.peak_tflops is None
    assert [path.name for path in here.iterdir()] == ["my=ü"]


def test_examples_of_the_documentation(here: Path, calls: list[Call]) -> None:
    (here / "my.csv").write_text("length\n" + "100\n" * 50)
    assert cli.main(["mask=document", "mask.lengths=my.csv", "device=cpu"]) == 0
    assert cli.main(["sweep=smoke", "device=cpu"]) == 0
    assert cli.main(["sweep=reproduce", "device=cpu"]) == 0
    assert [len(groups) for groups, _ in calls] == [1, 6, 24]
    assert calls[0][0][0].problem.mask.variant == "my.csv"
    assert {g.problem.seqlen for g in calls[1][0]} == {512}


def test_a_plan_leaves_no_trace(here: Path, calls: list[Call]) -> None:
    assert cli.main(["--dry-run", "device=cpu"]) == 0
    assert cli.main(["--multirun", "--dry-run", "seqlen=128,256", "device=cpu"]) == 0
    assert [options.dry_run for _, options in calls] == [True] * 3
    assert list(here.iterdir()) == []


def test_the_exit_code_of_the_runner_is_the_exit_code(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for code in (0, 1, 4, 130):
        replace_runner(monkeypatch, lambda groups, options, code=code: code)
        assert cli.main(["device=cpu", "seqlen=128"]) == code


def test_stored_rows_that_contradict_each_other_exit_4(
    here: Path, calls: list[Call], capsys: pytest.CaptureFixture[str]
) -> None:
    write_rows(here / "out", [make_row(samples_ms=[1.0]), make_row(samples_ms=[2.0])])
    assert cli.main(["mask=full", "device=cpu", "results_dir=out"]) == 4
    shown = capsys.readouterr().err
    assert "out/rows/run-1.jsonl:1 and out/rows/run-1.jsonl:2 are both round 0" in shown and "Traceback" not in shown


def test_multirun_appends_every_job_to_one_store(here: Path, calls: list[Call], capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--multirun", "mask=causal,document", "seqlen=128", "device=cpu", "results_dir=one"]
    assert cli.main(words) == 0
    assert [groups[0].problem.mask.family for groups, _ in calls] == ["causal", "document"]
    assert {options.results_dir for _, options in calls} == {Path("one")}
    assert [options.overrides[0] for _, options in calls] == ["mask=causal", "mask=document"]
    assert len({options.config_hash for _, options in calls}) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert [line[:10] for line in printed.err.splitlines()] == ["job 1 of 2", "job 2 of 2"]
    assert [path.name for path in here.iterdir()] == ["one"]


def test_names_come_through_multirun_as_typed(here: Path, calls: list[Call]) -> None:
    names = ["a=b.csv", "c,d#[1].csv", "längen |%*@.csv"]
    for name in names:
        (here / name).write_text("length\n" + "100\n" * 5)
    lengths = ",".join(f'"{name}"' for name in names)
    assert cli.main(["--multirun", "mask=document", f"mask.lengths={lengths}", "seqlen=256", "device=cpu"]) == 0
    assert [groups[0].problem.mask.variant for groups, _ in calls] == names


def test_a_failing_job_does_not_stop_the_later_ones(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[str] = []

    def run(groups: list[Group], options: RunOptions) -> int:
        seen.append(groups[0].problem.mask.family)
        outcomes = {"causal": 1, "full": RuntimeError("broken"), "document": OSError(28, "No space left"), "qk_sparse": 0}
        outcome = outcomes[seen[-1]]
        if isinstance(outcome, Exception):
            raise outcome
        return int(str(outcome))

    replace_runner(monkeypatch, run)
    words = ["--multirun", "mask=causal,full,document,qk_sparse", "seqlen=128", "device=cpu"]
    assert cli.main(words) == 1
    assert seen == ["causal", "full", "document", "qk_sparse"]
    printed = capsys.readouterr().err
    assert printed.count("RuntimeError: broken") == 1
    assert "No space left" in printed


def test_an_interrupt_ends_the_jobs_that_are_left(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    replace_runner(monkeypatch, lambda groups, options: seen.append(1) or 130)
    assert cli.main(["--multirun", "seqlen=128,256", "device=cpu"]) == 130
    assert len(seen) == 1
