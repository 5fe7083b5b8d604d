"""The one error of the configuration, and the sentence for a name that is not known."""

from __future__ import annotations

from collections.abc import Iterable

from masks.spelling import allowed_names


class ConfigError(ValueError):
    """A configuration that cannot be run. The message says what was given and what is allowed."""


def refusal(what: str, given: object, allowed: Iterable[str]) -> str:
    """``what`` was given as ``given``; the allowed names, and the nearest of them when one is near."""
    return f"{what}={given} is not known; {allowed_names(given, allowed)}"
