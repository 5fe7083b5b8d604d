"""The doctor: a line for every competitor, facts of the machine, and an exit code that is about the reference only."""

from __future__ import annotations

import io

import pytest

import fm3_kernel
from harness import doctor
from harness.backends import BACKENDS, Availability
from harness.doctor import Finding
from harness.machine import Machine, this_machine

MACHINE = Machine(gpu=None, gpu_memory=None, cpu="Some CPU", cores=3, memory=4 * 2**30, memory_available=2**30)
ROWS = [
    Finding("reference", "Reference", True, "2.0", "", ""),
    Finding("flex_flash", "FLASH [bold]", False, "", "not installed", "pip install something"),
]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_every_competitor_is_asked() -> None:
    found = doctor.findings("cpu")
    assert [row.name for row in found] == list(BACKENDS)
    by_name = {row.name: row for row in found}
    assert by_name["reference"].ok
    assert by_name["reference"].version
    assert not by_name["sdpa_cudnn"].ok
    assert by_name["sdpa_cudnn"].reason


def test_a_probe_that_breaks_is_a_reason_and_hides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: object, device: str) -> Availability:
        raise ImportError("undefined symbol")

    monkeypatch.setattr(type(BACKENDS["dense"]), "probe", broken)
    found = {row.name: row for row in doctor.findings("cpu")}
    assert len(found) == len(BACKENDS)
    assert "undefined symbol" in found["dense"].reason
    assert found["reference"].ok


def test_plain_lines_when_not_a_terminal() -> None:
    stream = io.StringIO()
    doctor.show(MACHINE, ROWS, None, stream)
    text = stream.getvalue()
    assert "\x1b" not in text
    assert "Some CPU, 3 cores" in text
    assert "4.0 GiB, 1.0 GiB available" in text
    assert "not installed (to get it: pip install something)" in text
    assert max(map(len, text.splitlines())) <= 100
    for fact in ("Python", "torch", "triton", "C++ compiler", "nvcc"):
        assert fact in text


def test_a_table_on_a_terminal_says_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    stream = Terminal()
    doctor.show(MACHINE, ROWS, "it broke", stream)
    text = stream.getvalue()
    for word in ("Some CPU", "flex_flash", "FLASH [bold]", "not installed", "pip install something", "it broke"):
        assert word in text


def test_the_exit_code_is_about_the_reference(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.main([]) == 0
    assert "flex_flash" in capsys.readouterr().out

    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("no such operator")

    monkeypatch.setattr(fm3_kernel, "flashmask_attention", fails)
    assert doctor.main([]) == 1
    shown = capsys.readouterr().out
    assert "reference cannot run: RuntimeError: no such operator" in shown
    assert "flex_flash" in shown


def test_a_compiler_is_found_or_said_to_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "none found (no_such_compiler)" in doctor._compiler(["no_such_compiler"])
    assert doctor._compiler(["no_such_compiler", "sh_that_is_not_there", "python3"]).startswith("python3: Python 3")


@pytest.mark.gpu
def test_a_gpu_is_described() -> None:
    lines = dict(doctor.facts(this_machine()))
    assert "compute capability" in lines["GPU"]
    assert lines["device"] == "cuda"


def test_a_word_that_it_does_not_know_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        doctor.main(["--cpu"])
    assert left.value.code == 2
    assert "unrecognized arguments: --cpu" in capsys.readouterr().err


def test_the_reference_is_tried_and_not_what_the_device_would_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU's kernel takes neither fp32 nor head dim 16: on an H200 the check once failed on its own inputs."""
    asked: list[object] = []
    own = fm3_kernel.flashmask_attention

    def noted(*args: object, implementation: str = "auto", **more: object) -> object:
        asked.append(implementation)
        return own(*args, implementation=implementation, **more)  # type: ignore[call-overload]

    monkeypatch.setattr(fm3_kernel, "flashmask_attention", noted)
    assert doctor.reference_fault("cpu") is None
    assert asked == ["reference"]
