"""The files that a command writes: refused before anything is done, and then written all together or not at all.

Each is written beside its place and renamed into it, so that no reader sees half a file and a full disk leaves what was there.
Rows are not written here (``harness.store``), nor figures (``plots.files``).
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path


class OutputError(ValueError):
    """A file that cannot be written, or two that are one; names the option and the path."""


def check(paths: Mapping[str, Path | None], read: Mapping[str, Path]) -> None:
    """Whether all of these can be written, as far as can be told without writing.

    Args:
        paths: by the option that named them; None where it did not.
        read: files that are read, by option: none of these may be written.

    Raises:
        OutputError: a folder that is not there or may not be written to, a path that is a folder, one path under two options.
    """
    seen = {path.resolve(): option for option, path in read.items()}
    for option, path in paths.items():
        if path is None or _is_special(path):
            continue
        place = path.resolve()
        if not place.parent.is_dir():
            raise OutputError(f"{option}={path} cannot be written: no folder {path.parent}")
        if place.is_dir():
            raise OutputError(f"{option}={path} cannot be written: it is a folder")
        if not os.access(place.parent, os.W_OK) or (place.exists() and not os.access(place, os.W_OK)):
            raise OutputError(f"{option}={path} cannot be written: no permission")
        if place in seen:
            raise OutputError(f"{option}={path} is the file of {seen[place]} too; allowed: a file of its own for each")
        seen[place] = option


def write(texts: Mapping[Path, str]) -> None:
    """Write files whole, UTF-8: either all of them or none. What is no plain file, such as ``/dev/stdout``, is written to.

    Raises:
        OSError: with the name of the file that could not be written; the others are as they were.
    """
    parts: dict[Path, Path] = {}
    path = Path()
    try:
        for path, text in texts.items():
            if _is_special(path):
                path.write_text(text, encoding="utf-8")
                continue
            place = path.resolve()
            parts[path] = place.with_name(f".{place.name}.{os.getpid()}.part")
            _fill(parts[path], place, text)
        for path, part in parts.items():
            part.replace(path.resolve())
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        for part in parts.values():
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)


def _is_special(path: Path) -> bool:
    """Whether it is a device, a pipe or the like, which has no place to rename a file into."""
    return path.exists() and not path.is_file() and not path.is_dir()


def _fill(part: Path, place: Path, text: str) -> None:
    """All of the text on the disk, with the permissions of the file that it takes the place of."""
    with part.open("wb") as stream:
        stream.write(text.encode("utf-8", "surrogateescape"))  # what was in a file that is added to, whatever it was
        stream.flush()
        os.fsync(stream.fileno())
    if place.exists():
        shutil.copymode(place, part)
