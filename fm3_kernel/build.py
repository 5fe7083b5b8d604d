"""Compiling ``csrc/`` with nvcc: one shared library an instance, cached by what it was made of, gated by what it costs.

``python -m fm3_kernel.build [NAME ...]`` builds everything, or what is named, and prints the resource table. No torch headers
take part, so a library serves every torch and Python. A kernel that spills, serialises its matrix products or has its register
split ignored is slower by half without a word at run time: the build fails instead. Loading is ``fm3_kernel.library``.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from masks.spelling import allowed_names

ROOT = Path(__file__).resolve().parent.parent
CSRC = ROOT / "csrc"
INSTANCES = (CSRC / "sm80" / "instances", CSRC / "sm90" / "instances")

FLAGS = (
    "-gencode=arch=compute_90a,code=sm_90a",
    "-std=c++17",
    "-O3",
    "--use_fast_math",
    "-DNDEBUG",
    "-lineinfo",
    "-shared",
    "-Xcompiler=-fPIC,-fvisibility=hidden",
    "-Xptxas=-v,--warn-on-spills",
)
"""Of the Hopper kernels; :func:`flags` has those of any instance."""

# Machine code for 8.0 runs on all of 8.x. Later GPUs compile the PTX when they first load it.
_AMPERE_AND_LATER = "-gencode=arch=compute_80,code=[sm_80,compute_80]"
# Beside it: there these kernels are a competitor, whose speed is not to depend on what a driver makes of the PTX.
_AS_COMPETITOR = "-gencode=arch=compute_90,code=sm_90"

INSTALL_NVCC = "pip install 'nvidia-cuda-nvcc>=13.0' 'nvidia-cuda-runtime>=13.0'"
"""What brings a compiler where there is none: the extra ``build`` by the names of its packages, for an installed copy."""

EVERYWHERE = ("backward_rows", "prepare")
"""Instances without an instruction of one generation, which the kernels of all of them need."""

# Each of these in ptxas' output means that the kernel runs, right and slow.
_SLOW = re.compile(r"Potential Performance Loss|setmaxnreg.*ignored|\bC75\d\d\b|\bC7602\b", re.IGNORECASE)
_INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)
_ENTRY = re.compile(r"Compiling entry function '(?P<name>[^']+)'")
_SPILLS = re.compile(r"(?P<frame>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads")
_USED = re.compile(r"Used (?P<registers>\d+) registers(?:.*?, (?P<shared>\d+) bytes smem)?")


class BuildError(RuntimeError):
    """No compiler, a compile error, or a kernel that fails the resource gate; the message says which and what helps."""


@dataclass(frozen=True)
class Resources:
    """What ptxas says of one kernel: registers a thread, static shared memory, stack and spills in bytes."""

    kernel: str
    registers: int
    shared: int
    stack: int
    spill_stores: int
    spill_loads: int


@dataclass(frozen=True)
class Built:
    """A compiled instance: the library and its resource table."""

    name: str
    library: Path
    resources: tuple[Resources, ...]


def instances() -> list[str]:
    """Names of everything that can be built."""
    return sorted(path.stem for folder in INSTANCES for path in folder.glob("*.cu"))


def source_of(name: str) -> Path:
    """The file of an instance.

    Raises:
        BuildError: there is none of this name.
    """
    for folder in INSTANCES:
        if (source := folder / f"{name}.cu").is_file():
            return source
    raise BuildError(f"no kernel instance {name!r}; {allowed_names(name, instances())}")


def flags(name: str) -> tuple[str, ...]:
    """nvcc's flags for an instance; its folder says for which GPUs it is compiled.

    Raises:
        BuildError: there is none of this name.
    """
    if name in EVERYWHERE:
        return (*FLAGS, _AMPERE_AND_LATER)
    return (_AMPERE_AND_LATER, _AS_COMPETITOR, *FLAGS[1:]) if source_of(name).parent.parent.name == "sm80" else FLAGS


def cache_folder() -> Path:
    """Where libraries lie: ``FM3_CACHE``, else ``build/kernels`` of a checkout, else the user's cache."""
    said = os.environ.get("FM3_CACHE")
    if said:
        return Path(said)
    if os.access(ROOT, os.W_OK) and (ROOT / "Makefile").exists():
        return ROOT / "build" / "kernels"
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "flashmask3"


def find_nvcc() -> Path:
    """nvcc from CUDA_HOME or CUDA_PATH, from PATH, or from the pip packages of the extra ``build``.

    Raises:
        BuildError: none of them has it; the message lists where it was looked for.
    """
    places = [Path(os.environ[name]) / "bin" / "nvcc" for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    on_path = shutil.which("nvcc")
    places += [Path(on_path)] if on_path else []
    for folder in map(Path, sys.path):
        places += [folder / "nvidia" / part / "bin" / "nvcc" for part in ("cu13", "cuda_nvcc")]
    for place in places:
        if place.is_file() and os.access(place, os.X_OK):
            return place
    raise BuildError(
        "no nvcc found: looked at CUDA_HOME, CUDA_PATH, PATH and the pip packages. Install a CUDA toolkit (12.8 or newer) "
        f"and set CUDA_HOME, or {INSTALL_NVCC}"
    )


@cache
def _nvcc_version(nvcc: Path) -> str:
    try:
        done = subprocess.run([nvcc, "--version"], check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise BuildError(f"{nvcc} does not run: {error}") from error
    return (done.stdout.strip().splitlines() or [""])[-1]


def sources(name: str) -> list[Path]:
    """Files that an instance is made of: its own, and what it includes of ``csrc/``, directly or not."""
    found, todo = set(), [source_of(name)]
    while todo:
        path = todo.pop()
        if path not in found:
            found.add(path)
            todo += [(path.parent / included).resolve() for included in _INCLUDE.findall(path.read_text())]
    return sorted(found)


def source_hash(name: str, nvcc: Path) -> str:
    """Hash of an instance's sources, the flags and the compiler: 16 hex digits."""
    state = hashlib.sha256(f"{flags(name)} {_nvcc_version(nvcc)}".encode())
    for path in sources(name):
        state.update(path.relative_to(CSRC).as_posix().encode() + path.read_bytes())
    return state.hexdigest()[:16]


def build(name: str) -> Built:
    """The compiled instance, from the cache if its sources, flags and compiler are unchanged.

    Raises:
        BuildError: an unknown name, no compiler, a compile error, or a kernel that fails the gate.
    """
    source = source_of(name)
    nvcc = find_nvcc()
    stem = f"{name}-{source_hash(name, nvcc)}"
    table = cache_folder() / f"{stem}.json"

    def gate(log: str) -> None:
        resources = list(read_resources(log))
        check_resources(name, log, resources)
        table.write_text(json.dumps([asdict(entry) for entry in resources], indent=1) + "\n")

    library = compiled_once(name, stem, [nvcc, *flags(name), source], gate)
    return Built(name, library, tuple(Resources(**entry) for entry in json.loads(table.read_text())))


def compiled_once(
    name: str, stem: str, command: Sequence[str | Path], accept: Callable[[str], None] = lambda log: None
) -> Path:
    """The library ``stem`` of the cache, made by ``command`` and ``-o`` if it is not there.

    Args:
        name: whom a lock is for: several ranks may ask at once, one compiles, the others wait and find it.
        stem: file name without suffix; says all that the library depends on.
        command: the compiler with its arguments.
        accept: given the compiler's output; raises BuildError to refuse the library.

    Raises:
        BuildError: a compile error, a refused library, a folder that cannot be written.
    """
    folder = cache_folder()
    library = folder / f"{stem}.so"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not library.exists():
                _compile(command, library, accept)
    except OSError as error:
        raise BuildError(f"cannot build into {folder}: {error.strerror or error}; FM3_CACHE names another folder") from error
    return library


def _compile(command: Sequence[str | Path], library: Path, accept: Callable[[str], None]) -> None:
    unfinished = library.with_suffix(f".{os.getpid()}.tmp")
    try:
        done = subprocess.run([*command, "-o", unfinished], capture_output=True, text=True)
        log = done.stdout + done.stderr
        if done.returncode != 0:
            raise BuildError(f"{Path(command[0]).name} failed on {Path(command[-1]).name}:\n{log.strip()[-4000:]}")
        accept(log)
        unfinished.replace(library)
    finally:
        unfinished.unlink(missing_ok=True)


def read_resources(log: str) -> Iterator[Resources]:
    """The resource table in ptxas' verbose output, one entry a kernel."""
    name, spills = None, None
    for line in log.splitlines():
        if found := _ENTRY.search(line):
            name, spills = found["name"], None
        elif found := _SPILLS.search(line):
            spills = found
        elif (found := _USED.search(line)) and name is not None and spills is not None:
            numbers = (int(spills["frame"]), int(spills["stores"]), int(spills["loads"]))
            yield Resources(name, int(found["registers"]), int(found["shared"] or 0), *numbers)
            name = None


def check_resources(name: str, log: str, resources: list[Resources]) -> None:
    """The gate.

    Raises:
        BuildError: ptxas warns of a performance loss or ignores setmaxnreg, a kernel spills, or no kernel was reported.
    """
    slow = [line.strip() for line in log.splitlines() if _SLOW.search(line)]
    if slow:
        raise BuildError(f"{name}: ptxas says that it will be slow: " + "; ".join(slow[:5]))
    spilling = [f"{r.kernel} ({r.spill_stores} bytes)" for r in resources if r.spill_stores or r.spill_loads]
    if spilling:
        raise BuildError(f"{name}: kernels that spill registers: {', '.join(spilling)}")
    if not resources:
        raise BuildError(f"{name}: ptxas reported no kernel; its output has another form than this gate reads")


def main(arguments: Sequence[str] | None = None) -> int:
    """Build as many at a time as there are cores, print the table. Exit code: 0, 1 a build failed, 2 an unknown name."""
    parser = argparse.ArgumentParser(
        prog="python -m fm3_kernel.build", description="Compile the CUDA kernels and print what each costs."
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"instances to build (default: all): {', '.join(instances())}")
    names = list(dict.fromkeys(parser.parse_args(arguments).names)) or instances()
    try:
        for name in names:
            source_of(name)
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    try:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            finished = list(pool.map(build, names))
        for built in finished:
            print(f"{built.name}: {built.library.name}")
            for r in built.resources:
                print(f"  {r.registers:4d} registers {r.shared:6d} B shared {r.spill_stores:4d} B spilled  {r.kernel[:80]}")
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
