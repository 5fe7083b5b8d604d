"""The report's last part: the environments that rows refer to, kernel versions, and the runs with their commands."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from harness.report.commands import run_command
from harness.report.html import Markup, element, esc, table
from plots.cells import Cell, series_of
from plots.style import title_of


def load_environments(folder: Path, hashes: Iterable[str]) -> dict[str, dict[str, Any] | None]:
    """Environment records by hash, from ``environments/<hash>.json`` anywhere below ``folder``; None: missing or broken.

    A hash is a name out of a row: only plain hexadecimal ones are looked for.
    """
    found: dict[str, dict[str, Any] | None] = {}
    for name in sorted(hashes):
        found[name] = None
        if not re.fullmatch(r"[0-9a-f]{6,64}", name):
            continue
        for path in sorted(folder.glob(f"**/environments/{name}.json")):
            try:
                record = json.loads(path.read_text(encoding="utf-8"))
            except (OSError, ValueError):
                continue
            if isinstance(record, dict):
                found[name] = record
                break
    return found


def environment(cells: Sequence[Cell], environments: dict[str, dict[str, Any] | None]) -> Markup:
    """One table: a line a fact, a column an environment."""
    known = {name: record for name, record in environments.items() if record is not None}
    missing = [name for name in environments if name not in known]
    parts = []
    if known:
        facts = list(dict.fromkeys(fact for record in known.values() for fact in record))
        lines = [[fact, *(_fact(record.get(fact)) for record in known.values())] for fact in facts]
        parts.append(table(["environment", *(name[:8] for name in known)], lines))
    if missing:
        parts.append(element("p", f"No record for environment {', '.join(missing)}.", class_="note"))
    versions = sorted({_version(cell) for cell in cells})
    parts.append(table(["kernel", "version", "source hash", "build flags"], versions))
    return element("div", *parts, class_="card")


def _version(cell: Cell) -> tuple[str, str, str, str]:
    version, flags = cell["kernel_version"] or "unknown", cell["build_flags"] or ""
    return title_of(series_of(cell)), str(version), str(cell["source_hash"]), str(flags)


def _fact(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}={item}" for key, item in sorted(value.items())) or "none"
    return "none" if value is None else str(value)


def runs(cells: Sequence[Cell]) -> Markup:
    """The runs that the rows come from: when, which code, and the command as it was typed."""
    first: dict[str, dict[str, Any]] = {}
    for row in (row for cell in cells for row in (cell.rows or (cell.row,))):
        kept = first.setdefault(row["run_id"], row)
        if row["time"] < kept["time"]:
            first[row["run_id"]] = row
    lines = []
    for row in sorted(first.values(), key=lambda row: (row["time"], row["run_id"])):
        sha = row["git_sha"][:10] + (" + changes" if row["git_dirty"] else "") if row["git_sha"] else "unknown"
        command = element("code", esc(run_command(row), 4000), class_="wrap")
        lines.append([row["time"], sha, row["environment"][:8], command])
    note = "The command of a single case stands in its line under 'Every case'. A run goes on from the rows in its results_dir."
    shown = table(["run", "code", "environment", "command"], lines)
    return element("div", shown, element("p", note, class_="note"), class_="card")
