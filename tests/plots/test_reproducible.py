"""``make plots`` twice gives the same files, byte for byte, for every kind of figure."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from row_factory import make_rounds, write_rows

ROOT = Path(__file__).resolve().parent.parent.parent


# The two commands of `make plots`, with one mask in the gallery: drawing all of them takes longer than all the rest.
COMMANDS = """
import sys
import plots.__main__
from harness.claims.__main__ import main as claims
from plots.gallery import gallery

plots.__main__.gallery = lambda: gallery(["causal"])
rows, out = sys.argv[1:]
sys.exit(plots.__main__.main([rows, "--out", out]) or claims([rows, "--out", out]))
"""


def draw(rows: Path, out: Path, seed: str) -> dict[str, bytes]:
    """Every file that they write, in a process with an order of sets of its own."""
    environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT), "SOURCE_DATE_EPOCH": seed}
    subprocess.run([sys.executable, "-c", COMMANDS, str(rows), str(out)], check=True, env=environment, cwd=ROOT)
    return {path.relative_to(out).as_posix(): path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}


def test_equal_rows_give_equal_files_whatever_their_order(tmp_path: Path) -> None:
    rows = []
    for commit in range(2):
        for seqlen in (4096, 8192):
            for kernel, ms in (("fm3", 1.0), ("flex", 1.5)):
                common = {"gpu": "NVIDIA H200", "git_sha": str(commit) * 40, "run_id": f"run-{commit}", "head_dim": 128}
                rows += make_rounds(ms, kernel=kernel, seqlen=seqlen, noise=commit, rounds=3, **common)
    write_rows(tmp_path / "a", rows)
    write_rows(tmp_path / "b", rows[::-1])
    first, second = (draw(tmp_path / name, tmp_path / f"{name}-out", seed) for name, seed in (("a", "1"), ("b", "2")))
    kinds = {name.rsplit("/", 1)[-1].split("_")[0].split(".")[0] for name in first}
    assert kinds == {"bars", "claims", "history", "lengths", "masks", "roofline", "speedup"}
    assert sorted(first) == sorted(second)
    assert [name for name in first if first[name] != second[name]] == []
