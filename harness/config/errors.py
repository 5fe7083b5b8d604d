"""The one error of the configuration, and its sentences for a name that is not known or is there twice."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from masks.spelling import allowed_names


class ConfigError(ValueError):
    """A configuration that cannot be run. The message says what was given and what is allowed."""


def refusal(what: str, given: object, allowed: Iterable[str]) -> str:
    """``what`` was given as ``given``; the allowed names, and the nearest of them when one is near."""
    return f"{what}={given} is not known; {allowed_names(given, allowed)}"


def require_once(name: str, values: Sequence[object]) -> None:
    """Nothing is measured twice.

    Raises:
        ConfigError: a value of ``name`` is there more than once.
    """
    twice = sorted({str(value) for value in values if values.count(value) > 1})
    if twice:
        raise ConfigError(f"{name} names {', '.join(twice)} more than once.")
