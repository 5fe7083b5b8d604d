"""Exact attention under a column mask. The public door is :func:`flashmask_attention`."""

from fm3_kernel.attention import flashmask_attention
from fm3_kernel.checks import FM3Error
from fm3_kernel.prepare import PreparedMask, prepare_mask

__all__ = ["FM3Error", "PreparedMask", "flashmask_attention", "prepare_mask"]
