"""Nearest spelling of a name, for error messages. Nothing else."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def allowed_names(given: object, allowed: Iterable[str]) -> str:
    """``allowed: a, b, c`` and, when one of them looks like ``given``, ``(did you mean 'b'?)``."""
    names = [str(name) for name in allowed]
    text = f"allowed: {', '.join(names) or 'none'}"
    close = difflib.get_close_matches(str(given).lower(), names, n=1)
    return f"{text} (did you mean {close[0]!r}?)" if close else text
