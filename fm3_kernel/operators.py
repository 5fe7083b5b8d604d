"""The PyTorch operators ``fm3::attention_forward`` and ``fm3::attention_backward``.

They carry a column mask, and what was prepared of it, flattened to tensors and numbers through the dispatcher, so that
autograd, ``torch.compile`` and fake tensors work. The implementation is chosen here, by device and by what the caller asked
for. Arguments are checked by the public door (``fm3_kernel.attention``); what one implementation asks beyond that, by it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fm3_kernel import ampere, hopper, hopper_backward, hopper_forward, reference
from masks.column_mask import ColumnMask

_MASK = "Tensor? lts, Tensor? lte, Tensor? uts, Tensor? ute, Tensor? block_mask, Tensor? bounds, Tensor? order, bool causal"
_OPTIONS = "float scale, bool deterministic, str implementation"

library = torch.library.Library("fm3", "DEF")
library.define(f"attention_forward(Tensor q, Tensor k, Tensor v, {_MASK}, {_OPTIONS}) -> (Tensor out, Tensor lse)")
library.define(
    "attention_backward(Tensor dout, Tensor? dlse, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, "
    f"{_MASK}, {_OPTIONS}, bool need_q, bool need_k, bool need_v) -> (Tensor dq, Tensor dk, Tensor dv)"
)

OptionalTensor = Tensor | None


def _mask(q: Tensor, k: Tensor, tensors: tuple[OptionalTensor, ...], causal: bool) -> ColumnMask:
    lts, lte, uts, ute, block_mask = tensors
    return ColumnMask(lts, lte, uts, ute, block_mask, causal, seqlen_q=q.shape[1], seqlen_k=k.shape[1])


def implementation_of(q: Tensor, asked: str) -> str:
    """Which implementation computes: the one asked for, or for ``auto`` the kernel of q's GPU, where there is one."""
    if asked != "auto":
        return asked
    if q.is_cuda and hopper.is_hopper(q.device):
        return "hopper"
    return "ampere" if q.is_cuda and ampere.runs_on(q.device) else "reference"


def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lts: OptionalTensor,
    lte: OptionalTensor,
    uts: OptionalTensor,
    ute: OptionalTensor,
    block_mask: OptionalTensor,
    bounds: OptionalTensor,
    order: OptionalTensor,
    causal: bool,
    scale: float,
    deterministic: bool,
    implementation: str,
    *,
    preparation: hopper.Preparation | None = None,
    call: object = None,
) -> tuple[Tensor, Tensor]:
    # Every forward implementation is deterministic, so the flag has nothing to choose here.
    chosen = implementation_of(q, implementation)
    if chosen != "reference":
        if preparation is None and bounds is not None and order is not None:
            preparation = hopper.Preparation(bounds, order)
        tensors = hopper.MaskTensors(lts, lte, uts, ute, block_mask, causal)
        if chosen == "ampere":
            return ampere.forward(q, k, v, tensors, scale, preparation)
        return hopper_forward.forward(q, k, v, tensors, scale, preparation, call)
    return reference.forward(q, k, v, _mask(q, k, (lts, lte, uts, ute, block_mask), causal), scale)


def _backward(
    dout: Tensor,
    dlse: OptionalTensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    lts: OptionalTensor,
    lte: OptionalTensor,
    uts: OptionalTensor,
    ute: OptionalTensor,
    block_mask: OptionalTensor,
    bounds: OptionalTensor,
    order: OptionalTensor,
    causal: bool,
    scale: float,
    deterministic: bool,
    implementation: str,
    need_q: bool,
    need_k: bool,
    need_v: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    chosen = implementation_of(q, implementation)
    if chosen != "reference":
        kernel = ampere.backward if chosen == "ampere" else hopper_backward.backward
        found = kernel(
            *(dout, dlse, q, k, v, out, lse),
            hopper.MaskTensors(lts, lte, uts, ute, block_mask, causal),
            scale,
            None if bounds is None or order is None else hopper.Preparation(bounds, order),
            deterministic,
        )
        needs = (need_q, need_k, need_v)
        wanted = [x if need else x.new_empty(0) for x, need in zip(found, needs, strict=True)]
        return wanted[0], wanted[1], wanted[2]
    mask = _mask(q, k, (lts, lte, uts, ute, block_mask), causal)
    dq, dk, dv = reference.backward(dout, dlse, q, k, v, out, lse, mask, scale, needs=(need_q, need_k, need_v))
    # An operator cannot return None: a gradient that nobody wants is a tensor of no elements.
    return (
        q.new_empty(0) if dq is None else dq,
        k.new_empty(0) if dk is None else dk,
        v.new_empty(0) if dv is None else dv,
    )


def _fake_forward(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    lse_dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    return q.new_empty(q.shape), q.new_empty((q.shape[0], q.shape[2], q.shape[1]), dtype=lse_dtype)


def _fake_backward(
    dout: Tensor, dlse: OptionalTensor, q: Tensor, k: Tensor, v: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor]:
    wanted = zip((q, k, v), rest[-3:], strict=True)
    dq, dk, dv = (x.new_empty(x.shape) if need else x.new_empty(0) for x, need in wanted)
    return dq, dk, dv


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    # The mask is saved whole: without it the backward would silently be that of another problem. Saved tensors are
    # also version-checked, so a mask changed in place between the passes is an error and not a wrong gradient.
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs[:10], *output)
    ctx.options = inputs[10:]


def _attention_backward(ctx: Any, dout: OptionalTensor, dlse: OptionalTensor) -> tuple[OptionalTensor, ...]:
    q, k, v, *mask, out, lse = ctx.saved_tensors
    needs = tuple(ctx.needs_input_grad[:3])
    grads: tuple[OptionalTensor, ...] = (None, None, None)
    if any(needs) and not (dout is None and dlse is None):
        if dout is None:
            dout = torch.zeros_like(out)
        found = torch.ops.fm3.attention_backward(dout, dlse, q, k, v, out, lse, *mask, *ctx.options, *needs)
        grads = tuple(grad if need else None for grad, need in zip(found, needs, strict=True))
    return (*grads, *(None,) * 11)


def _no_double_backward(ctx: Any, *grads: OptionalTensor) -> tuple[None, ...]:
    raise RuntimeError(
        "flashmask_attention has no second derivative: its backward was differentiated (create_graph=True). "
        "Use dense attention for a gradient penalty"
    )


class Attention(torch.autograd.Function):
    """The operator and its gradient without the dispatcher, for calls that nobody traces: a fifth of the time on the host."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, rest: tuple[Any, ...], extra: dict[str, Any]
    ) -> tuple[Tensor, Tensor]:
        """``rest``: the operator's arguments after v; ``extra``: those that only this way has."""
        output = _forward(q, k, v, *rest, **extra)
        _save(ctx, (q, k, v, *rest), output)
        return output

    @staticmethod
    def backward(ctx: Any, *grads: OptionalTensor) -> tuple[OptionalTensor, ...]:
        """As the operator's."""
        return (*_attention_backward(ctx, *grads)[:3], None, None)


def attention_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rest: tuple[Any, ...],
    preparation: hopper.Preparation | None,
    watched: bool,
    call: object,
) -> tuple[Tensor, Tensor]:
    """``fm3::attention_forward``, by the shortest way that everything sees which watches this call.

    Args:
        rest: the operator's arguments after v. preparation: of the mask, the same that is in ``rest``, or None.
        watched: what :func:`is_watched` says of the call.
        call: equal for calls of equal sizes, strides, dtypes and devices, so that what follows from those is found again; None
            for a call of its own.
    """
    needed = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
    # Refused here rather than after the forward pass; a compiled call meets the same refusal in its backward pass.
    if needed and not torch.compiler.is_compiling() and implementation_of(q, rest[-1]) == "ampere":
        ampere.check_gradients(q.shape[3])
    if watched:
        out, lse = torch.ops.fm3.attention_forward(q, k, v, *rest)
    elif needed:
        out, lse = Attention.apply(q, k, v, rest, {"preparation": preparation, "call": call})
    else:
        out, lse = _forward(q, k, v, *rest, preparation=preparation, call=call)
    return out, lse


def is_watched(q: Tensor, k: Tensor, v: Tensor, others: tuple[OptionalTensor, ...]) -> bool:
    """Whether a compiler, a mode, a function transform, a tracer, the profiler, the meta device or a tensor that is more than
    a tensor must see the operator."""
    if torch.compiler.is_compiling() or type(q) not in _PLAIN or type(k) not in _PLAIN or type(v) not in _PLAIN or q.is_meta:
        return True
    for x in others:
        if x is not None and type(x) not in _PLAIN:
            return True
    return (
        torch._C._len_torch_dispatch_stack() > 0
        or torch._C._len_torch_function_stack() > 0
        or torch._C._functorch.peek_interpreter_stack() is not None
        or torch._C._get_tracing_state() is not None
        or torch._C._autograd._profiler_enabled()
    )


_PLAIN = (Tensor, torch.nn.Parameter)


library.impl("attention_forward", _forward, "CompositeExplicitAutograd")
library.impl("attention_backward", _backward, "CompositeExplicitAutograd")
torch.library.register_fake("fm3::attention_forward", _fake_forward, lib=library)
torch.library.register_fake("fm3::attention_backward", _fake_backward, lib=library)
torch.library.register_autograd("fm3::attention_forward", _attention_backward, setup_context=_save, lib=library)
torch.library.register_autograd("fm3::attention_backward", _no_double_backward, lib=library)
