"""Attention whose keys come in parts: merging the results of parts, and the gradients that one part gives.

Each part is an ordinary call of :func:`fm3_kernel.flashmask_attention` over some of the keys. Merged by their log-sum-exp
they are the result over all keys. Backwards no part needs the others: with the merged ``out`` and ``lse`` in the place of
its own, a part's backward gives its share of dq and the whole of its dk and dv.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fm3_kernel.checks import check_tensors, scale_or_default
from fm3_kernel.prepare import PreparedMask


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which results of parts are summed: fp32, fp64 for fp64."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def merge(out: Tensor, lse: Tensor, other_out: Tensor, other_lse: Tensor) -> tuple[Tensor, Tensor]:
    """The result over the keys of both parts, which share no key.

    Args:
        out, other_out: ``[B, Sq, Hq, D]``, in any dtype.
        lse, other_lse: ``[B, Hq, Sq]``, natural logarithms; -inf where a row saw no key of the part, and its out is 0 there.

    Returns:
        ``out`` in the dtype of sums and ``lse``, new tensors. ``(0, -inf)`` changes nothing.
    """
    both = torch.logaddexp(lse, other_lse)
    # A row without a key so far has -inf here; 0 instead keeps -inf - (-inf) out of the exponent.
    base = both.masked_fill(both == -torch.inf, 0)
    first, second = (torch.exp(part - base).transpose(1, 2).unsqueeze(-1) for part in (lse, other_lse))
    # Both products promote by themselves: a copy of either in the dtype of sums would be gone over once more.
    return torch.addcmul(out * first, other_out, second), both


def part_gradients(
    dout: Tensor,
    dlse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    mask: PreparedMask,
    *,
    scale: float | None = None,
    deterministic: bool = False,
    implementation: str = "auto",
) -> tuple[Tensor, Tensor, Tensor]:
    """What the keys of one part give to the gradients of the merged result.

    Args:
        dout, dlse: gradients of the merged ``out`` and ``lse``; ``dlse`` may be None.
        q: ``[B, Sq, Hq, D]``. k, v: ``[B, Sk, Hkv, D]``, of the part.
        out, lse: merged over all parts, ``out`` in the dtype of q.
        mask: the part's, prepared.
        scale, deterministic, implementation: as in the call of the part.

    Returns:
        The part's share of dq, and its dk and dv; shapes and dtypes of q, k and v.

    Raises:
        FM3Error, TypeError: tensors that do not fit together.
    """
    check_tensors(q, k, v)
    preparation = None if implementation == "reference" else mask.current()
    prepared = (None, None) if preparation is None else (preparation.bounds, preparation.order)
    whole = mask.mask
    vectors = (whole.lts, whole.lte, whole.uts, whole.ute, whole.block_mask)
    options = (scale_or_default(scale, q.shape[3]), deterministic, implementation)
    found: tuple[Tensor, Tensor, Tensor] = torch.ops.fm3.attention_backward(
        *(dout, dlse, q, k, v, out, lse, *vectors, *prepared, whole.causal, *options), True, True, True
    )
    return found
