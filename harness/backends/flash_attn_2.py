"""FlashAttention 2, from its own package (torch ships a copy without windows and packed documents: ``sdpa.py``).

Interface of flash-attn 2.7 to 2.8. Before 2.7 the LSE of packed documents had another layout.
"""

from __future__ import annotations

from harness.backends.flash_attention import FlashAttention
from harness.backends.package import Package


class FlashAttn2(FlashAttention):
    """``flash_attn``."""

    name = "flash_attn_2"
    title = "FlashAttention 2 (flash-attn)"
    package = Package("flash-attn", "flash_attn", "2.7", "pip install flash-attn --no-build-isolation", (8, 9, 10, 12))
