"""What a command says when it cannot do what it was asked: one line on standard error, and its exit code."""

from __future__ import annotations

import sys


def complain(command: str, message: str, code: int) -> int:
    """Prints the line; returns the code."""
    print(f"{command}: {message}", file=sys.stderr)
    return code
