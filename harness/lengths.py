"""The user's own document lengths: packed into a sequence, or measured from the files of a folder.

``read_lengths`` (from ``harness.length_files``) reads them, ``pack`` makes the documents of one sequence, and
``python -m harness.lengths DIR`` writes a length file for a folder. What documents mean for a mask is ``masks.families``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TextIO, TypeVar

from harness.length_files import DEFAULT_COLUMN, LengthRow, LengthsError, read_lengths
from masks.documents import Documents, documents_from_lengths, random_source
from masks.spelling import allowed_names

__all__ = ["LengthRow", "LengthsError", "Policy", "file_lengths", "main", "pack", "read_lengths", "write_lengths"]

Value = TypeVar("Value")

HIDDEN = (".*", "__pycache__")
"""Left out of a folder by the command line: hidden files and folders, and compiled Python."""


class Policy(StrEnum):
    """Order in which documents go into the pack; the last one that goes in is truncated to fit."""

    IN_ORDER = "in_order"
    SHUFFLE = "shuffle"


def pack(
    lengths: Sequence[LengthRow] | Sequence[int],
    seqlen: int,
    policy: Policy | str = Policy.IN_ORDER,
    seed: int = 0,
    *,
    cut: bool = False,
    name: str = "the length list",
) -> Documents:
    """The documents of one sequence of exactly ``seqlen`` tokens.

    Documents are taken in the policy's order until the sequence is full; the last one is truncated, its prefix too.
    Nothing is repeated or padded: a list with too few tokens is an error, because either would change what is measured.

    Args:
        lengths: rows of a file, or bare lengths.
        seqlen: tokens of the sequence.
        policy: ``in_order`` (as in the file) or ``shuffle`` (a random order by ``seed``).
        seed: integer >= 0; also draws the prefixes when the file has none.
        cut: documents at most a quarter of the pack, longer ones are cut to that.
        name: of the list, for messages.

    Raises:
        LengthsError: unknown policy, or fewer tokens than ``seqlen``.
    """
    if policy not in list(Policy):
        raise LengthsError(f"unknown packing policy {policy!r}; {allowed_names(policy, Policy)}")
    if isinstance(seqlen, bool) or not isinstance(seqlen, int) or seqlen < 1:
        raise LengthsError(f"seqlen is {seqlen!r}; it must be an integer >= 1")
    rows = [row if isinstance(row, LengthRow) else LengthRow(row) for row in lengths]
    if policy == Policy.SHUFFLE:
        rng = random_source(seed, "shuffle")
        keys = [rng.random() for _ in rows]
        rows = [rows[index] for index in sorted(range(len(rows)), key=keys.__getitem__)]
    longest = max(1, seqlen // 4) if cut else seqlen
    taken: list[LengthRow] = []
    sizes: list[int] = []
    left = seqlen
    for row in rows:
        if not left:
            break
        taken.append(row)
        sizes.append(min(row.length, longest, left))
        left -= sizes[-1]
    if left:
        each = f" with documents cut to {longest}" if cut else ""
        raise LengthsError(
            f"{name} holds {seqlen - left} tokens{each}; seqlen is {seqlen}: give a longer list or a smaller seqlen"
        )
    return documents_from_lengths(
        sizes,
        prefixes=_given(
            [None if row.prefix is None else min(row.prefix, size) for row, size in zip(taken, sizes, strict=True)]
        ),
        flags=_given([row.flag for row in taken]),
        seed=seed,
    )


def _given(values: list[Value | None]) -> list[Value] | None:
    """The values, or None unless every document has one."""
    present = [value for value in values if value is not None]
    return present if len(present) == len(values) else None


# -- command line --------------------------------------------------------------------------------------------------------


def file_lengths(folder: Path | str, pattern: str = "*", exclude: Iterable[str] = ()) -> tuple[list[int], int]:
    """Bytes of every file below a folder, sorted by relative path, and how many empty files were left out.

    Args:
        folder: searched with its sub-folders.
        pattern: of the file name, as in ``*.py``.
        exclude: patterns; a file is left out when any part of its relative path matches one.

    Raises:
        LengthsError: no such folder, or no file that is not empty.
    """
    root = Path(folder)
    if not root.is_dir():
        raise LengthsError(f"{folder}: no such folder")
    left_out = list(exclude)
    sizes: list[tuple[str, int]] = []
    for path in root.rglob("*"):
        parts = path.relative_to(root).parts
        wanted = fnmatchcase(path.name, pattern) and not any(fnmatchcase(part, p) for part in parts for p in left_out)
        if wanted and path.is_file():
            sizes.append(("/".join(parts), path.stat().st_size))
    filled = [size for _, size in sorted(sizes) if size]
    if not filled:
        raise LengthsError(f"no file named like {pattern!r} with anything in it below {folder}")
    return filled, len(sizes) - len(filled)


def write_lengths(lengths: Iterable[int], stream: TextIO) -> None:
    """A CSV of one column, ``length``."""
    stream.write(f"{DEFAULT_COLUMN}\n")
    stream.writelines(f"{length}\n" for length in lengths)


def main(arguments: Sequence[str] | None = None) -> int:
    """``python -m harness.lengths``: exit code 0, or 2 for a folder that cannot be used."""
    parser = argparse.ArgumentParser(
        prog="python -m harness.lengths",
        description="Write the sizes in bytes of the files below a folder as a length file (CSV).",
    )
    parser.add_argument("folder", metavar="DIR")
    parser.add_argument("--glob", default="*", metavar="PATTERN", help="file names to take, for instance '*.py' (default: all)")
    parser.add_argument(
        "--exclude",
        action="append",
        default=list(HIDDEN),
        metavar="PATTERN",
        help=f"file or folder names to leave out, beside {', '.join(HIDDEN)}",
    )
    parser.add_argument("--out", metavar="FILE", help="default: standard output")
    given = parser.parse_args(arguments)
    try:
        lengths, empty = file_lengths(given.folder, given.glob, given.exclude)
        if given.out is None:
            write_lengths(lengths, sys.stdout)
        else:
            with open(given.out, "w", encoding="utf-8", newline="\n") as stream:
                write_lengths(lengths, stream)
    except (LengthsError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{len(lengths)} files, {sum(lengths)} bytes (not tokens); {empty} empty files left out", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
