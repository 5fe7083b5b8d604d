"""Context parallelism: one sequence over several ranks. Who computes which rows and needs which keys, and the attention itself.

The plan is pure functions of the mask and of the group's shape, in NumPy, which every rank works out for itself. The runtime,
:class:`ContextParallel`, moves keys and values as the plan says and calls the attention kernel on what is there.
"""

from context_parallel.group import ContextParallelError, ExchangeError
from context_parallel.runtime import ContextParallel

__all__ = ["ContextParallel", "ContextParallelError", "ExchangeError"]
