"""FlashAttention 3: the Hopper kernels, built from the folder ``hopper`` of the flash-attention repository.

Interface of version 3.0.0b1 at commit 01afd16. Earlier builds of the same version number return the LSE unasked and take
no ``return_attn_probs``; they are told apart when it is loaded.
"""

from __future__ import annotations

from harness.backends.flash_attention import FlashAttention
from harness.backends.package import Package

INSTALL = "pip install --no-build-isolation 'git+https://github.com/Dao-AILab/flash-attention#subdirectory=hopper'"


class FlashAttn3(FlashAttention):
    """``flash_attn_interface``."""

    name = "flash_attn_3"
    title = "FlashAttention 3"
    package = Package("flash_attn_3", "flash_attn_interface", "3.0.0b1", INSTALL, (9,))
