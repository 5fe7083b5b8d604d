"""FlashMask's signature: the same answers as the public door, windows against brute force, refusals by name."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from dense_reference import Result, assert_close, dense_attention, run, tensors

from fm3_kernel import FM3Error
from fm3_kernel import flashmask_attention as attention
from fm3_kernel.compat import flashmask_attention
from masks.column_mask import ColumnMask, MaskError

Inputs = tuple[torch.Tensor, ...]


def brute_force(indices: torch.Tensor | None, rows: int, columns: int, causal: bool) -> torch.Tensor:
    """bool ``[B, Hm, Sq, Sk]`` from the words of FlashMask's documentation."""
    shape = (1, 1) if indices is None else tuple(indices.shape[:2])
    seen = torch.ones((*shape, rows, columns), dtype=torch.bool)
    for i in range(rows):
        for j in range(columns):
            hidden = torch.zeros(shape, dtype=torch.bool)
            if indices is not None:
                at = indices[:, :, j].unbind(-1)
                if causal:
                    hidden = (i >= at[0]) & (i < (at[1] if len(at) == 2 else rows))
                elif len(at) == 2:
                    hidden = (i >= at[0]) | (i < at[1])
                else:
                    hidden = ((i >= at[0]) & (i < at[1])) | ((i >= at[2]) & (i < at[3]))
            seen[:, :, i, j] = ~hidden & (not causal or j <= i + columns - rows)
    return seen


def dense(inputs: Inputs, visible: torch.Tensor) -> Result:
    heads = inputs[0].shape[2]
    scale = inputs[0].shape[3] ** -0.5
    seen = visible.repeat_interleave(heads // visible.shape[1], dim=1)
    return run(lambda q, k, v: dense_attention(q, k, v, seen, scale), *inputs)


def ours(inputs: Inputs, *args: Any, **kwargs: Any) -> Result:
    return run(lambda q, k, v: flashmask_attention(q, k, v, *args, return_softmax_lse=True, **kwargs), *inputs)


@pytest.mark.parametrize(("causal", "count"), [(True, 1), (True, 2), (False, 2), (False, 4)])
@pytest.mark.parametrize("heads", [1, 2, 4])
@pytest.mark.parametrize(("rows", "columns"), [(12, 12), (9, 14)])
def test_every_form_of_the_indices(causal: bool, count: int, heads: int, rows: int, columns: int) -> None:
    generator = torch.Generator().manual_seed(count)
    indices = torch.randint(-2, rows + 3, (2, heads, columns, count), dtype=torch.int32, generator=generator)
    inputs = tensors(2, rows, columns, heads=4, kv_heads=2, width=4)
    assert_close(ours(inputs, indices, causal=causal), dense(inputs, brute_force(indices, rows, columns, causal)))


@pytest.mark.parametrize("causal", [False, True])
def test_no_indices(causal: bool) -> None:
    inputs = tensors(1, 7, 9, width=4)
    assert_close(ours(inputs, causal=causal), dense(inputs, brute_force(None, 7, 9, causal)))


def window(length: int, left: int, right: int, causal: bool) -> torch.Tensor:
    row, column = torch.arange(length).view(-1, 1), torch.arange(length)
    seen = (column >= row - left) & (column <= row + right)
    return (seen & (column <= row) if causal else seen).view(1, 1, length, length)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("size", [0, 1, 8, 9, 10, 2**31 - 1, (0, 3), (3, 0), (9, 1), (2, 10**12)])
def test_windows(size: int | tuple[int, int], causal: bool) -> None:
    left, right = (size, size) if isinstance(size, int) else size
    inputs = tensors(2, 9, 9, width=4)
    got = ours(inputs, window_size=size, causal=causal)
    assert_close(got, dense(inputs, window(9, min(left, 100), min(right, 100), causal)))


def test_a_window_as_wide_as_the_sequence_is_no_window() -> None:
    inputs = tensors(1, 140, 140, width=4)
    plain, wide = ours(inputs, causal=True), ours(inputs, causal=True, window_size=(139, 0))
    for a, b in zip(plain, wide, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("dtype", [torch.int32, torch.bool])
def test_block_mask_alone_and_with_indices(dtype: torch.dtype) -> None:
    keep = torch.tensor([[1, 0], [1, 1]], dtype=dtype).view(1, 1, 2, 2)
    tiles = keep.bool().repeat_interleave(128, 2).repeat_interleave(128, 3)[:, :, :150, :140]
    inputs = tensors(1, 150, 140, width=4)
    assert_close(ours(inputs, block_mask=keep), dense(inputs, tiles))
    indices = torch.full((1, 1, 140, 1), 145, dtype=torch.int32)
    both = tiles & brute_force(indices, 150, 140, True)
    assert_close(ours(inputs, indices, causal=True, block_mask=keep), dense(inputs, both))


def test_same_as_the_public_door() -> None:
    q, k, v, *_ = tensors(2, 20, 20, heads=4, kv_heads=2)
    indices = torch.randint(0, 20, (2, 2, 20, 1), dtype=torch.int32, generator=torch.Generator().manual_seed(0))
    mask = ColumnMask.from_startend_row_indices(indices, causal=True)
    out, lse = flashmask_attention(q, k, v, indices, causal=True, return_softmax_lse=True, softmax_scale=0.3)
    want_out, want_lse = attention(q, k, v, mask, scale=0.3, return_lse=True)
    assert torch.equal(out, want_out)
    assert torch.equal(lse, want_lse)
    alone = flashmask_attention(q, k, v, indices, causal=True, softmax_scale=0.3, training=False, name="layer0")
    assert torch.equal(alone, want_out)


def test_argument_order_and_defaults() -> None:
    parameters = inspect.signature(flashmask_attention).parameters
    assert list(parameters) == [
        "query", "key", "value", "startend_row_indices", "dropout", "causal", "window_size", "return_softmax_lse",
        "return_seed_offset", "fixed_seed_offset", "rng_name", "training", "name", "softmax_scale", "block_mask",
    ]  # fmt: skip
    positional = [name for name, p in parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert positional == ["query", "key", "value", "startend_row_indices"]
    defaults = {name: p.default for name, p in parameters.items() if p.default is not p.empty}
    assert {name for name, value in defaults.items() if value is None} == {
        "startend_row_indices", "window_size", "fixed_seed_offset", "name", "softmax_scale", "block_mask",
    }  # fmt: skip
    assert (defaults["dropout"], defaults["causal"], defaults["rng_name"], defaults["training"]) == (0.0, False, "", True)


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"dropout": 0.1}, FM3Error, "dropout is 0.1; only 0.0"),
    ({"return_seed_offset": True}, FM3Error, "return_seed_offset"),
    ({"fixed_seed_offset": torch.zeros(2)}, FM3Error, "fixed_seed_offset"),
    ({"rng_name": "local_seed"}, FM3Error, "rng_name is 'local_seed'"),
    ({"window_size": 2, "startend_row_indices": torch.zeros((1, 1, 8, 1), dtype=torch.int32)}, FM3Error, "both given"),
    ({"window_size": -1}, FM3Error, "window_size is -1"),
    ({"window_size": (-1, -3)}, FM3Error, r"window_size is \(-1, -3\)"),
    ({"window_size": (1, 2, 3)}, FM3Error, "expected an integer or"),
    ({"window_size": (1.5, 2)}, FM3Error, "expected an integer or"),
    ({"window_size": True}, FM3Error, "expected an integer or"),
    ({"window_size": 1.5}, FM3Error, "expected an integer or"),
    ({"window_size": 2, "query": torch.zeros((1, 6, 2, 4))}, FM3Error, "seqlen_q=6, seqlen_k=8"),
    ({"startend_row_indices": torch.zeros((1, 1, 8, 3), dtype=torch.int32)}, MaskError, "3 vectors with causal=False"),
    ({"startend_row_indices": torch.zeros((1, 1, 8, 1), dtype=torch.int32)}, MaskError, "1 vectors with causal=False"),
    (
        {"startend_row_indices": torch.zeros((1, 1, 8, 4), dtype=torch.int32), "causal": True},
        MaskError,
        "4 vectors with causal=True",
    ),
    ({"startend_row_indices": torch.zeros((1, 1, 8, 2))}, MaskError, "dtype torch.float32"),
    ({"startend_row_indices": torch.zeros((1, 8, 2), dtype=torch.int32)}, MaskError, "expected .batch, mask heads"),
    ({"startend_row_indices": torch.zeros((1, 1, 9, 2), dtype=torch.int32)}, MaskError, "9 columns"),
    ({"startend_row_indices": torch.zeros((1, 3, 8, 2), dtype=torch.int32)}, FM3Error, "3 heads; allowed"),
    ({"startend_row_indices": torch.zeros((2, 1, 8, 2), dtype=torch.int32)}, FM3Error, "batch 2; allowed"),
    ({"startend_row_indices": [[0]]}, TypeError, "startend_row_indices is a list"),
    ({"block_mask": torch.ones((1, 1, 1, 2), dtype=torch.int32)}, MaskError, "block mask is"),
    ({"block_mask": torch.ones((1, 1, 1, 1))}, TypeError, "block_mask has dtype torch.float32"),
    ({"block_mask": 1}, TypeError, "block_mask is a int"),
    ({"value": torch.zeros((1, 8, 2, 3))}, FM3Error, "D_qk is 4 and D_v is 3"),
    ({"softmax_scale": float("inf")}, FM3Error, "scale is inf"),
]


@pytest.mark.parametrize(("changes", "error", "text"), REFUSED)
def test_refused_by_name(changes: dict[str, Any], error: type[Exception], text: str) -> None:
    arguments = {name: torch.zeros((1, 8, 2, 4)) for name in ("query", "key", "value")}
    with pytest.raises(error, match=text):
        flashmask_attention(**(arguments | changes))
