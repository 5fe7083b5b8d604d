"""Exact attention under a column mask. The public door is :func:`flashmask_attention`."""

from fm3_kernel.attention import flashmask_attention
from fm3_kernel.checks import FM3Error

__all__ = ["FM3Error", "flashmask_attention"]
