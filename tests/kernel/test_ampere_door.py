"""The FlashMask kernel behind the public door: when it is chosen, what it refuses, what a training step does with it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import replay
import torch
from hypothesis import HealthCheck, given, settings
from random_masks import random_masks
from test_hopper_training import close, document_mask, draw, leaves
from torch import Tensor

from fm3_kernel import FM3Error, ampere, flashmask_attention, hopper, prepare_mask, reference
from fm3_kernel.operators import implementation_of
from masks.column_mask import ColumnMask
from masks.families import build_mask

# -- without a GPU ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("capability", "chosen"),
    [
        ((7, 5), "reference"),
        ((8, 0), "ampere"),
        ((8, 6), "ampere"),
        ((8, 9), "ampere"),
        ((9, 0), "hopper"),
        ((10, 0), "ampere"),
        ((12, 0), "ampere"),
    ],
)
def test_the_kernel_follows_the_compute_capability(
    capability: tuple[int, int], chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    for question in (hopper.is_hopper, ampere.runs_on):
        question.cache_clear()
    q: Any = SimpleNamespace(is_cuda=True, device=torch.device("cuda", 0))
    try:
        assert implementation_of(q, "auto") == chosen
        assert implementation_of(q, "reference") == "reference"
        assert implementation_of(SimpleNamespace(is_cuda=False), "auto") == "reference"  # type: ignore[arg-type]
    finally:
        for question in (hopper.is_hopper, ampere.runs_on):
            question.cache_clear()


def test_it_says_what_it_needs() -> None:
    q, k, v = (torch.zeros((1, 8, 2, 64), dtype=torch.bfloat16) for _ in range(3))
    with pytest.raises(FM3Error, match=r"the tensors are on cpu; the FlashMask kernel needs a GPU of compute capability 8\.0"):
        flashmask_attention(q, k, v, implementation="ampere")


def test_refusals_name_what_was_given_and_what_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked of tensors that are on a GPU on which the kernel runs."""
    monkeypatch.setattr(ampere, "runs_on", lambda device: True)

    class OnGpu:
        """A CPU tensor that says that it is on a GPU."""

        def __init__(self, x: Tensor) -> None:
            self.x, self.device = x, torch.device("cuda", 0)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.x, name)

    def refuse(match: str, **given: Tensor) -> None:
        tensors = {name: torch.zeros((1, 8, 2, 64), dtype=torch.bfloat16) for name in "qkv"} | given
        wrapped: Any = [OnGpu(x) for x in tensors.values()]
        with pytest.raises(FM3Error, match=match):
            ampere.check_tensors(*wrapped)

    refuse(r"torch\.float32; the FlashMask kernel takes torch\.float16, torch\.bfloat16", q=torch.zeros((1, 8, 2, 64)))
    wide = torch.zeros((1, 8, 2, 128), dtype=torch.bfloat16)
    refuse(r"head dim is 96; the FlashMask kernel takes 64, 128, 256\. Pad", q=wide[..., :96])
    refuse(r"k has strides \(2048, 256, 128, 2\).*k\.clone", k=wide[..., ::2])
    refuse(r"v has strides .* multiples of 8", v=torch.zeros((1, 8, 2, 65), dtype=torch.bfloat16)[..., :64])
    refuse(r"q has strides .* aligned to 2 bytes", q=torch.zeros(8 * 2 * 64 + 1, dtype=torch.bfloat16)[1:].view(1, 8, 2, 64))
    long = torch.zeros((1, 1, 1, 64), dtype=torch.bfloat16).expand(1, 2**31 - 200, 1, 64)
    refuse(r"k has length 2147483448; the FlashMask kernel takes at most 2147483392", k=long)
    many = torch.zeros((1, 1, 1, 64), dtype=torch.bfloat16).expand(2**26, 1, 32, 64)
    refuse(r"2147483648 tiles in all heads and batch items; at most 2147483647", q=many)
    with pytest.raises(FM3Error, match=r"head dim is 256; the FlashMask kernel has gradients for 64, 128"):
        ampere.check_gradients(256)


# -- on one -------------------------------------------------------------------------------------------------------


def check(q: Tensor, k: Tensor, v: Tensor, mask: ColumnMask) -> Tensor:
    """The kernel against the reference on the same values; the kernel's output."""
    out, lse = flashmask_attention(q, k, v, mask, implementation="ampere", return_lse=True)
    exact, exact_lse = reference.forward(q.float(), k.float(), v.float(), mask, q.shape[3] ** -0.5)
    torch.testing.assert_close(lse, exact_lse, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(out.float(), exact, rtol=0, atol=2e-2)
    return out


def inputs(batch: int, rows: int, columns: int, heads: int = 4, kv_heads: int = 2, head_dim: int = 64) -> list[Tensor]:
    shapes = ((rows, heads), (columns, kv_heads), (columns, kv_heads))
    return [draw(batch, length, count, head_dim, seed=seed) for seed, (length, count) in enumerate(shapes)]


@pytest.mark.gpu
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(mask=random_masks(max_rows=400, max_columns=400, heads=(1, 2, 4), block_masks=True))
def test_random_masks(mask: ColumnMask) -> None:
    for head_dim in ampere.HEAD_DIMS:
        check(*inputs(2, mask.seqlen_q, mask.seqlen_k, head_dim=head_dim), mask.to("cuda"))


@pytest.mark.gpu
@pytest.mark.parametrize("head_dim", ampere.HEAD_DIMS)
def test_strided_inputs(head_dim: int) -> None:
    mask = ColumnMask(causal=True, seqlen_q=300, seqlen_k=300).to("cuda")
    check(*draw(2, 300, 3, 4, head_dim).unbind(2), mask)
    check(*(draw(2, 4, 300, head_dim, seed=i).transpose(1, 2) for i in range(3)), mask)
    k = draw(2, 300, 1, head_dim, seed=1).expand(2, 300, 4, head_dim)
    check(draw(2, 300, 4, head_dim), k, k, mask)


@pytest.mark.gpu
@pytest.mark.parametrize("head_dim", ampere.HEAD_DIMS)
@pytest.mark.parametrize("length", [1, 65, 129, 257])
def test_nothing_outside_is_read(length: int, head_dim: int) -> None:
    """Tensors that lie inside larger ones full of NaN, the mask at the very end of its allocation; gradients too."""
    surrounded = []
    for seed in range(4):
        whole = torch.full((2, length + 64, 4, head_dim), torch.nan, device="cuda", dtype=torch.bfloat16)
        whole[:, 32 : 32 + length] = draw(2, length, 4, head_dim, seed=seed)
        surrounded.append(whole[:, 32 : 32 + length])
    lts = torch.full((1000,), -(2**31), dtype=torch.int32, device="cuda")
    lts[-length:] = torch.randint(1, length + 1, (length,), dtype=torch.int32, device="cuda")
    mask = ColumnMask(lts=lts[-length:].view(1, 1, length), causal=True, seqlen_q=length, seqlen_k=length)
    *given, dout = surrounded
    check(*given, mask)
    if head_dim in ampere.BACKWARD_HEAD_DIMS:
        tensors = [x.requires_grad_() for x in given]
        found = torch.autograd.grad(flashmask_attention(*tensors, mask, implementation="ampere"), tensors, dout)
        close(found, torch.autograd.grad(flashmask_attention(*tensors, mask, implementation="reference"), tensors, dout))


@pytest.mark.gpu
def test_many_batch_items_and_heads() -> None:
    mask = ColumnMask(causal=True, seqlen_q=3, seqlen_k=5).to("cuda")
    for shape in ((70_000, 3, 5, 1, 1), (1, 3, 5, 70_000, 10_000)):
        tensors = [x.requires_grad_() for x in inputs(*shape)]
        check(*(x.detach() for x in tensors), mask)
        dout = draw(*tensors[0].shape, seed=5)
        found = torch.autograd.grad(flashmask_attention(*tensors, mask, implementation="ampere"), tensors, dout)
        close(found, torch.autograd.grad(flashmask_attention(*tensors, mask, implementation="reference"), tensors, dout))


@pytest.mark.gpu
def test_more_than_two_to_the_31_elements() -> None:
    """The last head of the last batch item lies behind every 32-bit offset."""
    length, heads, batch = 65536, 33, 8
    mask = build_mask("sliding_window", length, window=300).to("cuda")
    tensors = [draw(batch, length, heads, 128, seed=i).requires_grad_() for i in range(3)]
    assert tensors[0].numel() > 2**31
    out, lse = flashmask_attention(*tensors, mask, implementation="ampere", return_lse=True)
    last = [x[-1:, :, -1:].detach().float().requires_grad_() for x in tensors]
    exact, exact_lse = flashmask_attention(*last, mask, implementation="reference", return_lse=True)
    torch.testing.assert_close(out[-1:, :, -1:].float(), exact, rtol=0, atol=2e-2)
    torch.testing.assert_close(lse[-1:, -1:], exact_lse, rtol=1e-4, atol=1e-3)
    dout = draw(1, length, 1, 128, seed=4)
    found = torch.autograd.grad(out, tensors, torch.nn.functional.pad(dout, (0, 0, heads - 1, 0, 0, 0, batch - 1, 0)))
    close(tuple(x[-1:, :, -1:] for x in found), torch.autograd.grad(exact, last, dout.float()))


@pytest.mark.gpu
def test_a_nan_stays_one() -> None:
    q, k, v = inputs(1, 300, 300)
    q[0, 5, 1, 3] = torch.nan
    mask = ColumnMask(causal=True, seqlen_q=300, seqlen_k=300).to("cuda")
    out, lse = flashmask_attention(q, k, v, mask, implementation="ampere", return_lse=True)
    assert bool(out[0, 5, 1].isnan().all())
    assert int(lse.isnan().sum()) == 1


@pytest.mark.gpu
@pytest.mark.parametrize("head_dim", ampere.BACKWARD_HEAD_DIMS)
def test_gradients_of_any_subset_and_through_the_log_sum_exp(head_dim: int) -> None:
    mask, inputs, dout = document_mask([100, 700]), leaves(head_dim), draw(2, 1500, 4, head_dim, seed=7)

    def loss(given: list[Tensor], implementation: Any) -> Tensor:
        out, lse = flashmask_attention(*given, mask, return_lse=True, implementation=implementation)
        return (out.float() * dout).sum() + (lse**2).mean() * 1000

    expected = torch.autograd.grad(loss(inputs, "reference"), inputs)
    for wanted in ([0], [1], [2], [0, 1], [1, 2], [0, 1, 2]):
        given = [x.detach().requires_grad_(i in wanted) for i, x in enumerate(inputs)]
        found = torch.autograd.grad(loss(given, "ampere"), [given[i] for i in wanted])
        close(found, tuple(expected[i] for i in wanted))


@pytest.mark.gpu
def test_no_gradient_is_promised_that_there_is_no_kernel_for() -> None:
    mask, given = document_mask([10]), leaves(256)
    with pytest.raises(FM3Error, match="head dim is 256; the FlashMask kernel has gradients for 64, 128"):
        flashmask_attention(*given, mask, implementation="ampere")
    with torch.no_grad():
        flashmask_attention(*given, mask, implementation="ampere")


@pytest.mark.gpu
def test_a_captured_step_sees_the_mask_of_the_day() -> None:
    masks = [document_mask([a]) for a in (100, 750, 1400)]
    live = ColumnMask(**{name: x.clone() for name, x in masks[0].tensors().items()}, causal=True, seqlen_q=1500, seqlen_k=1500)
    inputs, dout = leaves(), draw(2, 1500, 4, 64, seed=2)

    def step() -> tuple[Tensor, ...]:
        return torch.autograd.grad(flashmask_attention(*inputs, live, implementation="ampere"), inputs, dout)

    for mask, found in replay.over_masks(step, live, masks):
        close(found, torch.autograd.grad(flashmask_attention(*inputs, mask, implementation="reference"), inputs, dout))


@pytest.mark.gpu
def test_compiled_as_it_is() -> None:
    compiled = torch.compile(flashmask_attention, fullgraph=True)
    for lengths in ([100, 200], [1, 383]):
        mask, given, dout = document_mask(lengths), leaves(), draw(2, 1500, 4, 64, seed=2)
        plain = flashmask_attention(*given, mask, implementation="ampere")
        assert torch.equal(compiled(*given, mask, implementation="ampere"), plain)
        found = torch.autograd.grad(compiled(*given, mask, implementation="ampere", deterministic=True), given, dout)
        again = torch.autograd.grad(flashmask_attention(*given, mask, implementation="ampere", deterministic=True), given, dout)
        assert all(torch.equal(a, b) for a, b in zip(found, again, strict=True))


@pytest.mark.gpu
def test_beside_other_work_and_over_poisoned_memory() -> None:
    """Work on another stream, and memory full of NaN before it is scratch, change nothing but the time."""
    mask, inputs, dout = prepare_mask(document_mask([512, 512])), leaves(128), draw(2, 1500, 4, 128, seed=2)
    expected = torch.autograd.grad(flashmask_attention(*inputs, mask.mask, implementation="reference"), inputs, dout)
    other, big = torch.cuda.Stream(), torch.randn((2048, 2048), device="cuda")
    for _ in range(10):
        poison = torch.full((2**27,), torch.nan, device="cuda")
        del poison
        with torch.cuda.stream(other):
            big.copy_(big @ big.t() / 100)
        close(torch.autograd.grad(flashmask_attention(*inputs, mask, implementation="ampere"), inputs, dout), expected)
