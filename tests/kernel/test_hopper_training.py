"""The Hopper kernels as a model trains with them: autograd, checkpointing, graphs, compile, memory, a small transformer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import replay
import torch
from tiny_model import train
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from fm3_kernel import flashmask_attention, prepare_mask
from masks.column_mask import ColumnMask
from masks.documents import documents_from_lengths
from masks.families import build_mask

LENGTH = 1500


def draw(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(shape, generator=generator, device="cuda", dtype=torch.bfloat16)


def leaves(head_dim: int = 64, heads: int = 4, kv_heads: int = 2, batch: int = 2) -> list[Tensor]:
    counts = (heads, kv_heads, kv_heads)
    return [draw(batch, LENGTH, count, head_dim, seed=seed).requires_grad_() for seed, count in enumerate(counts)]


def document_mask(lengths: list[int], length: int = LENGTH) -> ColumnMask:
    lengths = [*lengths, length - sum(lengths)]
    return build_mask("causal_document", length, documents=documents_from_lengths(lengths)).to("cuda")


def close(found: tuple[Tensor, ...], expected: tuple[Tensor, ...], tolerance: float = 2e-2) -> None:
    for a, b in zip(found, expected, strict=True):
        assert a.shape == b.shape
        error, size = float((a.float() - b.float()).abs().max()), float(b.float().abs().max())
        assert error <= tolerance * size, f"off by {error:.2e} where the largest is {size:.2e}"


@pytest.mark.hopper
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_gradients_of_any_subset(head_dim: int) -> None:
    mask, dout = document_mask([100, 700]), draw(2, LENGTH, 4, head_dim, seed=7)
    inputs = leaves(head_dim)
    expected = torch.autograd.grad(flashmask_attention(*inputs, mask, implementation="reference"), inputs, dout)
    for wanted in ([0], [1], [2], [0, 1], [1, 2], [0, 1, 2]):
        given = [x.detach().requires_grad_(i in wanted) for i, x in enumerate(inputs)]
        found = torch.autograd.grad(flashmask_attention(*given, mask), [given[i] for i in wanted], dout)
        close(found, tuple(expected[i] for i in wanted))


@pytest.mark.hopper
def test_gradients_through_the_log_sum_exp() -> None:
    mask, inputs = document_mask([400, 1]), leaves()

    def loss(implementation: str) -> Tensor:
        out, lse = flashmask_attention(*inputs, mask, return_lse=True, implementation=implementation)  # type: ignore[call-overload]
        return out.float().sum() + (lse**2).mean() * 1000

    close(torch.autograd.grad(loss("auto"), inputs), torch.autograd.grad(loss("reference"), inputs))


@pytest.mark.hopper
def test_strides_of_a_model() -> None:
    """q, k and v are views of one projection; the gradient of the output is expanded, transposed or sliced."""
    packed = draw(2, LENGTH, 8, 64).requires_grad_()
    mask = document_mask([333])

    def run(implementation: str, finish: Callable[[Tensor], Tensor]) -> tuple[Tensor, ...]:
        q, k, v = packed.split((4, 2, 2), dim=2)
        out = flashmask_attention(q, k, v, mask, implementation=implementation)  # type: ignore[call-overload]
        return torch.autograd.grad(finish(out), packed)

    weights = draw(2, LENGTH, 4, 64, seed=3)
    for finish in (
        lambda out: out.sum(),
        lambda out: (out.transpose(1, 2) * weights.transpose(1, 2).contiguous()).sum(),
        lambda out: (out[..., :60] * weights[..., :60]).sum(),
        lambda out: (out.transpose(2, 3).reshape(2, LENGTH, 256) * weights.transpose(2, 3).reshape(2, LENGTH, 256)).sum(),
    ):
        close(run("auto", finish), run("reference", finish))


@pytest.mark.hopper
def test_checkpointing_gives_the_same_gradients() -> None:
    mask, inputs, dout = prepare_mask(document_mask([800])), leaves(128), draw(2, LENGTH, 4, 128, seed=9)
    plain = torch.autograd.grad(flashmask_attention(*inputs, mask), inputs, dout)
    again = checkpoint(lambda q, k, v: flashmask_attention(q, k, v, mask), *inputs, use_reentrant=False)
    close(torch.autograd.grad(again, inputs, dout), plain, 1e-2)


@pytest.mark.hopper
def test_no_gradient_of_a_gradient() -> None:
    inputs = leaves()
    out = flashmask_attention(*inputs, document_mask([10]))
    (dq,) = torch.autograd.grad(out.float().square().sum(), inputs[:1], create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative"):
        dq.float().sum().backward()


@pytest.mark.hopper
def test_deterministic_means_the_same_bits() -> None:
    mask, inputs, dout = document_mask([100, 1000]), leaves(), draw(2, LENGTH, 4, 64, seed=5)
    first = torch.autograd.grad(flashmask_attention(*inputs, mask, deterministic=True), inputs, dout)
    for _ in range(5):
        again = torch.autograd.grad(flashmask_attention(*inputs, mask, deterministic=True), inputs, dout)
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


@pytest.mark.hopper
def test_a_captured_step_sees_the_mask_of_the_day() -> None:
    masks = [document_mask([a]) for a in (100, 750, 1400)]
    first = {name: x.clone() for name, x in masks[0].tensors().items()}
    live = replace(masks[0], **first)
    inputs, dout = leaves(), draw(2, LENGTH, 4, 64, seed=2)

    def step() -> tuple[Tensor, ...]:
        return torch.autograd.grad(flashmask_attention(*inputs, live), inputs, dout)

    for mask, found in replay.over_masks(step, live, masks):
        expected = torch.autograd.grad(flashmask_attention(*inputs, mask, implementation="reference"), inputs, dout)
        close(found, expected)


@pytest.mark.hopper
def test_memory_is_what_is_said() -> None:
    """Scratch: two fp32 numbers a head and row, padded to 64 rows, fp32 sums of dq; besides that inputs, results, gradients."""
    mask, inputs, dout = prepare_mask(document_mask([900])), leaves(128, heads=8, kv_heads=2), draw(2, LENGTH, 8, 128, seed=2)
    out = flashmask_attention(*inputs, mask)
    torch.autograd.grad(out, inputs, dout, retain_graph=True)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    torch.autograd.grad(out, inputs, dout, retain_graph=True)
    padded = -(-LENGTH // 64) * 64
    scratch = 2 * 8 * padded * (128 + 2) * 4
    gradients = sum(x.numel() * 2 for x in inputs)
    assert torch.cuda.max_memory_allocated() - before <= scratch + gradients + 2**20


@pytest.mark.hopper
def test_what_memory_held_before_does_not_matter() -> None:
    mask, inputs, dout = document_mask([64, 65]), leaves(), draw(2, LENGTH, 4, 64, seed=2)
    expected = torch.autograd.grad(flashmask_attention(*inputs, mask, implementation="reference"), inputs, dout)
    for _ in range(3):
        poison = torch.full((2**27,), torch.nan, device="cuda")
        del poison
        close(torch.autograd.grad(flashmask_attention(*inputs, mask), inputs, dout), expected)


@pytest.mark.hopper
def test_beside_other_work() -> None:
    """Copies and products on another stream while it runs change nothing but the time."""
    mask, inputs, dout = prepare_mask(document_mask([512, 512])), leaves(128), draw(2, LENGTH, 4, 128, seed=2)
    expected = torch.autograd.grad(flashmask_attention(*inputs, mask), inputs, dout)
    torch.cuda.synchronize()
    other, big = torch.cuda.Stream(), torch.randn((2048, 2048), device="cuda")
    found = []
    for _ in range(20):
        with torch.cuda.stream(other):
            big.copy_(big @ big.t() / 100)
        found.append(torch.autograd.grad(flashmask_attention(*inputs, mask), inputs, dout))
    torch.cuda.synchronize()
    for each in found:
        close(each, expected, 1e-2)


# -- a model ------------------------------------------------------------------------------------------------------


@pytest.mark.hopper
@pytest.mark.parametrize("way", ["eager", "checkpointed", "compiled"])
def test_a_small_transformer_learns_as_with_the_reference(way: str) -> None:
    """Packed documents of 4096 tokens, 200 steps: every loss within 1% of the reference's run, the last within 0.5%."""
    mask = document_mask([1000, 17, 1500, 700], 4096)

    def reference(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return flashmask_attention(q, k, v, mask, implementation="reference")

    def kernel(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return flashmask_attention(q, k, v, mask)

    expected = train(reference, 200)
    if way == "compiled":
        found = train(kernel, 200, wrap=lambda model: torch.compile(model, fullgraph=True))
    else:
        found = train(kernel, 200, recompute=way == "checkpointed")
    assert expected[-1] < expected[0] - 0.2, "the reference learned nothing"
    for step, (a, b) in enumerate(zip(found, expected, strict=True)):
        assert abs(a - b) <= 0.01 * b, f"step {step}: {a:.4f} and {b:.4f}"
    assert abs(found[-1] - expected[-1]) <= 0.005 * expected[-1]
