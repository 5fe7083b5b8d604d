"""Valid rows for tests: one call gives one row, checked against the schema."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from harness.cases import Case, MaskSpec, Problem, Sharing
from harness.rows import SCHEMA_VERSION, Row, check_row

FLOPS_FACTOR = {"forward": 4.0, "backward": 10.0, "both": 14.0}


def make_row(
    *,
    kernel: str = "flex",
    mask: str = "document",
    variant: str | None = None,
    seqlen: int = 4096,
    pass_: str = "forward",
    samples_ms: list[float] | None = None,
    status: str = "ok",
    density: float = 0.25,
    tile_density: float | None = None,
    protocol: str = "sustained",
    l2: str = "cold",
    batch: int = 1,
    heads: int = 2,
    kv_heads: int = 2,
    head_dim: int = 64,
    dtype: str = "bfloat16",
    seed: int = 0,
    device: str = "cuda",
    deterministic: bool = False,
    mask_params: dict[str, Any] | None = None,
    **fields: Any,
) -> Row:
    """One row. Whatever identifies the case sets ``case_id``; ``fields`` replaces any other field by its name.

    A run has one machine: another GPU or power limit is another run where ``run_id`` is not given.
    """
    params = dict(mask_params or {})
    problem = Problem(MaskSpec(mask, variant, None, params), seqlen, batch, heads, kv_heads, head_dim, dtype, seed)
    cluster = "cluster" if fields.get("source") == "simulated" else None
    how = (protocol, l2, deterministic, _sharing(fields), cluster)
    ok = status == "ok"
    by_tiles = min(1.0, 1.2 * density) if tile_density is None else tile_density
    pairs = FLOPS_FACTOR[pass_] * batch * heads * seqlen * seqlen * head_dim
    row: Row = {
        "schema_version": SCHEMA_VERSION,
        "case_id": Case(problem, kernel, pass_, device, *how).id,
        "run_id": "-".join(["run-1", *(str(fields[name]) for name in ("gpu", "power_limit") if name in fields)]),
        "time": "2026-01-02T03:04:05Z",
        "status": status,
        "reason": None if ok else f"{status} for a test",
        "source": "measured",
        "protocol": protocol,
        "l2": l2,
        "round": 0,
        "order": 0,
        "kernel": kernel,
        "kernel_version": "1.0",
        "source_hash": f"source-{kernel}",
        "build_flags": None,
        "strategy": None,
        "exchange": None,
        "cp_degree": 1,
        "mask": mask,
        "mask_variant": variant,
        "mask_params": params,
        "mask_digest": f"digest-{mask}-{seqlen}",
        "mask_heads": 1,
        "density": density,
        "tile_density": by_tiles,
        "seed": seed,
        "seqlen": seqlen,
        "batch": batch,
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "dtype": dtype,
        "pass": pass_,
        "deterministic": deterministic,
        "samples_ms": (samples_ms or [1.0, 1.1, 0.9]) if ok else None,
        "comp_samples_ms": None,
        "comm_samples_ms": None,
        "bare_samples_ms": None,
        "setup_ms": 0.5 if ok else None,
        "plan_ms": None,
        "recv_share": None,
        "ranks": None,
        "compile_ms": 100.0 if ok else None,
        "host_us": 20.0 if ok else None,
        "flops": pairs * density if ok else None,
        "flops_tile128": pairs * by_tiles if ok else None,
        "errors": {} if ok else None,
        "simulation": None,
        "device": device,
        "gpu": "Test GPU",
        "gpu_hash": None,
        "power_limit": 700.0,
        "clocks": None,
        "environment": "abcdef0123456789",
        "git_sha": "0123456789abcdef0123456789abcdef01234567",
        "git_dirty": False,
        "tree_hash": "tree-1",
        "timing_version": 1,
        "config_hash": "config-1",
        "overrides": [],
    }
    unknown = [name for name in fields if name not in row]
    if unknown:
        raise TypeError(f"make_row: no field {unknown}")
    return check_row({**row, **fields}, "row_factory")


def _sharing(fields: dict[str, Any]) -> Sharing | None:
    named = {name: fields[name] for name in ("cp_degree", "strategy", "exchange") if fields.get(name) is not None}
    return Sharing(**{"cp_degree": 1, "strategy": "", "exchange": "", **named}) if named else None


def make_rounds(
    median_ms: float, *, rounds: int = 5, samples: int = 7, spread: float = 0.01, noise: int = 0, **fields: Any
) -> list[Row]:
    """Rows of one case, one a round, samples scattered round ``median_ms`` by a seeded relative ``spread``."""
    draw = random.Random(noise)
    rows = []
    for index in range(rounds):
        values = [median_ms * (1 + draw.uniform(-spread, spread)) for _ in range(samples)]
        rows.append(make_row(**{"samples_ms": values, "round": index, "time": f"2026-01-02T03:{index:02d}:00Z", **fields}))
    return rows


def write_rows(folder: Path, rows: list[Row], name: str = "run-1") -> Path:
    """Stores rows below ``folder`` as the harness does; returns the file."""
    path = folder / "rows" / f"{name}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path
