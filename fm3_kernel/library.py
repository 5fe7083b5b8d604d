"""Loading a built library and calling into it: plain C functions by ctypes, every error code checked at once.

Functions take pointers, sizes and a stream, and return a ``cudaError_t``.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any


class CudaError(RuntimeError):
    """A CUDA call failed; raised where it happened, with CUDA's own name for the fault when torch knows it."""


@cache
def load(name: str) -> ctypes.CDLL:
    """The library of an instance, built if need be, loaded once a process.

    Raises:
        BuildError: it cannot be built.
    """
    from fm3_kernel.build import build  # here, so that `python -m fm3_kernel.build` is not imported before it runs

    return ctypes.CDLL(str(build(name).library))


def check(code: int, what: str) -> None:
    """Raise on any code but 0.

    Raises:
        CudaError: names the call and the fault.
    """
    if code:
        raise CudaError(f"{what} failed with CUDA error {code} ({_name(code)})")


def _name(code: int) -> str:
    import torch

    runtime: Any = torch.cuda.cudart() if torch.cuda.is_available() else None
    return str(runtime.cudaGetErrorString(runtime.cudaError(code))) if runtime is not None else "no CUDA device here"
