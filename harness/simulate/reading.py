"""Strict reading of the YAML files that describe clusters and rates: every wrong entry is named, none is guessed."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from harness import strict_yaml
from harness.strict_yaml import YamlError
from masks.spelling import allowed_names


class ClusterError(ValueError):
    """A file that does not describe a cluster, or a question that the cluster cannot hold; names the entry."""


def load(path: Path) -> dict[str, Any]:
    """The file's mapping.

    Raises:
        ClusterError: no such file, not strict YAML, not a mapping.
    """
    try:
        return mapping(strict_yaml.load(path), path.name)
    except YamlError as error:
        raise ClusterError(str(error)) from error


def mapping(value: Any, where: str) -> dict[str, Any]:
    """The value itself when it is a mapping by name."""
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise ClusterError(f"{where} is {value!r}; it must be a mapping of names to values")
    return value


def entries(value: Any, where: str, needed: Iterable[str], optional: Iterable[str] = ()) -> dict[str, Any]:
    """A mapping with all of ``needed`` and nothing beside ``optional``."""
    found, needed = mapping(value, where), tuple(needed)
    known = (*needed, *optional)
    for key in found:
        if key not in known:
            raise ClusterError(f"{where} has an unknown entry {key!r}; {allowed_names(key, known)}")
    missing = [key for key in needed if key not in found]
    if missing:
        raise ClusterError(f"{where} lacks {', '.join(missing)}")
    return found


def number(value: Any, where: str, *, least: float = 0.0, above: bool = False, most: float = math.inf) -> float:
    """A finite number from ``least`` (or above it) to ``most``."""
    good = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300
    if not good or value < least or (above and value == least) or value > most:
        bounds = f"{'above' if above else 'at least'} {least:g}" + (f" and at most {most:g}" if most < math.inf else "")
        raise ClusterError(f"{where} is {value!r}; it must be a number {bounds}")
    return float(value)


def count(value: Any, where: str) -> int:
    """An integer, at least 1."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ClusterError(f"{where} is {value!r}; it must be an integer, at least 1")
    return value


def text(value: Any, where: str) -> str:
    """A text with something in it."""
    if not isinstance(value, str) or not value.strip():
        raise ClusterError(f"{where} is {value!r}; it must be a text")
    return value.strip()
