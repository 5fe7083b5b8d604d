"""FlexAttention, compiled: the Triton kernels with default options, and the FLASH backend where it can be imported.

The mask is handed over as its users do: a ``mask_mod`` compiled into the kernel and a ``BlockMask`` of 128x128 tiles.
The block mask comes from the tile classes, never from a dense mask: at 128K the dense one would take 16 GiB.
"""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable
from typing import Any, ClassVar

import torch

from harness.backends.base import Attend, Availability, Backend, torch_version
from harness.cases import Problem
from harness.provenance import package_version
from masks.column_mask import ColumnMask
from masks.families.global_sliding_window import GLOBAL_TOKENS

MaskMod = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def closed_form(problem: Problem) -> MaskMod | None:
    """The ``mask_mod`` that a user would write for a window, without looking anything up; None for other families.

    The gate checks it against the column mask like everything else.
    """
    spec, seqlen = problem.mask, problem.seqlen
    window = spec.params.get("window")

    def sliding(b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        return (q >= kv) & (q - kv < size)

    def sliding_and_global(b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        return (kv < first) | (q < first) | ((q - kv <= size) & (kv - q <= size))

    if spec.family == "sliding_window":
        size = max(1, seqlen // 16) if window is None else int(window)
        return sliding
    if spec.family == "global_sliding_window":
        size = seqlen // 16 if window is None else int(window)
        first = int(spec.params.get("global_tokens", GLOBAL_TOKENS))
        return sliding_and_global
    return None


class Flex(Backend):
    """FlexAttention with default options."""

    name = "flex"
    title = "FlexAttention"
    sources = ("masks/convert/flex.py", "masks/tiles.py")
    kernel_options: ClassVar[Any] = None

    def probe(self, device: str) -> Availability:
        """Triton on a GPU, a C++ compiler on a CPU."""
        version = f"torch {torch_version()}"
        if device == "cuda":
            triton = package_version("triton")
            if triton is None:
                return Availability(False, reason="triton is not installed", install="pip install triton")
            return Availability(True, f"{version}, triton {triton}")
        if shutil.which("g++") is None and shutil.which("clang++") is None:
            return Availability(False, reason="no C++ compiler on PATH", install="install g++")
        return Availability(True, version)

    def unsupported(self, problem: Problem, mask: ColumnMask, pass_: str, device: str) -> str | None:
        """On a CPU only the forward pass exists."""
        if device == "cpu" and pass_ != "forward":
            return "FlexAttention has no backward pass on a CPU"
        return None

    def prepare(self, problem: Problem, mask: ColumnMask) -> Attend:
        """Builds the block mask and the compiled function; the first call compiles."""
        # Imported here: the compiler behind it takes seconds to load, and most processes never need it.
        from torch.nn.attention.flex_attention import flex_attention

        from masks.convert import to_flex_block_mask

        block_mask = to_flex_block_mask(mask, problem.heads, closed_form(problem))
        compiled = torch.compile(flex_attention, dynamic=False, fullgraph=True)
        grouped = problem.heads != problem.kv_heads
        options = self.kernel_options

        def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, None]:
            return compiled(q, k, v, block_mask=block_mask, enable_gqa=grouped, kernel_options=options), None

        return attend


class FlexFlash(Flex):
    """FlexAttention on FlashAttention 4's kernels."""

    name = "flex_flash"
    title = "FlexAttention (FLASH backend)"
    kernel_options: ClassVar[Any] = {"BACKEND": "FLASH"}

    def probe(self, device: str) -> Availability:
        """Needs the package flash-attn-4 and a GPU."""
        if device != "cuda":
            return Availability(False, reason="needs an NVIDIA GPU", install="run on a machine with one")
        try:
            found = importlib.util.find_spec("flash_attn.cute") is not None
        except ModuleNotFoundError:
            found = False
        if not found:
            return Availability(False, reason="flash_attn.cute is not importable", install="pip install flash-attn-4")
        return Availability(True, f"torch {torch_version()}, flash-attn-4 {package_version('flash-attn-4')}")
