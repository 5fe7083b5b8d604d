"""The host's own C++ below ``csrc/``, compiled with the system's compiler, cached and loaded like the kernels."""

from __future__ import annotations

import ctypes
import hashlib
import platform
import shutil
from functools import cache
from pathlib import Path

from fm3_kernel.build import CSRC, BuildError, compiled_once

FLAGS = ("-std=c++17", "-O3", "-march=native", "-shared", "-fPIC")
COMPILERS = ("c++", "g++", "clang++")


@cache
def load_host(name: str) -> ctypes.CDLL:
    """The library of the folder ``csrc/<name>``, built if need be, loaded once a process.

    Raises:
        BuildError: there is no C++ compiler, or it fails.
    """
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        raise BuildError(f"no C++ compiler found on PATH; looked for {', '.join(COMPILERS)}")
    parts = sorted((CSRC / name).glob("*.cpp"))
    state = hashlib.sha256(f"{FLAGS} {platform.platform()} {compiler} {_processor()}".encode())
    for path in sorted([*(CSRC / name).iterdir(), *(CSRC / "common").iterdir()]):
        state.update(path.name.encode() + path.read_bytes())
    return ctypes.CDLL(str(compiled_once(name, f"{name}-{state.hexdigest()[:16]}", [compiler, *FLAGS, *parts])))


def _processor() -> str:
    """What the processor can do: a library made for one may use instructions that another has not."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.lower().startswith(("flags", "features"))), platform.processor())
