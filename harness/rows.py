"""The row: what one measurement says, how it is checked, and how stored rows are read.

One JSON object a line, one line a (case, round). Standard library only, so that ``plots/`` and any later reader need
nothing else. Writing is ``harness.store``; this module never writes. Rows are data: they are parsed as JSON, checked
field by field, and nothing in them is ever executed.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterable, Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from harness.row_limits import (
    AMOUNT,
    COUNT,
    INDEX,
    LIST,
    MAP,
    PART,
    POSITIVE,
    SWITCH,
    TEXT,
    VERSION,
    Kind,
    brief,
    fits,
    impossible,
)

BUSY_CORES = 0.3
"""Cores busy with other things (``other_busy_cores`` of ``clocks``) above which a CPU's figures are no longer the machine's."""
SCHEMA_VERSION = 3

STATUSES = (
    "ok",
    "incorrect",
    "unsupported",
    "missing_backend",
    "oom",
    "timeout",
    "compile_error",
    "crash",
    "interrupted",
)
PASSES = ("forward", "backward", "both")
SOURCES = ("measured", "simulated")
PROTOCOLS = ("burst", "sustained")
CACHES = ("cold", "warm")
DEVICES = ("cuda", "cpu")
DTYPES = ("bfloat16", "float16", "float32")

Row = dict[str, Any]


class RowError(ValueError):
    """A row or a row file that does not follow the schema; the message names the file, the line and the field."""


class StoredRow(Row):
    """A row as it was read, with the place where it is stored. A row that is made of it is stored nowhere and has none."""

    __slots__ = ("file", "line")

    def __init__(self, row: Row, file: str, line: int) -> None:
        super().__init__(row)
        self.file, self.line = file, line


def place_of(row: Row) -> str:
    """Where a row is stored, as ``file:line``; of one that was never read, which one it is."""
    if isinstance(row, StoredRow):
        return f"{row.file}:{row.line}"
    return f"run {row['run_id']!r}, case {row['case_id']!r}, round {row['round']}"


class Field(NamedTuple):
    """Kind and meaning of one field. ``null`` fields may be None; ``on_ok`` ones must have a value when status is ok.

    ``names``: the only texts that are allowed, where that is a few.
    """

    kind: Kind
    null: bool
    doc: str
    on_ok: bool = False
    names: tuple[str, ...] = ()


FIELDS: dict[str, Field] = {
    # identity
    "schema_version": Field(VERSION, False, "version of this table"),
    "case_id": Field(TEXT, False, "hash of everything that identifies the measurement (harness.cases)"),
    "run_id": Field(TEXT, False, "one invocation of the harness"),
    "time": Field(TEXT, False, "UTC, ISO 8601"),
    "status": Field(TEXT, False, "one of STATUSES", names=STATUSES),
    "reason": Field(TEXT, True, "why the status is not ok"),
    "source": Field(TEXT, False, "measured or simulated", names=SOURCES),
    "protocol": Field(TEXT, False, "burst or sustained", names=PROTOCOLS),
    "l2": Field(TEXT, False, "cold: last-level cache flushed before every sample; warm: not", names=CACHES),
    "round": Field(INDEX, False, "index of the round, from 0"),
    "order": Field(INDEX, False, "position among the competitors of the round"),
    # who
    "kernel": Field(TEXT, False, "competitor"),
    "kernel_version": Field(TEXT, True, "version of the package or library that computes"),
    "source_hash": Field(TEXT, False, "hash of what determines this kernel's speed (sources or version, flags)"),
    "build_flags": Field(TEXT, True, "compiler flags of a kernel built here"),
    "strategy": Field(TEXT, True, "context-parallel strategy"),
    "exchange": Field(TEXT, True, "context-parallel exchange"),
    "cp_degree": Field(COUNT, False, "ranks that share one sequence"),
    # what
    "mask": Field(TEXT, False, "family"),
    "mask_variant": Field(TEXT, True, "document list, sampler or file the lengths came from"),
    "mask_params": Field(MAP, False, "the family's parameters"),
    "mask_digest": Field(TEXT, True, "hash of the mask's content"),
    "mask_heads": Field(COUNT, True, "mask heads"),
    "density": Field(PART, True, "visible pairs / all pairs", True),
    "tile_density": Field(PART, True, "128x128 tiles not skipped / tiles", True),
    "seed": Field(INDEX, False, "seed of mask and inputs"),
    "seqlen": Field(COUNT, False, "query rows = key columns"),
    "batch": Field(COUNT, False, "sequences"),
    "heads": Field(COUNT, False, "query heads"),
    "kv_heads": Field(COUNT, False, "key/value heads"),
    "head_dim": Field(COUNT, False, "elements of a head"),
    "dtype": Field(TEXT, False, "bfloat16, float16 or float32", names=DTYPES),
    "pass": Field(TEXT, False, "forward, backward or both", names=PASSES),
    "deterministic": Field(SWITCH, False, "deterministic backward asked for"),
    # figures: null unless ok
    "samples_ms": Field(LIST, True, "every timed call of the round, milliseconds", True),
    "comp_samples_ms": Field(LIST, True, "the same plan with all keys there already, milliseconds"),
    "comm_samples_ms": Field(LIST, True, "the same plan with nothing computed, milliseconds"),
    "bare_samples_ms": Field(LIST, True, "the bytes that the plan moves, one plain message a pair of ranks, milliseconds"),
    "setup_ms": Field(AMOUNT, True, "preparing the mask, milliseconds"),
    "plan_ms": Field(AMOUNT, True, "making the context-parallel plan, on the host, milliseconds"),
    "recv_share": Field(AMOUNT, True, "bytes that all ranks receive in a forward pass / all-gather's keys and values"),
    "ranks": Field(MAP, True, "by rank: recv_bytes, tiles, and the medians full_ms, comp_ms, comm_ms of the round"),
    "compile_ms": Field(AMOUNT, True, "first call, compilation included, milliseconds"),
    "host_us": Field(AMOUNT, True, "median host time to issue one call, microseconds"),
    "flops": Field(POSITIVE, True, "floating-point operations of one call by exact density", True),
    "flops_tile128": Field(POSITIVE, True, "the same by 128x128-tile density", True),
    "errors": Field(MAP, True, "what the correctness gate measured; empty when simulated", True),
    "simulation": Field(MAP, True, "of a simulated row: cluster, interval, overlap, balance, bytes, and every doubt about it"),
    # where
    "device": Field(TEXT, False, "cuda or cpu", names=DEVICES),
    "gpu": Field(TEXT, False, "GPU model, or the CPU's"),
    "gpu_hash": Field(TEXT, True, "salted hash of the GPU's UUID"),
    "power_limit": Field(POSITIVE, True, "watts"),
    "clocks": Field(MAP, True, "clocks, power and temperature during the round; on a CPU, cores busy with other things"),
    "environment": Field(TEXT, False, "hash of the environment record of the run"),
    "git_sha": Field(TEXT, True, "commit"),
    "git_dirty": Field(SWITCH, True, "uncommitted changes"),
    "tree_hash": Field(TEXT, False, "hash of csrc, fm3_kernel, masks and harness"),
    "timing_version": Field(COUNT, False, "version of the timing method"),
    "config_hash": Field(TEXT, False, "hash of the composed configuration"),
    "overrides": Field(LIST, False, "what the user typed, but for a results folder named from the root of the machine"),
}


# What version 2 called the sources of fm3's backward pass, its forward pass among them, and what this version calls the same.
_SAME_SOURCES = {"108976f376045c29": "7de378c1ff57fd19"}

_SINCE_2 = ("comp_samples_ms", "comm_samples_ms", "bare_samples_ms", "plan_ms", "recv_share", "ranks", "simulation")


def migrated(row: Row) -> Row:
    """A row of an older version as this version has it; other rows as they are.

    1 to 2: what ranks that share a sequence do beside computing was not measured, and nothing simulated, so it is null.
    2 to 3: the source hash of a backward pass does not cover the forward pass, which it does not call.
    """
    version = row.get("schema_version")
    if type(version) is int and version == 1 and not any(name in row for name in _SINCE_2):
        row, version = {**row, **dict.fromkeys(_SINCE_2)}, 2
    if type(version) is int and version == 2:
        source = row.get("source_hash")
        row = {**row, "schema_version": 3}
        if isinstance(source, str):
            row["source_hash"] = _SAME_SOURCES.get(source, source)
    return row


_BOUNDED = tuple((name, field.kind.least, field.kind.most) for name, field in FIELDS.items() if int in field.kind.types)
_NAMED = tuple((name, frozenset(field.names)) for name, field in FIELDS.items() if field.names)
_VALUES = itemgetter(*FIELDS)
_TEXTS = itemgetter(*(name for name, field in FIELDS.items() if field.kind is TEXT))

_known: set[tuple[Any, ...]] = set()
"""Types of all fields together that were found right once: nearly all rows have one of a few, and there are many rows."""


def check_row(row: Any, where: str = "row") -> Row:
    """The row itself when it follows the schema, migrated when it follows an older one.

    Raises:
        RowError: unknown schema version, a missing or unknown field, a wrong type, a value outside its set or its limits,
            figures that no run can give (``harness.row_limits``), or figures on a row whose status is not ok.
    """
    if not isinstance(row, dict):
        raise RowError(f"{where}: expected a JSON object, found {type(row).__name__}")
    row = migrated(row)
    version = row.get("schema_version")
    if type(version) is not int or version != SCHEMA_VERSION:
        raise RowError(f"{where}: schema_version is {version!r}; this reader knows {SCHEMA_VERSION}")
    if row.keys() != FIELDS.keys():
        missing = [name for name in FIELDS if name not in row]
        unknown = [name for name in row if name not in FIELDS]
        raise RowError(f"{where}: missing fields {missing}, unknown fields {unknown}")
    types = (row["status"] == "ok", *map(type, _VALUES(row)))
    if types not in _known:
        _check_types(row, where)
        _known.add(types)
    for name, least, most in _BOUNDED:
        value = row[name]
        if value is not None and not least <= value <= most:
            raise RowError(f"{where}: {name} is {brief(value)}; allowed: {FIELDS[name].kind.allowed}")
    for name, names in _NAMED:
        if row[name] not in names:
            raise RowError(f"{where}: {name} is {row[name]!r}; allowed: {', '.join(FIELDS[name].names)}")
    if not "".join(filter(None, _TEXTS(row))).isascii():
        _check_texts(row, where)
    told = impossible(row)
    if told is not None:
        raise RowError(f"{where}: {told}")
    return row


def _check_types(row: Row, where: str) -> None:
    ok = row["status"] == "ok"
    for name, field in FIELDS.items():
        value = row[name]
        if value is None and (not field.null or (ok and field.on_ok)):
            raise RowError(f"{where}: {name} is null; allowed: {field.kind.allowed}")
        if value is not None and not fits(value, field.kind):
            raise RowError(f"{where}: {name} is {brief(value)}; allowed: {field.kind.allowed}")


def _check_texts(row: Row, where: str) -> None:
    for name, field in FIELDS.items():
        if field.kind is TEXT and row[name] is not None:
            try:
                row[name].encode()
            except UnicodeEncodeError as error:  # half of a surrogate pair
                raise RowError(f"{where}: {name} holds text that is not Unicode") from error


def row_files(folder: Path | str) -> list[Path]:
    """Every row file below ``folder`` (``*.jsonl`` and ``*.jsonl.gz`` inside a ``rows`` folder), sorted."""
    root = Path(folder)
    found = [p for pattern in ("**/rows/*.jsonl", "**/rows/*.jsonl.gz") for p in root.glob(pattern)]
    return sorted(found)


def read_file(path: Path, cut_off: Callable[[str], None] | None = None, name: str | None = None) -> Iterator[StoredRow]:
    """The rows of one file. A last line cut off by a kill or a full disk is left out; any other bad line raises.

    Args:
        path: the file.
        cut_off: told the file's name when its last line was left out.
        name: what errors and the rows' places call the file; its path where it is not given.

    Raises:
        RowError: names the file, the line and what is wrong with it.
    """
    called = str(path) if name is None else name
    try:
        for line, text in _lines(path, cut_off):
            yield StoredRow(_parse(text, f"{called}:{line}"), called, line)
    except (UnicodeDecodeError, EOFError, OSError, zlib.error) as error:  # not UTF-8, cut-off or broken gzip, unreadable
        raise RowError(f"{called}: cannot be read ({error})") from error


def _lines(path: Path, cut_off: Callable[[str], None] | None) -> Iterator[tuple[int, str]]:
    """The whole lines of a file with their numbers."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as stream:
        for number, line in enumerate(stream, 1):
            if line.endswith("\n"):
                yield number, line
            elif cut_off is not None:  # only the last one can lack its end
                cut_off(path.name)


def _parse(text: str, where: str) -> Row:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise RowError(f"{where}: not JSON ({error.msg} at column {error.colno})") from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, brackets without end
        raise RowError(f"{where}: not JSON that can be read ({type(error).__name__})") from error
    return check_row(value, where)


def read_rows(folders: Path | str | Iterable[Path | str]) -> list[Row]:
    """All rows below one folder or several."""
    many = [folders] if isinstance(folders, str | Path) else list(folders)
    return [row for folder in many for path in row_files(folder) for row in read_file(path)]
