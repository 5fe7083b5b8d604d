"""An attention function for Hugging Face Transformers: ``register()``, then ``attn_implementation="fm3"``.

Transformers asks for a mask once per forward pass and hands what it gets to every layer. Here that is a
:class:`fm3_kernel.model_mask.ModelMask`, O(N) memory in place of a dense ``[B, 1, Sq, Sk]`` mask; the first layer makes a
prepared column mask of it, the others share that. Nothing here reads a tensor's content on the host, so nothing waits for the
GPU (Transformers' own search for packed documents does, once per forward pass).

What cannot be computed is refused, never ignored: see :func:`attention_forward`. Transformers is imported on use only.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import replace
from types import CodeType, FunctionType
from typing import Any

import torch
from torch import Tensor

from fm3_kernel.attention import flashmask_attention
from fm3_kernel.checks import FM3Error, full_name
from fm3_kernel.model_mask import NO_PACKING, ModelMask, Packing

NAME = "fm3"
"""The harness's name too. Not "flashmask": a name with "flash" in it is FlashAttention to Transformers, which then looks for
that package's functions under it and fails before anything registered is asked."""

OTHERS = "use attn_implementation='sdpa' or 'eager' for this model"

# Arguments that models hand through to every layer and that change nothing in attention itself.
HARMLESS = frozenset(
    {
        "cache_position",
        "logits_to_keep",
        "max_length_k",
        "max_length_q",
        "num_items_in_batch",
        "output_hidden_states",
        "output_router_logits",
        "past_key_values",
        "position_embeddings",
        "return_dict",
        "use_cache",
    }
)

# What is asked for by each of these, and what to do instead.
REFUSED = {
    "softcap": "scores cannot be capped",
    "s_aux": "there are no attention sinks",
    "sinks": "there are no attention sinks",
    "head_mask": "heads cannot be masked",
    "position_bias": "scores cannot get a bias",
    "output_attentions": "the weights are never formed",
    "block_table": "there is no paged cache",
}


def column_mask_function(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] | None = None,
    attention_mask: Tensor | ModelMask | None = None,
    device: torch.device | str = "cpu",
    **kwargs: Any,
) -> ModelMask:
    """What Transformers calls for a mask, once for each kind of layer (``AttentionMaskInterface``).

    Args:
        batch_size, q_length, kv_length: sizes of the dense mask.
        q_offset, kv_offset: positions of the first query and of the first key.
        mask_function: Transformers' own description: causal, bidirectional, sliding windows and packed documents are known.
        attention_mask: bool ``[B, keys]``, False for padding; keys beyond it are padding. Or what this function made before.
        device: not used; the layers say where they are.
        kwargs: hints for dense masks (dtype, whether a mask may be left out), without a meaning here.

    Raises:
        FM3Error: a mask function that is not known.
    """
    if isinstance(attention_mask, ModelMask):
        return attention_mask
    rules = _rules(mask_function)
    kept = attention_mask
    if kept is not None:
        kept = torch.nn.functional.pad(kept, (0, max(0, kv_offset + kv_length - kept.shape[1])))
        kept = kept[:, kv_offset : kv_offset + kv_length]
    causal = "causal" in rules
    window = rules.get("window" if causal else "two_sided_window")
    if ("two_sided_window" if causal else "window") in rules:
        kinds = "one-sided for a causal mask, two-sided for a bidirectional one"
        raise FM3Error(f"the model's mask has causal={causal} and the other kind of window; allowed: {kinds}. {OTHERS}")
    packed = "documents" in rules
    if (packed and not causal) or (not packed and "remapped" in rules):
        raise FM3Error(f"the model's mask has packed documents without a diagonal or without their numbers; {OTHERS}")
    packing = Packing(documents=rules.get("documents"))
    shift = kv_offset - q_offset
    return ModelMask(batch_size, q_length, kv_length, causal, shift, window, kept, packing)


@functools.cache
def _known_closures() -> dict[CodeType, tuple[str, str]]:
    """What the closures of this version of Transformers mean, by their code: the rule, and the variable that holds it.

    Mask functions are closures over single elements, and calling them would mean the dense mask. So each is known by its
    code, which all closures that one builder returns share.
    """
    from transformers import masking_utils

    nothing = torch.empty(0)
    builders: tuple[tuple[str, tuple[Any, ...], str, str], ...] = (
        ("and_masks", (masking_utils.causal_mask_function,), "all", "mask_functions"),
        ("sliding_window_overlay", (1,), "window", "sliding_window"),
        ("sliding_window_bidirectional_overlay", (1,), "two_sided_window", "sliding_window"),
        ("packed_sequence_mask_function", (nothing,), "documents", "packed_sequence_mask"),
        ("remap_positions_for_packed_sequence", (masking_utils.causal_mask_function, nothing), "remapped", "mask_function"),
    )
    found = {}
    for name, arguments, rule, variable in builders:
        builder = getattr(masking_utils, name, None)
        if builder is not None:
            code = builder(*arguments).__code__
            if variable in code.co_freevars:
                found[code] = (rule, variable)
    return found


def _rules(mask_function: Callable[..., Any] | None) -> dict[str, Any]:
    """The rules that a mask function of Transformers holds together with "and", by name."""
    from transformers import masking_utils

    if mask_function is masking_utils.causal_mask_function:
        return {"causal": True}
    if mask_function is masking_utils.bidirectional_mask_function:
        return {}
    code = getattr(mask_function, "__code__", None)
    rule, variable = _known_closures().get(code, ("unknown", "")) if code is not None else ("unknown", "")
    if rule == "unknown":
        name = getattr(mask_function, "__qualname__", repr(mask_function))
        raise FM3Error(
            f"the model asks for a mask that holds {name}; allowed: causal or bidirectional, sliding windows, packed "
            f"documents, padding. {OTHERS}, or call flashmask_attention with a ColumnMask of your own"
        )
    assert isinstance(mask_function, FunctionType) and mask_function.__closure__ is not None
    held = mask_function.__closure__[mask_function.__code__.co_freevars.index(variable)].cell_contents
    if rule == "remapped":
        # Within a document positions and rows differ by a constant, which neither a diagonal nor a window notices.
        return _rules(held) | {"remapped": True}
    if rule != "all":
        return {rule: held}
    rules: dict[str, Any] = {}
    for part in held:
        found = _rules(part)
        for name in found.keys() & rules.keys() - {"causal", "remapped"}:
            raise FM3Error(f"the model's mask has two rules of the kind {name!r}; {OTHERS}")
        rules |= found
    return rules


def attention_forward(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: ModelMask | Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    is_causal: bool | None = None,
    deterministic: bool | None = None,
    position_ids: Tensor | None = None,
    seq_idx: Tensor | None = None,
    cu_seq_lens_q: Tensor | None = None,
    cu_seq_lens_k: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """What every layer of a model calls (``AttentionInterface``).

    Args:
        module: the layer. Its ``is_causal`` counts where neither a mask nor the argument says.
        query: ``[B, Hq, Sq, D]``; key, value: ``[B, Hkv, Sk, D]``. Dtypes as in ``flashmask_attention``.
        attention_mask: a :class:`ModelMask`; a padding mask ``[B, Sk]``, non-zero for what is kept; or None.
        dropout: only 0.
        scaling: factor of the scores, default ``1/sqrt(D)``.
        sliding_window: a row sees keys at a distance below this.
        is_causal: must not contradict the mask.
        deterministic: as in ``flashmask_attention``.
        position_ids: ``[B or 1, Sq]``. In a causal model without padding a new document begins where they do not grow by 1,
            Transformers' own rule; here it holds with a cache too. Rotary coordinates, ``[n, B, Sq]``, are no documents.
        seq_idx: integer ``[B or 1, Sq]``, in place of position_ids: the number of each token's document. Causal layers only.
        cu_seq_lens_q, cu_seq_lens_k: integer ``[documents + 1]``, from 0, both or none, batch 1; in place of both others, and
            the only form for a bidirectional layer.
        kwargs: refused by name unless known to change nothing, None or False.

    Returns:
        ``out`` ``[B, Sq, Hq, D]``, and None for the weights, which are never formed. A row of padding that sees nothing is 0.

    Raises:
        FM3Error (a ValueError): what this cannot compute. TypeError: a wrong type or dtype.
    """
    _refuse(dropout, kwargs)
    rows, columns = query.shape[2], key.shape[2]
    mask = _model_mask(module, attention_mask, is_causal, query.shape[0], rows, columns)
    packing = NO_PACKING
    if cu_seq_lens_q is not None or cu_seq_lens_k is not None:
        packing = _lengths(cu_seq_lens_q, cu_seq_lens_k, query.shape[0], rows, columns)
    elif seq_idx is not None:
        if not mask.causal:
            raise FM3Error("seq_idx is given to a bidirectional layer; allowed there: cu_seq_lens_q and cu_seq_lens_k")
        packing = Packing(documents=_of_rows("seq_idx", seq_idx, query.shape[0], rows))
    elif _tells_documents(position_ids, mask):
        assert position_ids is not None
        packing = Packing(positions=_of_rows("position_ids", position_ids, query.shape[0], rows))
    window = None
    if sliding_window is not None:
        window = sliding_window if mask.causal else sliding_window - 1
    out = flashmask_attention(
        query.transpose(1, 2),
        key.transpose(1, 2),
        value.transpose(1, 2),
        mask.prepared(query.device, window, packing),
        scale=scaling,
        deterministic=bool(deterministic),
    )
    return out, None


def _refuse(dropout: float, kwargs: dict[str, Any]) -> None:
    if dropout != 0.0:
        raise FM3Error(
            f"dropout is {dropout}; only 0.0 is supported: set the config's attention dropout to 0.0 "
            "(attention_dropout in most models), or call model.eval()"
        )
    for name, value in kwargs.items():
        if value is None or value is False or name in HARMLESS:
            continue
        given = tuple(value.shape) if isinstance(value, Tensor) else value
        why = REFUSED.get(name, "its meaning is not known here")
        raise FM3Error(f"{name} is {given!r}; only None is supported, {why}: {OTHERS}")


def _model_mask(
    module: torch.nn.Module, mask: object, is_causal: bool | None, batch: int, rows: int, columns: int
) -> ModelMask:
    """The mask that the model made, or one for this layer alone where it made none."""
    if isinstance(mask, ModelMask):
        if is_causal is not None and is_causal != mask.causal and rows > 1:
            raise FM3Error(
                f"is_causal is {is_causal} and the model's mask has causal={mask.causal}; they must agree "
                "(config.is_causal=False makes a decoder bidirectional)"
            )
        if (mask.rows, mask.columns) != (rows, columns):
            raise FM3Error(
                f"the model's mask has {mask.rows} rows and {mask.columns} columns, this layer {rows} and {columns}; "
                f"they must be equal: {OTHERS}"
            )
        return mask
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    unpadded = ModelMask(batch, rows, columns, causal, rows - columns)
    if mask is None:
        return unpadded
    if not isinstance(mask, Tensor):
        raise TypeError(f"attention_mask is a {full_name(mask)}; expected what the model's own mask function returns")
    if tuple(mask.shape) != (batch, columns):
        raise FM3Error(
            f"attention_mask has shape {tuple(mask.shape)}; allowed: a padding mask [batch={batch}, keys={columns}]. For a "
            f"dense mask {OTHERS}, or call flashmask_attention with a ColumnMask (masks.convert makes one of a dense mask)"
        )
    return replace(unpadded, kept=mask != 0)


def _lengths(cu_q: Tensor | None, cu_k: Tensor | None, batch: int, rows: int, columns: int) -> Packing:
    if cu_q is None or cu_k is None:
        missing = "cu_seq_lens_q" if cu_q is None else "cu_seq_lens_k"
        raise FM3Error(f"{missing} is missing; give both cumulative lengths, or position_ids that restart")
    if batch != 1:
        raise FM3Error(f"cumulative lengths are given and the batch is {batch}; packed documents need a batch of 1")
    if cu_q.dim() != 1 or cu_q.shape != cu_k.shape or cu_q.numel() < 2:
        raise FM3Error(
            f"cu_seq_lens_q has shape {tuple(cu_q.shape)}, cu_seq_lens_k {tuple(cu_k.shape)}; expected [documents + 1] for both"
        )
    if cu_q is cu_k and rows != columns:
        raise FM3Error(f"cu_seq_lens_q is cu_seq_lens_k, with {rows} queries and {columns} keys; each needs lengths of its own")
    return Packing(cu_q=cu_q, cu_k=cu_k)


def _tells_documents(position_ids: Tensor | None, mask: ModelMask) -> bool:
    """Not of a single row, which begins no document; not where Transformers has looked already; not beside padding, where
    positions say how the padding was counted."""
    if position_ids is None or position_ids.dim() != 2:
        return False
    return mask.causal and mask.rows > 1 and mask.kept is None and not mask.packing.given()


def _of_rows(name: str, values: Tensor, batch: int, rows: int) -> Tensor:
    if values.dim() != 2 or values.shape[0] not in (1, batch) or values.shape[1] != rows:
        raise FM3Error(f"{name} has shape {tuple(values.shape)}; expected [{batch} or 1, {rows}]")
    return values


def register() -> None:
    """Make the name known to Transformers: ``from_pretrained(..., attn_implementation="fm3")``. May be called again.

    Raises:
        ImportError: Transformers is not installed, or is older than 5.4.
    """
    try:
        from transformers import AttentionInterface, AttentionMaskInterface, __version__, masking_utils
    except ImportError as error:
        raise ImportError("register() needs transformers: pip install 'transformers>=5.4'") from error
    if "q_offset" not in inspect.signature(masking_utils.sdpa_mask).parameters:
        raise ImportError(f"transformers is {__version__}; register() needs 5.4 or later")
    AttentionInterface.register(NAME, attention_forward)
    AttentionMaskInterface.register(NAME, column_mask_function)
