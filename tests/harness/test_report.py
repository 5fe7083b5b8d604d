"""The report: what it says, that it is one inert file, and that the commands in it mean the recorded cases."""

from __future__ import annotations

import json
import re
import shlex
import time
from html.parser import HTMLParser
from pathlib import Path

import pytest
from row_factory import make_rounds, make_row, write_rows

from harness.provenance import ROOT
from harness.report.__main__ import build, main
from harness.report.cases import strip
from harness.report.commands import case_command, run_command
from harness.report.html import Markup, element, esc
from harness.report.where import load_environments
from harness.rows import Row
from plots.cells import cells_of

NASTY = "<script>alert('x')</script><img src=x onerror=alert(1)>\" onload=\"alert(2) & --> \x1b[31m"


class Reader(HTMLParser):
    """Tags, their attributes and ids of a page; checks that what is opened is closed."""

    VOID = ("meta", "br", "path", "rect", "use", "image")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str | None]] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open, f"</{tag}> closes nothing"
            assert self.open.pop() == tag


def rows() -> list[Row]:
    some: list[Row] = []
    for seqlen, scale in ((1024, 1.0), (4096, 16.0)):
        for mask, share in (("full", 1.0), ("document", 0.25)):
            common = {"mask": mask, "seqlen": seqlen, "density": share, "tile_density": share, "rounds": 5}
            some += make_rounds(scale * (0.1 + share), kernel="reference", **common)
            some += make_rounds(scale, kernel="dense", noise=1, **common)
        some.append(make_row(kernel="flex", mask="document", seqlen=seqlen, status="timeout", reason="no answer after 600 s"))
    return some


@pytest.fixture(scope="module")
def text() -> str:
    return build(cells_of(rows()), {"abcdef0123456789": {"torch": "2.99.0", "cuda": None, "variables": {"A": "1"}}})


def test_it_is_one_inert_well_formed_file(text: str) -> None:
    page = Reader(text)
    assert page.open == []
    assert not {"script", "link", "iframe", "object", "embed", "base", "form"} & set(page.tags)
    assert not [name for _, name, _ in page.attributes if name.startswith("on")]
    for _, name, value in page.attributes:
        if name in ("href", "src", "xlink:href"):
            assert value is not None
            assert value.startswith(("#", "data:image/png"))
    assert not re.search(r"url\((?!#)", text)
    assert ("meta", "name", "viewport") in page.attributes
    assert "prefers-color-scheme: dark" in text
    ids = [value for _, name, value in page.attributes if name == "id"]
    assert len(ids) == len(set(ids))


def test_it_says_who_wins_by_how_much_and_how_sure(text: str) -> None:
    words = re.sub(r"<[^>]+>", " ", text)
    assert "Forward, fastest: " in words
    assert "dense SDPA at 2 of 4 (surely at 2)" in words
    assert "reference at 2 of 4 (surely at 2)" in words
    assert re.search(r"Reference over dense: 1\.6\d. on average over 4 places", words)
    assert "2.8" in words  # 1 / 0.35, on document
    assert "Without figures: 2 timeout" in words
    assert "no answer after 600 s" in words
    assert "not measured" in words  # flex on full was never asked
    assert "2.99.0" in words


def test_every_figure_and_case_is_there(text: str) -> None:
    assert text.count("<figure") == 5  # against length, speed-up, bars at two lengths, the masks
    assert text.count('class="strip"') == 8
    assert text.count("mask=document") == 6
    assert "MEASURED" in text
    assert "SIMULATED" not in text


def test_equal_rows_give_equal_bytes() -> None:
    few = cells_of(rows()[:6])
    assert build(few, {}) == build(cells_of(list(reversed(rows()[:6]))), {})


def test_strings_from_rows_are_escaped_everywhere() -> None:
    nasty = dict.fromkeys(
        ("mask", "gpu", "kernel_version", "source_hash", "build_flags", "git_sha", "environment", "run_id"), NASTY
    )
    some = make_rounds(1.0, kernel=NASTY, variant=NASTY, overrides=[NASTY], rounds=2, **nasty)
    some += make_rounds(2.0, kernel="dense", variant=NASTY + "2", mask_digest="other", rounds=2, **nasty)
    some.append(make_row(kernel="flex", variant=NASTY, status="crash", reason=NASTY, mask_params={NASTY: 1}, **nasty))
    page = Reader(build(cells_of(some), {NASTY: {NASTY: NASTY, "variables": {NASTY: NASTY}}}))
    assert page.open == []
    assert "script" not in page.tags
    assert "img" not in page.tags
    assert not [name for _, name, _ in page.attributes if name.startswith("on")]


def test_escaping() -> None:
    assert esc("<b>&\"'\x00") == "&lt;b&gt;&amp;&quot;&#x27; "
    assert esc(Markup("<b>")) == "<b>"
    assert element("p", "<", Markup("<br>"), class_='"') == '<p class="&quot;">&lt;<br></p>'
    assert len(esc("x" * 1000, 10)) == 10


def test_strip_holds_every_sample_inside_its_box() -> None:
    (cell,) = cells_of([make_row(samples_ms=[1.0, 1.01, 0.99, 50.0, 0.001], round=i) for i in range(2)])
    spots = [float(spot) for spot in re.findall(r"M([\d.]+) 4v10", strip(cell, 0.05))]
    assert min(spots) == 4.0
    assert max(spots) == 136.0
    assert 70.0 in spots
    assert len(spots) == 5


def test_environment_records_are_found_by_plain_hash_only(tmp_path: Path) -> None:
    folder = tmp_path / "h200" / "environments"
    folder.mkdir(parents=True)
    (folder / "abcdef01.json").write_text('{"torch": "1"}')
    (folder / "abcdef02.json").write_text("[1]")
    (folder / "abcdef03.json").write_text("{broken")
    (tmp_path / "secret.json").write_text('{"secret": 1}')
    found = load_environments(tmp_path / "h200", ["abcdef01", "abcdef02", "abcdef03", "../../secret", "*", "abcdef04"])
    assert found.pop("abcdef01") == {"torch": "1"}
    assert set(found.values()) == {None}


def test_command_writes_the_file_and_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "nowhere")]) == 2
    assert main([str(tmp_path)]) == 2
    path = write_rows(tmp_path, make_rounds(1.0, rounds=2) + make_rounds(2.0, kernel="dense", rounds=2))
    assert main([str(tmp_path)]) == 0
    assert (tmp_path / "report.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert main([str(tmp_path), "--out", str(tmp_path / "report.html" / "x")]) == 2
    path.write_text("[]\n" + path.read_text())
    assert main([str(tmp_path)]) == 4
    assert "run-1.jsonl:1" in capsys.readouterr().err


def test_simulated_rows_are_stamped() -> None:
    page = build(cells_of(make_rounds(1.0, rounds=2, source="simulated", gpu="Model")), {})
    assert '<span class="chip stamp">SIMULATED</span>' in page
    assert '<span class="chip stamp">MEASURED</span>' not in page


def test_a_folder_of_failures_still_gives_a_report() -> None:
    page = build(cells_of([make_row(status="crash"), make_row(kernel="dense", status="oom")]), {})
    assert "crash for a test" in page
    assert "2 cases, 0 with figures, 2 without" in page


# -- commands --------------------------------------------------------------------------------------------------------


def test_the_command_of_a_run_is_quoted_for_the_shell() -> None:
    typed = ["mask=document", 'mask.lengths="my file.csv"', "$(reboot)"]
    assert shlex.split(run_command(make_row(overrides=typed))) == ["python", "-m", "harness", *typed]


def test_a_file_of_lengths_is_taken_over_as_typed() -> None:
    typed = ["mask=document", 'mask.lengths="a b.csv"', "mask.policy=greedy", "seqlen=64"]
    words = shlex.split(case_command(make_row(variant="a b.csv", overrides=typed)))
    assert 'mask.lengths="a b.csv"' in words
    assert "mask.policy=greedy" in words
    assert "seqlen=4096" in words
    assert "seqlen=64" not in words


@pytest.mark.parametrize(
    "fields",
    [
        {"mask": "document", "variant": "c"},
        {"mask": "causal"},
        {"mask": "document", "variant": "sampled", "seed": 3},
        {"mask": "document", "variant": "sampled_cut", "seqlen": 65536},
        {"mask": "sliding_window", "mask_params": {"window": 128}},
        {"mask": "causal", "kernel": "dense", "deterministic": True, "l2": "warm", "protocol": "burst", "pass_": "backward"},
    ],
)
def test_the_command_of_a_case_means_that_case(fields: dict[str, object]) -> None:
    """The words go through the real configuration and come out as the very same case."""
    compose = pytest.importorskip("harness.config.compose")
    from harness.cases import Case, MaskSpec, Problem
    from harness.config.resolve import resolve
    from harness.expand import expand
    from harness.machine import this_machine

    row = make_row(**{"device": "cpu", "dtype": "float32", "kernel": "reference", **fields})
    words = shlex.split(case_command(row))[3:]
    machine = this_machine()
    (group,) = expand(resolve(compose.load(words), machine.gpu), machine)
    assert group.kernels == (row["kernel"],) and row["pass"] in group.passes
    case = group.case(row["kernel"], row["pass"])
    spec = case.problem.mask
    assert (spec.family, spec.variant, json.dumps(spec.params)) == (
        row["mask"],
        row["mask_variant"],
        json.dumps(row["mask_params"]),
    )
    expected = Problem(
        MaskSpec(spec.family, spec.variant, spec.documents, spec.params),
        *(row[name] for name in ("seqlen", "batch", "heads", "kv_heads", "head_dim", "dtype", "seed")),
    )
    assert case == Case(expected, row["kernel"], row["pass"], "cpu", row["protocol"], row["l2"], row["deterministic"])


# -- the paper's claims and the history ------------------------------------------------------------------------------


def measured_at(commit: int, ms: float, **fields: object) -> list[Row]:
    some = make_rounds(ms, spread=0.003, noise=commit, run_id=f"run-{commit}", git_sha=f"{commit:010d}" + "f" * 30, **fields)
    return [row | {"time": f"2026-01-{commit + 1:02d}T00:{row['round']:02d}:00Z"} for row in some]


def test_claims_and_their_cases_are_there(tmp_path: Path) -> None:
    some = []
    for pass_ in ("forward", "backward"):
        some += make_rounds(1.0, kernel="fm3", gpu="NVIDIA H200", head_dim=128, pass_=pass_)
        some += make_rounds(1.2, kernel="flex", gpu="NVIDIA H200", head_dim=128, pass_=pass_, noise=1)
    write_rows(tmp_path, some)
    assert main([str(tmp_path)]) == 0
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    words = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page))
    assert "0 reproduced, 1 not reproduced, 8 not run here" in words
    assert "1 of 1 cases gain less than the paper" in words
    assert "forward and backward: over FlexAttention: what is behind it (1)" in words
    assert f"flex {some[-1]['case_id']}" in words
    sections = re.findall(r'<h2 id="(\w+)">', page)
    assert sections == ["short", "fastest", "claims", "figures", "cases", "without", "where"]


def test_steps_from_commit_to_commit_are_told(tmp_path: Path) -> None:
    some = [row for commit in range(10) for row in measured_at(commit, 1.0 if commit < 5 else 1.08, kernel="fm3")]
    write_rows(tmp_path, some)
    assert main([str(tmp_path)]) == 0
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert re.search(r"<li>FM3 on document: \+[78]\.\d% \(slower\) from 0000000005 on\.</li>", page)
    steady = [row for commit in range(10) for row in measured_at(commit, 1.0, kernel="fm3")]
    write_rows(tmp_path, steady)
    assert main([str(tmp_path)]) == 0
    assert "No steps were found" in (tmp_path / "report.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_report_of_the_committed_sweep_is_small_and_soon_there(tmp_path: Path) -> None:
    begin = time.process_time()
    assert main([str(ROOT / "results"), "--out", str(tmp_path / "report.html")]) == 0
    assert time.process_time() - begin < 30
    assert (tmp_path / "report.html").stat().st_size < 15 << 20
