"""Files of document lengths: text, CSV, JSON lines, Parquet. Every bad value is refused with its line and the reason.

Only reading; what is done with the lengths is ``harness.lengths``.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from masks.spelling import allowed_names

DEFAULT_COLUMN, PREFIX_COLUMN, FLAG_COLUMN = "length", "prefix", "flag"

LARGEST = 2**31 - 1
"""Rows are int32 in a column mask."""


class LengthsError(ValueError):
    """A length file or a packing that cannot be used; the message names the file, the line and the reason."""


@dataclass(frozen=True)
class LengthRow:
    """One document of a length file: tokens, and prefix and flag where the file has these columns."""

    length: int
    prefix: int | None = None
    flag: bool | None = None


def read_lengths(path: Path | str, column: str | None = None) -> list[LengthRow]:
    """All documents of a length file, in file order.

    Formats by ending: ``.txt`` (one number a line), ``.csv`` (first line names the columns), ``.jsonl`` (one object or
    one number a line), ``.parquet`` (needs pandas and pyarrow).

    Args:
        path: the file.
        column: the column of lengths; None: ``length``, or the only column there is. A ``prefix`` column (0 to the
            length) and a ``flag`` column (0, 1, true, false) are read when present.

    Raises:
        LengthsError: no such file, unknown ending, no such column (names those there are), no document, or a value that
            is negative, zero, not an integer, empty or missing; names the line (Parquet: the row, from 1).
    """
    source = Path(path)
    if not source.is_file():
        raise LengthsError(f"{source}: no such file")
    reader = _READERS.get(source.suffix.lower())
    if reader is None:
        ending = source.suffix or "no ending"
        raise LengthsError(f"{source.name}: cannot read files with {ending}; {allowed_names(ending, _READERS)}")
    names: dict[str, str] | None = None
    rows = []
    try:
        for where, record in reader(source):
            if names is None:
                names = _columns(where, record, column)
            rows.append(_row(where, record, names))
    except UnicodeDecodeError as error:
        raise LengthsError(f"{source.name}: not UTF-8 text ({error.reason} at byte {error.start})") from error
    except csv.Error as error:
        raise LengthsError(f"{source.name}: not CSV ({error})") from error
    except OSError as error:
        raise LengthsError(f"{source.name}: cannot be read ({error.strerror})") from error
    if not rows:
        raise LengthsError(f"{source.name}: holds no lengths")
    return rows


Record = Mapping[str, Any]


def _read_text(path: Path) -> Iterator[tuple[str, Record]]:
    lines = path.read_text(encoding="utf-8-sig").rstrip().split("\n")
    for number, line in enumerate(lines if lines != [""] else [], 1):
        yield f"{path.name}:{number}", {DEFAULT_COLUMN: line.strip()}


def _read_csv(path: Path) -> Iterator[tuple[str, Record]]:
    with path.open(encoding="utf-8-sig", newline="") as stream:
        reader = csv.reader(stream)
        header = [cell.strip() for cell in next(reader, [])]
        if any(_is_number(cell) for cell in header):
            raise LengthsError(f"{path.name}:1: the first line must name the columns, found {header[0]!r}")
        if len(set(header)) < len(header):
            raise LengthsError(f"{path.name}:1: two columns of the same name among {', '.join(header)}")
        blank: str | None = None
        for cells in reader:
            where = f"{path.name}:{reader.line_num}"
            if not cells:  # fine at the end of the file, and only there
                blank = blank or where
                continue
            if blank:
                raise LengthsError(f"{blank}: empty line")
            if len(cells) > len(header):
                raise LengthsError(f"{where}: {len(cells)} cells, the first line names {len(header)} columns")
            yield where, dict(zip(header, [*cells, *[None] * (len(header) - len(cells))], strict=True))


def _read_json_lines(path: Path) -> Iterator[tuple[str, Record]]:
    lines = path.read_text(encoding="utf-8-sig").rstrip().split("\n")
    for number, line in enumerate(lines, 1):
        where = f"{path.name}:{number}"
        if not line.strip():
            if len(lines) > 1:
                raise LengthsError(f"{where}: empty line")
            return
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:  # also a number of thousands of digits, brackets without end
            raise LengthsError(f"{where}: not JSON ({error})") from error
        yield where, value if isinstance(value, dict) else {DEFAULT_COLUMN: value}


def _read_parquet(path: Path) -> Iterator[tuple[str, Record]]:
    try:
        import pandas  # only here: the other formats need nothing but Python
    except ImportError as error:
        raise LengthsError(f"{path.name}: reading Parquet needs pandas and pyarrow: pip install pandas pyarrow") from error
    try:
        table = pandas.read_parquet(path, dtype_backend="numpy_nullable")
    except ImportError as error:
        raise LengthsError(f"{path.name}: reading Parquet needs pyarrow: pip install pyarrow") from error
    except (OSError, ValueError) as error:
        raise LengthsError(f"{path.name}: not a readable Parquet file ({error})") from error
    names = [str(name) for name in table.columns]
    columns = [[None if value is pandas.NA else value for value in table.iloc[:, i].tolist()] for i in range(len(names))]
    for number, values in enumerate(zip(*columns, strict=True), 1):
        yield f"{path.name}: row {number}", dict(zip(names, values, strict=True))


_READERS: dict[str, Callable[[Path], Iterator[tuple[str, Record]]]] = {
    ".txt": _read_text,
    ".csv": _read_csv,
    ".jsonl": _read_json_lines,
    ".parquet": _read_parquet,
}


def _columns(where: str, record: Record, column: str | None) -> dict[str, str]:
    """Which column holds the lengths, and which of prefix and flag there are: role to column name."""
    wanted = column
    if wanted is None:
        candidates = [name for name in record if name not in (PREFIX_COLUMN, FLAG_COLUMN)]
        wanted = candidates[0] if len(candidates) == 1 and DEFAULT_COLUMN not in record else DEFAULT_COLUMN
    if wanted not in record:
        choose = "" if column is not None else " (choose one with mask.column=)"
        raise LengthsError(f"{where.partition(':')[0]}: no column {wanted!r}; {allowed_names(wanted, record)}{choose}")
    extra = {name: name for name in (PREFIX_COLUMN, FLAG_COLUMN) if name in record and name != wanted}
    return {DEFAULT_COLUMN: wanted, **extra}


def _row(where: str, record: Record, names: Mapping[str, str]) -> LengthRow:
    length = _integer(where, names[DEFAULT_COLUMN], record.get(names[DEFAULT_COLUMN]), 1, LARGEST)
    late = [name for name in (PREFIX_COLUMN, FLAG_COLUMN) if name in record and name not in (*names, *names.values())]
    if late:  # only JSON lines can do that; dropping the value would change the mask silently
        raise LengthsError(f"{where}: {late[0]} is given here but not in the first line")
    prefix = flag = None
    if PREFIX_COLUMN in names:
        prefix = _integer(where, PREFIX_COLUMN, record.get(PREFIX_COLUMN), 0, length)
    if FLAG_COLUMN in names:
        flag = _flag(where, record.get(FLAG_COLUMN))
    return LengthRow(length, prefix, flag)


def _integer(where: str, name: str, value: Any, least: int, most: int) -> int:
    if value is None:
        raise LengthsError(f"{where}: {name} is missing")
    if isinstance(value, str):
        text = value.strip()
        if not text:
            raise LengthsError(f"{where}: {name} is empty")
        if not _is_number(text) or len(text) > 20:
            raise LengthsError(f"{where}: {name} is {text!r}; it must be an integer from {least} to {most}")
        value = int(text)
    if isinstance(value, bool) or not isinstance(value, int):
        raise LengthsError(f"{where}: {name} is {value!r}; it must be an integer")
    if value < least:
        reason = "negative" if value < 0 else "zero"
        raise LengthsError(f"{where}: {name} is {value}, {reason}; it must be an integer from {least} to {most}")
    if value > most:
        raise LengthsError(f"{where}: {name} is {value}; it must be an integer from {least} to {most}")
    return value


def _is_number(text: str) -> bool:
    digits = text.removeprefix("-").removeprefix("+")
    return digits.isascii() and digits.isdigit()


def _flag(where: str, value: Any) -> bool:
    known = {"0": False, "1": True, "false": False, "true": True}
    text = str(value).strip().lower()
    if value is None or text not in known:
        raise LengthsError(f"{where}: flag is {value!r}; allowed: 0, 1, false, true")
    return known[text]
