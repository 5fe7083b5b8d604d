"""The correctness gate: no speed is recorded for a result that is wrong.

``oracle`` computes sampled blocks densely in higher precision, ``census`` counts every visible pair through the kernel
itself, ``check`` applies the rule to one competitor.
"""

from harness.gate.check import Incorrect, check

__all__ = ["Incorrect", "check"]
