"""``python -m harness.doctor``: what this machine is, which competitors can run on it, and what would help the others.

It measures nothing and changes nothing. Exit code 0, unless this project's own computation cannot run.
"""

from __future__ import annotations

import argparse
import platform
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from harness.backends.base import gib
from harness.columns import WIDTH
from harness.machine import Machine, this_machine
from harness.provenance import package_version


@dataclass(frozen=True)
class Finding:
    """One competitor: whether it runs, its version, why not, what to do about it."""

    name: str
    title: str
    ok: bool
    version: str
    reason: str
    install: str


def facts(machine: Machine) -> list[tuple[str, str]]:
    """The machine, line by line."""
    import torch

    lines = [("device", machine.device)]
    if machine.gpu is not None and machine.gpu_memory is not None:
        major, minor = torch.cuda.get_device_capability()
        count = torch.cuda.device_count()
        lines.append(("GPU", f"{count} x {machine.gpu}, {gib(machine.gpu_memory)}, compute capability {major}.{minor}"))
        lines.append(("driver", _driver()))
    else:
        lines.append(("GPU", "none that torch can use"))
    memory = "not known"
    if machine.memory is not None and machine.memory_available is not None:
        memory = f"{gib(machine.memory)}, {gib(machine.memory_available)} available"
    lines += [
        ("CPU", f"{machine.cpu}, {machine.cores} cores"),
        ("memory", memory),
        ("Python", platform.python_version()),
        ("torch", str(torch.__version__)),
        ("CUDA of torch", torch.version.cuda or "none"),
        ("cuDNN", str(torch.backends.cudnn.version() or "none")),
        ("triton", package_version("triton") or "not installed"),
        ("C++ compiler", _compiler(("c++", "g++", "clang++"))),
        ("nvcc", _compiler(("nvcc",))),
    ]
    return lines


def _driver() -> str:
    from harness.device import device_facts

    return device_facts("cuda").driver or "not known"


def _compiler(names: Sequence[str]) -> str:
    """Version line of the first of these programs that runs."""
    for name in names:
        path = shutil.which(name)
        if path is None:
            continue
        try:
            done = subprocess.run([path, "--version"], check=True, capture_output=True, text=True, timeout=30)
        except (OSError, subprocess.SubprocessError):
            continue
        lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
        release = next((line for line in lines if "release" in line), lines[0] if lines else name)
        return f"{name}: {release}"
    return f"none found ({', '.join(names)})"


def findings(device: str) -> list[Finding]:
    """Every competitor, asked. A probe that fails in an unforeseen way is a reason, not an end."""
    from harness.backends import BACKENDS

    found = []
    for name, backend in BACKENDS.items():
        try:
            answer = backend.probe(device)
        except Exception as error:  # a broken installation must not hide the other rows
            found.append(Finding(name, backend.title, False, "", f"its check failed: {type(error).__name__}: {error}", ""))
            continue
        row = Finding(name, backend.title, answer.ok, answer.version or "", answer.reason or "", answer.install or "")
        found.append(row)
    return found


def reference_fault(device: str) -> str | None:
    """Why this project's own computation does not run here, or None: a forward and a backward of 256 tokens, tried."""
    try:
        import torch

        from fm3_kernel import flashmask_attention
        from masks.families import build_mask

        mask = build_mask("causal", 256).to(device)
        q, k, v = (torch.ones(1, 256, 1, 16, device=device, requires_grad=True) for _ in range(3))
        out = flashmask_attention(q, k, v, mask, implementation="reference")
        out.sum().backward()
        good = bool(torch.isfinite(out).all()) and q.grad is not None and bool(torch.isfinite(q.grad).all())
    except Exception as error:  # whatever it is, it is the answer
        return f"{type(error).__name__}: {error}"
    return None if good else "its result is not finite"


def show(machine: Machine, rows: Iterable[Finding], fault: str | None, stream: TextIO) -> None:
    """Print it all: tables on a terminal, aligned lines elsewhere."""
    if stream.isatty():
        _show_tables(machine, rows, stream)
    else:
        told = [(f"{name:<14} ", value) for name, value in facts(machine)]
        found = [(f"{row.name:<12} {'yes' if row.ok else 'no':<4} ", _remark(row)) for row in rows]
        for start, text in [*told, ("", ""), *found]:
            print(_hanging(start, text), file=stream)
    if fault is not None:
        print(f"\nreference cannot run: {fault}", file=stream)


def _hanging(start: str, text: str) -> str:
    """A line and what does not fit below its text, in whole words: commands are there to be copied."""
    options: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}
    lines = textwrap.wrap(text, WIDTH, initial_indent=start, subsequent_indent=" " * len(start), **options)
    return "\n".join(lines) or start.rstrip()


def _remark(row: Finding) -> str:
    if row.ok:
        return row.version
    helps = f" (to get it: {row.install})" if row.install else ""
    return f"{row.reason or 'no reason given'}{helps}"


def _show_tables(machine: Machine, rows: Iterable[Finding], stream: TextIO) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(file=stream)
    machine_table = Table(title="Machine", show_header=False, title_justify="left")
    for name, value in facts(machine):
        machine_table.add_row(Text(name, style="bold"), Text(value))
    table = Table(title=f"Competitors on {machine.device}", title_justify="left")
    for heading in ("name", "", "runs", "version", "why not", "what to install"):
        table.add_column(heading)
    for row in rows:
        mark = Text("yes", style="green") if row.ok else Text("no", style="yellow")
        table.add_row(Text(row.name), Text(row.title), mark, *map(Text, (row.version, row.reason, row.install)))
    console.print(machine_table)
    console.print(table)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; it takes no words."""
    parser = argparse.ArgumentParser(
        prog="python -m harness.doctor", description="Say what this machine is and what can run on it."
    )
    parser.parse_args(arguments)
    machine = this_machine()
    fault = reference_fault(machine.device)
    show(machine, findings(machine.device), fault, sys.stdout)
    return 0 if fault is None else 1


if __name__ == "__main__":
    sys.exit(main())
