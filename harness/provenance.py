"""Where a number comes from: the code, the software and the machine, as hashes and plain facts.

A copy of the tree without ``.git`` takes its commit from ``build/provenance.json``, written before the copy was made by
``python -m harness.provenance``. Host and user names are never recorded.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Sequence
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

from harness.complaint import complain

ROOT = Path(__file__).resolve().parent.parent
CODE_TREES = ("csrc", "fm3_kernel", "masks", "harness", "context_parallel")
_SOURCE_SUFFIXES = {".py", ".cu", ".cuh", ".h", ".cpp", ".hpp", ".csv"}
_COPIED = ROOT / "build" / "provenance.json"

# Variables that change what is measured; nothing else of the environment is recorded.
_VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_LAUNCH_BLOCKING",
    "NCCL_NVLS_ENABLE",
    "OMP_NUM_THREADS",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_ALLOC_CONF",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST",
    "TORCHINDUCTOR_MAX_AUTOTUNE",
)


class CheckoutError(ValueError):
    """A command that works on a checkout of the project was run where there is none, or a part of it is missing."""


def of_checkout(name: str) -> Path:
    """A file or folder of the checkout, by its relative path; an installed copy has the code and not the pages and the rows.

    Raises:
        CheckoutError: it is not there.
    """
    path = ROOT / name
    if not path.exists():
        raise CheckoutError(f"no {name} in {ROOT}: run this in a checkout of the project, which has it")
    return path


def hash_files(paths: Iterable[Path], salt: str = "", root: Path | None = None) -> str:
    """Hash of source files, folders taken whole, by content and name below ``root`` (this checkout): 16 hex digits."""
    files: set[Path] = set()
    for path in paths:
        found = path.rglob("*") if path.is_dir() else [path]
        files.update(p for p in found if p.suffix in _SOURCE_SUFFIXES and "__pycache__" not in p.parts)
    state = hashlib.sha256(salt.encode())
    for path in sorted(files):
        state.update(path.relative_to(root or ROOT).as_posix().encode())
        state.update(hashlib.sha256(path.read_bytes()).digest())
    return state.hexdigest()[:16]


@lru_cache(maxsize=1)
def tree_hash() -> str:
    """Identity of the code: hash of the trees csrc, fm3_kernel, masks and harness."""
    return hash_files(ROOT / tree for tree in CODE_TREES)


@lru_cache(maxsize=1)
def git_state() -> tuple[str | None, bool | None]:
    """(commit, dirty): of the file that a copy carries, where its code is the code here, else of git, else (None, None).

    A copy may lie on top of an older checkout, and then git knows less than the file.
    """
    try:
        copied = json.loads(_COPIED.read_text())
        sha, dirty, same = copied.get("git_sha"), copied.get("git_dirty"), copied.get("tree_hash") == tree_hash()
    except (OSError, json.JSONDecodeError, AttributeError):
        sha, dirty, same = None, None, False
    try:
        head, changed = _git("rev-parse", "HEAD"), bool(_git("status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.SubprocessError):
        # The commit describes this copy only while its code is still the code that was copied.
        return sha, dirty if same or sha is None else True
    return (sha, dirty) if same and changed else (head, changed)


def _git(*arguments: str) -> str:
    if not (ROOT / ".git").exists():
        raise OSError("not a git checkout")
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], check=True, capture_output=True, text=True, timeout=30)
    return done.stdout.strip()


def package_version(name: str) -> str | None:
    """Version of an installed distribution, or None."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def cpu_model() -> str:
    """The processor's model name."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def environment(device: str) -> dict[str, Any]:
    """The software and machine facts of a run; nothing in it changes between two runs on an unchanged machine.

    A plan for a GPU can be looked at where there is none; the facts are then the processor's.
    """
    import torch

    from harness.device import device_facts

    on_gpu = device == "cuda" and torch.cuda.is_available()
    facts = device_facts(device if on_gpu else "cpu")
    return {
        "device": device,
        "gpu": facts.name,
        "gpu_hash": facts.uuid_hash,
        "power_limit": facts.power_limit,
        "driver": facts.driver,
        "mig": facts.mig,
        "ecc": facts.ecc,
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "os": f"{platform.system()} {platform.release()}",
        "torch": str(torch.__version__),
        "torch_threads": torch.get_num_threads(),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version() if on_gpu else None,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if on_gpu else None,
        "triton": package_version("triton"),
        "numpy": package_version("numpy"),
        "variables": {name: os.environ[name] for name in _VARIABLES if name in os.environ},
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the commit and the code's hash to a file that travels with a copy without ``.git``.

    Exit code: 0, or 2 where no commit is known or the file cannot be written.
    """
    parser = argparse.ArgumentParser(
        prog="python -m harness.provenance",
        description="Write build/provenance.json, for a copy of this checkout without .git.",
    )
    parser.parse_args(arguments)
    sha, dirty = git_state()
    if sha is None:
        return complain("provenance", f"no commit is known of {ROOT}: run this in a git checkout, before the copy is made", 2)
    try:
        _COPIED.parent.mkdir(exist_ok=True)
        _COPIED.write_text(json.dumps({"git_sha": sha, "git_dirty": dirty, "tree_hash": tree_hash()}) + "\n")
    except OSError as error:
        return complain("provenance", f"cannot write {_COPIED}: {error.strerror or error}", 2)
    print(f"{_COPIED.relative_to(ROOT)}: {sha} dirty={dirty} tree={tree_hash()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
