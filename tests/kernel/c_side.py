"""What lies behind the C interface: structures as the compiler lays them out, counters on the device."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from fm3_kernel import hopper

HEADERS = Path(__file__).resolve().parents[2] / "csrc" / "sm90"


def offsets_in_c(header: str, name: str, fields: Sequence[str], folder: Path) -> list[int]:
    """Offset of every field, then the size; ``folder`` is for the program that tells."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    assert compiler is not None
    lines = "".join(f'std::printf("%zu\\n", offsetof({name}, {field}));\n' for field in fields)
    source, program = folder / "offsets.cpp", folder / "offsets"
    source.write_text(
        "#include <cstddef>\n#include <cstdio>\n"
        f'#include "{header}"\nint main() {{\n{lines}std::printf("%zu\\n", sizeof({name}));\n}}\n'
    )
    subprocess.run([compiler, "-std=c++17", f"-I{HEADERS}", str(source), "-o", str(program)], check=True)
    return [int(line) for line in subprocess.run([program], check=True, capture_output=True, text=True).stdout.split()]


class _DeviceInts:
    """Ints at an address, in the form that torch takes over without copying."""

    def __init__(self, address: int, count: int) -> None:
        self.__cuda_array_interface__: dict[str, Any] = {
            "shape": (count,),
            "typestr": "<i4",
            "data": (address, False),
            "version": 3,
        }


def counters_are_zero() -> bool:
    """Whether every kernel has left its counters as it found them."""
    torch.cuda.synchronize()
    found = [torch.as_tensor(_DeviceInts(*entry), device="cuda") for entry in hopper._counters.values()]
    return not any(bool(ints.any()) for ints in found)
