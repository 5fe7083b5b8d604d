"""The public door and its operator: refusals, autograd contract, strides, fake tensors, torch.compile."""

from __future__ import annotations

import copy
import itertools
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from dense_reference import actual, assert_close, expected, run, tensors
from torch._dynamo.testing import CompileCounterWithBackend
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

from fm3_kernel import FM3Error, flashmask_attention, prepare_mask, reference
from masks.column_mask import ColumnMask


def random_mask(length: int, seed: int, batch: int = 1, heads: int = 1) -> ColumnMask:
    generator = torch.Generator().manual_seed(seed)
    lts = torch.randint(0, length + 1, (batch, heads, length), dtype=torch.int32, generator=generator)
    return ColumnMask(lts=lts, causal=True, seqlen_q=length, seqlen_k=length)


# -- refusals -----------------------------------------------------------------------------------------------------


def arguments(**changes: Any) -> dict[str, Any]:
    q, k, v, *_ = tensors(2, 6, 8, heads=4, kv_heads=2, width=4, dtype=torch.float32)
    return {"q": q, "k": k, "v": v, "mask": None} | changes


def mask_of(rows: int = 6, columns: int = 8, batch: int = 1, heads: int = 1) -> ColumnMask:
    lts = torch.zeros((batch, heads, columns), dtype=torch.int32)
    return ColumnMask(lts=lts, causal=True, seqlen_q=rows, seqlen_k=columns)


def zeros(*shape: int, dtype: torch.dtype = torch.float32, device: str = "cpu") -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype, device=device)


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"q": [1.0]}, TypeError, "q is a list"),
    ({"q": zeros(6, 4, 4)}, FM3Error, r"q has shape \(6, 4, 4\); expected 4 axes"),
    ({"q": zeros(2, 6, 4, 4, dtype=torch.int32)}, TypeError, "torch.int32; allowed: torch.float16"),
    ({"k": zeros(2, 8, 2, 4, dtype=torch.float16)}, TypeError, "k has dtype torch.float16, q has torch.float32"),
    ({"v": zeros(2, 8, 2, 4, device="meta")}, FM3Error, "v is on meta, q is on cpu"),
    ({"k": zeros(1, 8, 2, 4)}, FM3Error, "k has batch 1, q has 2"),
    ({"v": zeros(2, 7, 2, 4)}, FM3Error, "k has 8 columns, v has 7"),
    ({"v": zeros(2, 8, 1, 4)}, FM3Error, "k has 2 heads, v has 1"),
    ({"k": zeros(2, 8, 2, 5)}, FM3Error, "q has head dim 4, k has 5"),
    ({"v": zeros(2, 8, 2, 3)}, FM3Error, "D_qk is 4 and D_v is 3"),
    ({"v": zeros(2, 8, 2, 6)}, FM3Error, "D_qk is 4 and D_v is 6"),
    ({"q": zeros(2, 6, 3, 4)}, FM3Error, "q has 3 heads, k and v have 2"),
    ({"q": zeros(2, 6, 0, 4)}, FM3Error, "q has 0 heads, k and v have 2"),
    ({"k": zeros(2, 8, 0, 4), "v": zeros(2, 8, 0, 4)}, FM3Error, "q has 4 heads, k and v have 0"),
    ({"implementation": "fast"}, FM3Error, "implementation is 'fast'; allowed: auto, hopper, ampere, reference"),
    (
        {"implementation": "hopper"},
        FM3Error,
        r"the tensors are on cpu; the Hopper kernel needs a GPU of compute capability 9\.0",
    ),
    ({"mask": "causal"}, TypeError, "mask is a str; expected a masks.column_mask.ColumnMask"),
    ({"mask": mask_of(rows=7)}, FM3Error, "seqlen_q=7, the tensors have 6"),
    ({"mask": mask_of(columns=9)}, FM3Error, "seqlen_k=9, the tensors have 8"),
    ({"mask": mask_of(columns=4)}, FM3Error, "seqlen_k=4, the tensors have 8"),
    ({"mask": mask_of(batch=3)}, FM3Error, "batch 3; allowed: 1 or the tensors' batch 2"),
    ({"mask": mask_of(heads=3)}, FM3Error, "3 heads; allowed: 1, the 2 KV heads or the 4 query heads"),
    ({"mask": mask_of().to("meta")}, FM3Error, "the mask is on meta"),
    ({"scale": float("nan")}, FM3Error, "scale is nan; it must be finite"),
    ({"scale": float("inf")}, FM3Error, "scale is inf"),
    ({"scale": "0.1"}, TypeError, "scale is a str"),
    ({"scale": True}, TypeError, "scale is a bool"),
    ({"deterministic": 1}, TypeError, "deterministic is a int"),
    ({"return_lse": None}, TypeError, "return_lse is a NoneType"),
]


@pytest.mark.parametrize(("changes", "error", "text"), REFUSED, ids=[text[:40] for _, _, text in REFUSED])
def test_refused_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], error: type[Exception], text: str
) -> None:
    def never(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("it ran")

    monkeypatch.setattr(reference, "forward", never)
    with pytest.raises(error, match=text):
        flashmask_attention(**arguments(**changes))


def test_errors_are_value_errors() -> None:
    assert issubclass(FM3Error, ValueError)


def test_default_scale_and_mask_and_a_causal_mask_without_tensors() -> None:
    q, k, v, *_ = tensors(1, 9, 9, width=4)
    want = torch.nn.functional.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2)
    torch.testing.assert_close(flashmask_attention(q, k, v), want)
    torch.testing.assert_close(flashmask_attention(q, k, v, scale=0.5), want)
    torch.testing.assert_close(flashmask_attention(q, k, v, scale=1), flashmask_attention(2 * q, k, v))
    assert torch.equal(flashmask_attention(q, k, v, deterministic=True), flashmask_attention(q, k, v))


# -- autograd (kinds E, N) ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["none", "causal", "lts", "lts_lte", "lts_ute", "all", "block"])
def test_gradcheck_through_out_and_lse(form: str) -> None:
    generator = torch.Generator().manual_seed(5)
    names = {"lts": ("lts",), "lts_lte": ("lts", "lte"), "lts_ute": ("lts", "ute"), "all": ("lts", "lte", "uts", "ute")}.get(
        form, ()
    )
    vectors = {name: torch.randint(0, 6, (2, 2, 6), dtype=torch.int32, generator=generator) for name in names}
    mask = ColumnMask(**vectors, causal=form in ("causal", "lts", "lts_lte"), seqlen_q=5, seqlen_k=6)
    if form == "block":
        mask = mask.with_block_mask(torch.tensor([True, False]).view(2, 1, 1, 1))
    q, k, v, *_ = (x.requires_grad_() for x in tensors(2, 5, 6, heads=4, kv_heads=2, width=3))

    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out, lse = flashmask_attention(q, k, v, mask, return_lse=True)
        return out, lse.masked_fill(lse == -torch.inf, 0)  # numerical differences of -inf mean nothing

    assert torch.autograd.gradcheck(function, (q, k, v), fast_mode=True)


@pytest.mark.parametrize("bits", range(1, 8))
@pytest.mark.parametrize("outputs", ["out", "lse", "both"])
def test_all_subsets_of_inputs_and_outputs(bits: int, outputs: str) -> None:
    mask = random_mask(40, 1, heads=2)
    q, k, v, dout, dlse = tensors(2, 40, 40, heads=4, kv_heads=2, width=4)
    if outputs == "out":
        dlse = torch.zeros_like(dlse)
    if outputs == "lse":
        dout = torch.zeros_like(dout)
    want = expected(q, k, v, dout, dlse, mask, 0.5)
    inputs = [x.requires_grad_(bool(bits >> i & 1)) for i, x in enumerate((q, k, v))]
    out, lse = flashmask_attention(*inputs, mask, return_lse=True)
    alive = lse > -torch.inf
    loss = (out * dout).sum() if outputs == "out" else (lse * dlse)[alive].sum()
    if outputs == "both":
        loss = loss + (out * dout).sum()
    loss.backward()
    for x, grad in zip(inputs, want[2:], strict=True):
        if x.requires_grad:
            assert x.grad is not None
            torch.testing.assert_close(x.grad, grad, rtol=0, atol=1e-10)
        else:
            assert x.grad is None


def test_work_is_left_out_for_inputs_without_grad(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    real = reference.backward
    monkeypatch.setattr(reference, "backward", lambda *args, **kwargs: seen.append(kwargs["needs"]) or real(*args, **kwargs))
    q, k, v, *_ = tensors(1, 10, 10)
    flashmask_attention(q, k.requires_grad_(), v).sum().backward()
    assert seen == [(False, True, False)]


def test_no_grad_mode_has_the_lse_and_no_graph() -> None:
    q, k, v, *_ = tensors(1, 10, 10)
    out, lse = flashmask_attention(q, k, v, return_lse=True)
    assert not out.requires_grad
    with torch.no_grad():
        out_no_grad, lse_no_grad = flashmask_attention(q.requires_grad_(), k, v, return_lse=True)
    assert torch.equal(lse_no_grad, lse)
    assert torch.equal(out_no_grad, out)
    assert not out_no_grad.requires_grad
    assert lse.isfinite().all()


def test_double_backward_is_refused() -> None:
    q, k, v, *_ = (x.requires_grad_() for x in tensors(1, 10, 10))
    (grad,) = torch.autograd.grad(flashmask_attention(q, k, v).square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative"):
        grad.square().sum().backward()


def test_a_mask_changed_between_forward_and_backward_is_an_error() -> None:
    mask = random_mask(10, 0)
    q, k, v, *_ = tensors(1, 10, 10)
    out = flashmask_attention(q.requires_grad_(), k, v, mask)
    assert mask.lts is not None
    mask.lts.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_inputs_are_left_alone() -> None:
    inputs = tensors(1, 140, 140, dtype=torch.float32)
    copies = [x.clone() for x in inputs]
    actual(*inputs, random_mask(140, 0))
    for x, before in zip(inputs, copies, strict=True):
        assert torch.equal(x, before)


def test_length_equal_to_heads() -> None:
    mask = random_mask(16, 3)
    inputs = tensors(2, 16, 16, heads=16, width=4)
    assert_close(actual(*inputs, mask), expected(*inputs, mask, 0.5))


# -- strides (kind J) ---------------------------------------------------------------------------------------------


def head_major(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def sliced(x: torch.Tensor) -> torch.Tensor:
    wide = torch.full((x.shape[0], 2 * x.shape[1] + 1, x.shape[2], x.shape[3] + 3), torch.nan, dtype=x.dtype)
    view = wide[:, 1::2, :, 1 : 1 + x.shape[3]]
    return view.copy_(x)


def width_outermost(x: torch.Tensor) -> torch.Tensor:
    return x.permute(3, 2, 0, 1).contiguous().permute(2, 3, 1, 0)


@pytest.mark.parametrize("change", [head_major, sliced, width_outermost])
@pytest.mark.parametrize("which", [(0,), (1,), (2,), (3,), (0, 1, 2, 3)])
def test_strides_do_not_matter(change: Callable[[torch.Tensor], torch.Tensor], which: tuple[int, ...]) -> None:
    inputs = tensors(3, 70, 90, heads=4, kv_heads=2, width=5)
    mask = ColumnMask(causal=True, seqlen_q=70, seqlen_k=90)
    want = actual(*inputs, mask)
    changed = [change(x) if i in which else x for i, x in enumerate(inputs)]
    assert all(not changed[i].is_contiguous() for i in which)
    for name, a, b in zip(want._fields, actual(*changed, mask), want, strict=True):
        assert torch.equal(a, b), name


def test_packed_qkv_and_expanded_tensors() -> None:
    packed = torch.randn((2, 33, 3, 4, 8), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    q, k, v = packed.unbind(2)
    dout, dlse = torch.ones((), dtype=torch.float64).expand(2, 33, 4, 8), torch.ones((), dtype=torch.float64).expand(2, 4, 33)
    k = k[:, :, :1].expand(-1, -1, 4, -1)
    mask = random_mask(33, 4)
    assert mask.lts is not None
    spread = replace(mask, lts=mask.lts.expand(2, 4, 33))
    want = actual(*(x.contiguous() for x in (q, k, v, dout)), dlse.contiguous(), mask)
    for name, a, b in zip(want._fields, actual(q, k, v, dout, dlse, spread), want, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12, msg=name)


def test_sum_backward_with_its_zero_strides() -> None:
    mask = random_mask(150, 2)
    q, k, v, dout, _ = tensors(1, 150, 150, dtype=torch.bfloat16)
    want = actual(q, k, v, torch.ones_like(dout), None, mask)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    flashmask_attention(*leaves, mask).sum().backward()
    for x, grad in zip(leaves, want[2:], strict=True):
        assert x.grad is not None
        assert torch.equal(x.grad, grad)


def test_interleaved_mask_vectors() -> None:
    generator = torch.Generator().manual_seed(0)
    indices = torch.randint(0, 60, (2, 2, 60, 4), dtype=torch.int32, generator=generator)
    views = ColumnMask.from_startend_row_indices(indices, causal=False)
    assert views.lts is not None
    assert not views.lts.is_contiguous()
    plain = replace(views, **{name: x.contiguous() for name, x in views.tensors().items()})
    inputs = tensors(2, 60, 60)
    for a, b in zip(actual(*inputs, views), actual(*inputs, plain), strict=True):
        assert torch.equal(a, b)


# -- prepared masks -----------------------------------------------------------------------------------------------


def test_a_prepared_mask_stands_for_its_mask_until_it_is_written() -> None:
    q, k, v, *_ = tensors(1, 20, 20)
    mask = random_mask(20, 0)
    prepared = prepare_mask(mask)
    assert torch.equal(flashmask_attention(q, k, v, prepared), flashmask_attention(q, k, v, mask))
    assert mask.lts is not None
    mask.lts.clamp_(max=3)
    with pytest.raises(FM3Error, match=r"lts was changed in place after prepare_mask\(\)"):
        flashmask_attention(q, k, v, prepared)
    with pytest.raises(TypeError, match="mask is a str"):
        prepare_mask("causal")  # type: ignore[arg-type]


def test_copies_of_a_prepared_mask_work() -> None:
    q, k, v, *_ = tensors(1, 20, 20)
    mask = random_mask(20, 0)
    assert mask.lts is not None
    mask.lts.add_(0).add_(0)
    prepared = prepare_mask(mask)
    for copied in (copy.deepcopy(prepared), pickle.loads(pickle.dumps(prepared))):
        assert copied.mask.lts is not mask.lts
        assert torch.equal(flashmask_attention(q, k, v, copied), flashmask_attention(q, k, v, mask))


def test_a_vector_whose_memory_was_exchanged_is_noticed() -> None:
    q, k, v, *_ = tensors(1, 20, 20)
    mask = random_mask(20, 0)
    prepared = prepare_mask(mask)
    assert mask.lts is not None
    mask.lts.data = torch.zeros_like(mask.lts)
    with pytest.raises(FM3Error, match="lts was changed in place"):
        flashmask_attention(q, k, v, prepared)


# -- operator, fake tensors, compile (kind P) ---------------------------------------------------------------------


def flat(mask: ColumnMask) -> tuple[Any, ...]:
    return mask.lts, mask.lte, mask.uts, mask.ute, mask.block_mask, None, None, mask.causal, 0.5, False, "auto"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_opcheck_forward(dtype: torch.dtype) -> None:
    q, k, v, *_ = tensors(2, 20, 20, heads=4, kv_heads=2, width=4, dtype=dtype)
    for grad, mask in itertools.product((False, True), (random_mask(20, 0, heads=2), ColumnMask(seqlen_q=20, seqlen_k=20))):
        leaves = [head_major(x).requires_grad_(grad) for x in (q, k, v)]
        tests = ("test_schema", "test_autograd_registration", "test_faketensor")
        if dtype == torch.float32:
            tests += ("test_aot_dispatch_dynamic",)
        torch.library.opcheck(torch.ops.fm3.attention_forward.default, (*leaves, *flat(mask)), test_utils=tests)


def test_opcheck_backward() -> None:
    q, k, v, dout, dlse = tensors(2, 20, 20, heads=4, kv_heads=2, width=4, dtype=torch.float32)
    mask = random_mask(20, 0, heads=4)
    out, lse = reference.forward(q, k, v, mask, 0.5)
    for needs, given in (((True, True, True), dlse), ((False, True, False), None)):
        torch.library.opcheck(
            torch.ops.fm3.attention_backward.default, (head_major(dout), given, q, k, v, out, lse, *flat(mask), *needs)
        )


class Watching(TorchDispatchMode):
    """Notes which operators pass."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("grad", [False, True])
def test_who_watches_sees_the_operator(grad: bool) -> None:
    """Outside of tracing the call takes a short cut; a dispatch mode, a subclass and a function transform must not miss it."""
    q, k, v, *_ = (head_major(x).requires_grad_(grad) for x in tensors(1, 20, 20, dtype=torch.float32))
    mask = random_mask(20, 0)
    expected = flashmask_attention(q, k, v, mask)
    with Watching() as watching:
        assert torch.equal(flashmask_attention(q, k, v, mask), expected)
    assert "fm3.attention_forward.default" in watching.seen

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        return flashmask_attention(q, k, v)

    for way in (lambda f: f, torch.func.functionalize, torch.vmap):
        for mode in ("real", "symbolic"):
            given = [x.detach()[None] if way is torch.vmap else x.detach() for x in (q, k, v)]
            assert "fm3.attention_forward" in make_fx(way(attend), tracing_mode=mode)(*given).code
    with torch.profiler.profile() as profile:
        flashmask_attention(q, k, v, mask)
    assert any(event.key == "fm3::attention_forward" for event in profile.key_averages())


def test_functional_transforms_are_refused_by_name() -> None:
    q, k, v, *_ = tensors(1, 20, 20, dtype=torch.float32)
    with pytest.raises(RuntimeError, match=r"flashmask_attention cannot be differentiated by torch\.func"):
        torch.func.grad(lambda q: flashmask_attention(q, k, v).sum())(q)


def test_checks_are_not_skipped_for_a_call_that_differs() -> None:
    """A call is checked once for all that the checks look at, and anything else is another call."""
    q, k, v, *_ = tensors(1, 20, 20, dtype=torch.float32)
    mask = random_mask(20, 0)
    flashmask_attention(q, k, v, mask, scale=0.5)
    for changes, error in (
        ({"scale": float("nan")}, FM3Error),
        ({"scale": "0.5"}, TypeError),
        ({"deterministic": 1}, TypeError),
        ({"return_lse": 0}, TypeError),
        ({"implementation": "fast"}, FM3Error),
        ({"mask": random_mask(21, 0)}, FM3Error),
        ({"mask": random_mask(20, 0, heads=3)}, FM3Error),
        ({"v": v.double()}, TypeError),
        ({"k": k[:, :19]}, FM3Error),
    ):
        with pytest.raises(error):
            flashmask_attention(**({"q": q, "k": k, "v": v, "mask": mask, "scale": 0.5} | changes))


def test_fake_result_has_the_real_strides() -> None:
    q, k, v, *_ = (head_major(x) for x in tensors(2, 20, 30, heads=4, kv_heads=2, dtype=torch.float16))
    mask = ColumnMask(causal=True, seqlen_q=20, seqlen_k=30)
    real = flashmask_attention(q, k, v, mask, return_lse=True)
    fake = flashmask_attention(q.to("meta"), k.to("meta"), v.to("meta"), mask, return_lse=True)
    for a, b in zip(real, fake, strict=True):
        assert (a.shape, a.stride(), a.dtype) == (b.shape, b.stride(), b.dtype)


def test_compiled_equals_eager_without_recompiling_for_a_new_mask() -> None:
    counter = CompileCounterWithBackend("aot_eager")
    torch._dynamo.reset()

    @torch.compile(fullgraph=True, backend=counter)
    def step(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: ColumnMask) -> tuple[torch.Tensor, torch.Tensor]:
        return flashmask_attention(q, k, v, mask, return_lse=True)

    for seed in range(4):
        inputs = tensors(1, 150, 150, heads=4, kv_heads=2, dtype=torch.float32, seed=seed)
        mask = random_mask(150, seed)
        got = run(lambda q, k, v, mask=mask: step(q, k, v, mask), *inputs)
        for a, b in zip(got, actual(*inputs, mask), strict=True):
            assert torch.equal(a, b)
    assert counter.frame_count == 1


def test_a_changed_mask_is_not_frozen_into_the_compiled_code() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(flashmask_attention, fullgraph=True, backend="aot_eager")
    q, k, v, *_ = tensors(1, 20, 20, dtype=torch.float32)
    mask = random_mask(20, 0)
    compiled(q, k, v, mask)
    assert mask.lts is not None
    mask.lts.fill_(20)
    assert torch.equal(compiled(q, k, v, mask), flashmask_attention(q, k, v, mask))
    assert torch.equal(compiled(q, k, v, mask, scale=2.0), flashmask_attention(q, k, v, mask, scale=2.0))
    assert torch.equal(compiled(q, k, v, None), flashmask_attention(q, k, v, None))


def test_default_compiler_in_a_layer() -> None:
    torch._dynamo.reset()
    weight = torch.randn((8, 24), generator=torch.Generator().manual_seed(0), requires_grad=True)
    x = torch.randn((1, 30, 8), generator=torch.Generator().manual_seed(1))
    mask = random_mask(30, 0)

    def layer(x: torch.Tensor) -> torch.Tensor:
        q, k, v = (x @ weight).view(1, 30, 3, 2, 4).unbind(2)
        return flashmask_attention(q, k, v, mask).flatten(2).square().sum()

    (want,) = torch.autograd.grad(layer(x), weight)
    (got,) = torch.autograd.grad(torch.compile(layer, fullgraph=True)(x), weight)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def test_importing_is_light() -> None:
    heavy = ("pandas", "matplotlib", "hydra", "harness", "plots")
    code = f"import sys, fm3_kernel; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_forward_mode_is_refused_and_not_zero() -> None:
    x = torch.randn(1, 8, 1, 4, dtype=torch.float64)
    with pytest.raises(RuntimeError, match=r"no forward-mode derivative \(jvp\), and q carries"):
        torch.func.jvp(lambda a: flashmask_attention(a, a, a), (x,), (x,))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, x)
        with pytest.raises(RuntimeError, match="and v carries"):
            flashmask_attention(x, x, dual)
        flashmask_attention(x, x, x)
