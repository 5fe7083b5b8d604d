"""The row: what one measurement says, how it is checked, and how stored rows are read.

One JSON object a line, one line a (case, round). Standard library only, so that ``plots/`` and any later reader need
nothing else. Writing is ``harness.store``; this module never writes. Rows are data: they are parsed as JSON, checked
field by field, and nothing in them is ever executed.
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

SCHEMA_VERSION = 2

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
    """Type and meaning of one field. ``null`` fields may be None; ``on_ok`` ones must have a value when status is ok."""

    kinds: tuple[type, ...]
    null: bool
    doc: str
    on_ok: bool = False


_STR, _INT, _NUM, _BOOL, _MAP, _LIST = (str,), (int,), (int, float), (bool,), (dict,), (list,)

FIELDS: dict[str, Field] = {
    # identity
    "schema_version": Field(_INT, False, "version of this table"),
    "case_id": Field(_STR, False, "hash of everything that identifies the measurement (harness.cases)"),
    "run_id": Field(_STR, False, "one invocation of the harness"),
    "time": Field(_STR, False, "UTC, ISO 8601"),
    "status": Field(_STR, False, "one of STATUSES"),
    "reason": Field(_STR, True, "why the status is not ok"),
    "source": Field(_STR, False, "measured or simulated"),
    "protocol": Field(_STR, False, "burst or sustained"),
    "l2": Field(_STR, False, "cold: last-level cache flushed before every sample; warm: not"),
    "round": Field(_INT, False, "index of the round, from 0"),
    "order": Field(_INT, False, "position among the competitors of the round"),
    # who
    "kernel": Field(_STR, False, "competitor"),
    "kernel_version": Field(_STR, True, "version of the package or library that computes"),
    "source_hash": Field(_STR, False, "hash of what determines this kernel's speed (sources or version, flags)"),
    "build_flags": Field(_STR, True, "compiler flags of a kernel built here"),
    "strategy": Field(_STR, True, "context-parallel strategy"),
    "exchange": Field(_STR, True, "context-parallel exchange"),
    "cp_degree": Field(_INT, False, "ranks that share one sequence"),
    # what
    "mask": Field(_STR, False, "family"),
    "mask_variant": Field(_STR, True, "document list, sampler or file the lengths came from"),
    "mask_params": Field(_MAP, False, "the family's parameters"),
    "mask_digest": Field(_STR, True, "hash of the mask's content"),
    "mask_heads": Field(_INT, True, "mask heads"),
    "density": Field(_NUM, True, "visible pairs / all pairs", True),
    "tile_density": Field(_NUM, True, "128x128 tiles not skipped / tiles", True),
    "seed": Field(_INT, False, "seed of mask and inputs"),
    "seqlen": Field(_INT, False, "query rows = key columns"),
    "batch": Field(_INT, False, "sequences"),
    "heads": Field(_INT, False, "query heads"),
    "kv_heads": Field(_INT, False, "key/value heads"),
    "head_dim": Field(_INT, False, "elements of a head"),
    "dtype": Field(_STR, False, "bfloat16, float16 or float32"),
    "pass": Field(_STR, False, "forward, backward or both"),
    "deterministic": Field(_BOOL, False, "deterministic backward asked for"),
    # figures: null unless ok
    "samples_ms": Field(_LIST, True, "every timed call of the round, milliseconds", True),
    "comp_samples_ms": Field(_LIST, True, "the same plan with all keys there already, milliseconds"),
    "comm_samples_ms": Field(_LIST, True, "the same plan with nothing computed, milliseconds"),
    "bare_samples_ms": Field(_LIST, True, "the bytes that the plan moves, one plain message a pair of ranks, milliseconds"),
    "setup_ms": Field(_NUM, True, "preparing the mask, milliseconds"),
    "plan_ms": Field(_NUM, True, "making the context-parallel plan, on the host, milliseconds"),
    "recv_share": Field(_NUM, True, "bytes that all ranks receive in a forward pass / all-gather's keys and values"),
    "ranks": Field(_MAP, True, "by rank: recv_bytes, tiles, and the medians full_ms, comp_ms, comm_ms of the round"),
    "compile_ms": Field(_NUM, True, "first call, compilation included, milliseconds"),
    "host_us": Field(_NUM, True, "median host time to issue one call, microseconds"),
    "flops": Field(_NUM, True, "floating-point operations of one call by exact density", True),
    "flops_tile128": Field(_NUM, True, "the same by 128x128-tile density", True),
    "errors": Field(_MAP, True, "what the correctness gate measured; empty when simulated", True),
    "simulation": Field(_MAP, True, "of a simulated row: cluster, interval, overlap, balance, bytes, and every doubt about it"),
    # where
    "device": Field(_STR, False, "cuda or cpu"),
    "gpu": Field(_STR, False, "GPU model, or the CPU's"),
    "gpu_hash": Field(_STR, True, "salted hash of the GPU's UUID"),
    "power_limit": Field(_NUM, True, "watts"),
    "clocks": Field(_MAP, True, "clocks, power and temperature during the round; on a CPU, cores busy with other things"),
    "environment": Field(_STR, False, "hash of the environment record of the run"),
    "git_sha": Field(_STR, True, "commit"),
    "git_dirty": Field(_BOOL, True, "uncommitted changes"),
    "tree_hash": Field(_STR, False, "hash of csrc, fm3_kernel, masks and harness"),
    "timing_version": Field(_INT, False, "version of the timing method"),
    "config_hash": Field(_STR, False, "hash of the composed configuration"),
    "overrides": Field(_LIST, False, "what the user typed, but for a results folder named from the root of the machine"),
}


_SINCE_2 = ("comp_samples_ms", "comm_samples_ms", "bare_samples_ms", "plan_ms", "recv_share", "ranks", "simulation")


def migrated(row: Row) -> Row:
    """A row of an older version as this version has it; other rows as they are.

    1 to 2: what ranks that share a sequence do beside computing was not measured, and nothing simulated, so it is null.
    """
    version = row.get("schema_version")
    if type(version) is not int or version != 1 or any(name in row for name in _SINCE_2):
        return row
    return {**row, "schema_version": 2, **dict.fromkeys(_SINCE_2)}


def check_row(row: Any, where: str = "row") -> Row:
    """The row itself when it follows the schema, migrated when it follows an older one.

    Raises:
        RowError: unknown schema version, a missing or unknown field, a wrong type, a value outside its set, a figure
            that is not finite and positive, or figures on a row whose status is not ok.
    """
    if not isinstance(row, dict):
        raise RowError(f"{where}: expected a JSON object, found {type(row).__name__}")
    row = migrated(row)
    version = row.get("schema_version")
    if version != SCHEMA_VERSION:
        raise RowError(f"{where}: schema_version is {version!r}; this reader knows {SCHEMA_VERSION}")
    if row.keys() != FIELDS.keys():
        missing = [name for name in FIELDS if name not in row]
        unknown = [name for name in row if name not in FIELDS]
        raise RowError(f"{where}: missing fields {missing}, unknown fields {unknown}")
    ok = row["status"] == "ok"
    for name, field in FIELDS.items():
        value = row[name]
        if value is None:
            if not field.null or (ok and field.on_ok):
                raise RowError(f"{where}: {name} is null")
            continue
        kind = type(value)
        # The exact type is nearly always the field's; what derives from it passes too, but True is no number.
        if kind not in field.kinds and (kind is bool or not isinstance(value, field.kinds)):
            raise RowError(f"{where}: {name} is {value!r}; expected {'/'.join(kind.__name__ for kind in field.kinds)}")
        if kind is str:
            if not _encodes(value):
                raise RowError(f"{where}: {name} holds text that is not Unicode")
        elif (field.kinds is _NUM and not _sane(value)) or (kind is int and abs(value) >= _LARGEST):
            raise RowError(f"{where}: {name} is {_short(value)}")
    for name, allowed in (("status", STATUSES), ("pass", PASSES), ("source", SOURCES), ("protocol", PROTOCOLS)):
        if row[name] not in allowed:
            raise RowError(f"{where}: {name} is {row[name]!r}; allowed: {', '.join(allowed)}")
    for name in ("comp_samples_ms", "comm_samples_ms", "bare_samples_ms"):
        beside = row[name]
        if beside is not None and not (ok and beside and all(_sane(sample) and sample > 0 for sample in beside)):
            raise RowError(f"{where}: {name} must be null or, with status ok, positive numbers, found {_short(beside)}")
    _check_ranks(row, where)
    _check_simulation(row, where)
    samples = row["samples_ms"]
    if ok:
        if not samples or not _positive(samples):
            raise RowError(f"{where}: samples_ms must be a non-empty list of positive numbers, found {_short(samples)}")
    elif samples is not None:
        raise RowError(f"{where}: status {row['status']} must not carry samples_ms")
    return row


_BY_RANK = ("recv_bytes", "tiles", "full_ms", "comp_ms", "comm_ms")


def _check_ranks(row: Row, where: str) -> None:
    """One finite number >= 0 a rank in every vector, and no vector of another name."""
    for name, vector in (row["ranks"] or {}).items():
        if name not in _BY_RANK:
            raise RowError(f"{where}: ranks has {name!r}; allowed: {', '.join(_BY_RANK)}")
        fits = isinstance(vector, list) and len(vector) == row["cp_degree"]
        if not fits or not all(_sane(value) and value >= 0 for value in vector):
            raise RowError(f"{where}: ranks.{name} must be {row['cp_degree']} numbers >= 0, found {_short(vector)}")


def _check_simulation(row: Row, where: str) -> None:
    """What a model says of itself: only on rows that are simulated, and with its interval."""
    told = row["simulation"]
    if told is None:
        return
    if row["source"] != "simulated" or row["status"] != "ok":
        raise RowError(f"{where}: simulation must be null on rows that are {row['source']} with status {row['status']}")
    interval = told.get("interval_ms")
    if not isinstance(interval, list) or len(interval) != 2 or not all(_sane(end) and end > 0 for end in interval):
        raise RowError(f"{where}: simulation.interval_ms must be two positive numbers, found {_short(interval)}")


_LARGEST = 2**63


def _sane(value: Any) -> bool:
    """Whether it is a finite number of sensible size (JSON has integers of any length)."""
    if type(value) is float:
        return math.isfinite(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) < _LARGEST if isinstance(value, int) else math.isfinite(value)


def _positive(samples: list[Any]) -> bool:
    """Whether all of them are positive numbers. Ten floats are looked at together: there are many rows."""
    if set(map(type, samples)) == {float} and math.isfinite(sum(samples)):
        return min(samples) > 0
    return all(_sane(sample) and sample > 0 for sample in samples)


def _encodes(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
    return True


def _short(value: Any) -> str:
    text = f"{value:.3g}" if isinstance(value, float) else repr(value) if not isinstance(value, int) else hex(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


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
