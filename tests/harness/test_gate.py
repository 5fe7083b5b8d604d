"""The gate: right results pass, a result that lost one live tile anywhere, in any tensor, does not."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_masks import random_masks

from fm3_kernel import reference
from harness.cases import MaskSpec, Problem
from harness.gate import Incorrect, check
from harness.gate.census import HeadCensus, code_passes
from harness.gate.oracle import Blocks, Oracle
from harness.gate.whole import Answers, Lse, Part, whole
from harness.inputs import Inputs, make_inputs, make_mask
from masks.column_mask import BLOCK, ColumnMask, tile_count
from masks.dense import dense
from masks.documents import paper_documents
from masks.families import FAMILIES
from masks.tiles import FULL, PARTIAL, class_of_tiles

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@dataclass
class Lossy:
    """The reference, with class maps of its own for forward and backward."""

    mask: ColumnMask
    scale: float
    forward_classes: torch.Tensor
    backward_classes: torch.Tensor

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return _Attention.apply(q, k, v, self)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lossy: Lossy) -> Any:
        out, lse = reference.forward(q, k, v, lossy.mask, lossy.scale, classes=lossy.forward_classes)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.lossy = lossy
        return out, lse

    @staticmethod
    def backward(ctx: Any, dout: torch.Tensor, dlse: torch.Tensor) -> Any:
        q, k, v, out, lse = ctx.saved_tensors
        lossy = ctx.lossy
        grads = reference.backward(dout, None, q, k, v, out, lse, lossy.mask, lossy.scale, classes=lossy.backward_classes)
        return *grads, None


def problem_of(family: str, seqlen: int, dtype: str = "float32", **shape: int) -> Problem:
    documents = None
    if FAMILIES[family].needs_documents:
        documents = tuple((d.length, d.prefix, d.flag) for d in paper_documents(seqlen, "a"))
    sizes = {"batch": 1, "heads": 2, "kv_heads": 2, "head_dim": 64} | shape
    return Problem(MaskSpec(family, "a", documents), seqlen, dtype=dtype, **sizes)


@dataclass
class Bench:
    """One problem with its oracle, to be judged under different faults."""

    problem: Problem

    def __post_init__(self) -> None:
        self.mask = make_mask(self.problem, DEVICE)
        self.inputs = make_inputs(self.problem, DEVICE)
        self.scale = self.problem.head_dim**-0.5
        self.oracle = Oracle(self.mask, self.inputs, self.scale)
        self.classes = class_of_tiles(self.mask)

    def judge(self, forward: torch.Tensor | None = None, backward: torch.Tensor | None = None) -> dict[str, float]:
        lossy = Lossy(
            self.mask,
            self.scale,
            self.classes if forward is None else forward,
            self.classes if backward is None else backward,
        )
        return check(lossy, "bshd", self.mask, self.inputs, Answers(self.oracle), gradients=True)

    def without(self, kind: int, which: int) -> torch.Tensor:
        """The class map with one live tile of a kind missing."""
        places = (self.classes == kind).nonzero()
        edited = self.classes.clone()
        edited[tuple(places[which % len(places)])] = 0
        return edited


@pytest.mark.parametrize("family", list(FAMILIES))
def test_a_right_result_passes(family: str) -> None:
    errors = Bench(problem_of(family, 1000)).judge()
    assert {"out_max", "dq_max", "dk_max", "dv_max", "census_out", "census_lse", "census_dq"} <= set(errors)
    assert max(errors.values()) <= 1


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 2), (6, 2), (3, 1)])
@pytest.mark.parametrize("family", ["document", "random_eviction"])
def test_grouped_heads_pass_and_are_summed(family: str, heads: int, kv_heads: int) -> None:
    bench = Bench(problem_of(family, 520, "bfloat16", heads=heads, kv_heads=kv_heads, batch=2))
    assert max(bench.judge().values()) <= 1
    with pytest.raises(Incorrect):
        bench.judge(backward=bench.without(FULL if family == "document" else PARTIAL, 1))


LENGTHS = [
    4096,
    9216,  # above 8K, where blocks are sampled
    pytest.param(8192, marks=pytest.mark.slow),
    pytest.param(32768, marks=pytest.mark.gpu),
    pytest.param(131072, marks=pytest.mark.gpu),
]


@pytest.mark.parametrize("seqlen", LENGTHS)
def test_one_lost_tile_is_caught(seqlen: int) -> None:
    """In the forward pass, in the backward pass alone, partial or full, at the start, inside and at the end."""
    dtype = "bfloat16" if DEVICE == "cuda" else "float32"
    bench = Bench(problem_of("causal_document", seqlen, dtype, heads=1, kv_heads=1))
    assert max(bench.judge().values()) <= 1
    for kind, which in ((PARTIAL, 0), (PARTIAL, -1), (FULL, 7), (FULL, -1)):
        lost = bench.without(kind, which)
        with pytest.raises(Incorrect):
            bench.judge(forward=lost)
        with pytest.raises(Incorrect):
            bench.judge(backward=lost)


def test_nan_infinity_and_a_wrong_base_are_caught() -> None:
    bench = Bench(problem_of("causal", 300))
    right = Lossy(bench.mask, bench.scale, bench.classes, bench.classes)
    faults = {
        "not finite": lambda out, lse: (out * math.nan, lse),
        "LSE is off": lambda out, lse: (out, lse / math.log(2)),
        "out": lambda out, lse: (out * 1.01, lse),
    }
    for message, fault in faults.items():

        def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, fault: Any = fault) -> Any:
            return fault(*right(q, k, v))

        with pytest.raises(Incorrect, match=message):
            check(attend, "bshd", bench.mask, bench.inputs, Answers(bench.oracle), gradients=False)


def test_rows_without_keys_must_be_exactly_zero() -> None:
    """A hair of leaked gradient in a dead row is a fault, however small."""
    length = 200
    lts = torch.full((1, 1, length), 50, dtype=torch.int32, device=DEVICE)
    bench = Bench(problem_of("causal", length))
    bench.mask = ColumnMask(lts=lts, lte=torch.full_like(lts, 150), causal=True, seqlen_q=length, seqlen_k=length)
    bench.oracle = Oracle(bench.mask, bench.inputs, bench.scale)
    bench.classes = class_of_tiles(bench.mask)
    assert max(bench.judge().values()) <= 1
    right = Lossy(bench.mask, bench.scale, bench.classes, bench.classes)

    def leaky(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        out, lse = right(q, k, v)
        return out + 1e-12 * (lse == -math.inf).transpose(1, 2).unsqueeze(-1), lse

    with pytest.raises(Incorrect, match="census of out"):
        check(leaky, "bshd", bench.mask, bench.inputs, Answers(bench.oracle), gradients=False)


@settings(max_examples=60, deadline=None)
@given(mask=random_masks(max_rows=150, max_columns=150, block_masks=True), seed=st.integers(0, 99))
def test_census_sums_match_the_oracle(mask: ColumnMask, seed: int) -> None:
    seen = dense(mask).double()
    generator = torch.Generator().manual_seed(seed)
    signs = (torch.randint(0, 2, (mask.seqlen_k,), generator=generator) * 2 - 1).float()
    weights = torch.rand(mask.seqlen_q, generator=generator)
    tile_k = torch.arange(mask.seqlen_k) // BLOCK
    tile_q = torch.arange(mask.seqlen_q) // BLOCK
    for b in range(mask.batch):
        for h in range(mask.heads):
            head = HeadCensus(mask, b, h)
            columns, rows = head.by_column_tile(signs), head.by_row_tile(weights)
            for t in range(columns.shape[1]):
                assert torch.equal(columns[:, t].double(), (seen[b, h] * signs)[:, tile_k == t].sum(1))
            for t in range(rows.shape[1]):
                expected = (seen[b, h] * weights.double()[:, None])[tile_q == t].sum(0)
                torch.testing.assert_close(rows[:, t], expected, rtol=0, atol=1e-9)


def test_tiles_that_share_a_code_are_told_apart_by_the_second_pass() -> None:
    first, second = code_passes(64 * 300, 64, torch.device("cpu"))
    pairs = set(zip(first.dim.tolist(), second.dim.tolist(), strict=True))
    assert len(pairs) == 150
    assert len(code_passes(64 * BLOCK, 64, torch.device("cpu"))) == 1


def wrong_heads(kind: str, right: Lossy) -> Any:
    """Competitors that treat the first and the last head right, and one in between wrongly."""

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        middle = torch.ones(q.shape[2], device=q.device, dtype=q.dtype)
        if kind == "keys of two heads swapped":
            return right(q, k[:, :, [0, 2, 1, 3]], v)
        if kind == "scale of the middle heads":
            middle[1:-1] = 2
            return right(q * middle.view(1, 1, -1, 1), k, v)
        if kind == "values of the first batch item everywhere but at the end":
            return right(q, k, v[[0, 0, 2]])
        assert kind == "grouped heads in the other order"
        return right(q, k[:, :, [0, 1, 0, 1]], v[:, :, [0, 1, 0, 1]])

    return attend


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        ("keys of two heads swapped", {"heads": 4, "kv_heads": 4}),
        ("scale of the middle heads", {"heads": 4, "kv_heads": 4}),
        ("values of the first batch item everywhere but at the end", {"batch": 3}),
        ("grouped heads in the other order", {"heads": 4, "kv_heads": 2}),
    ],
)
@pytest.mark.parametrize("sample_above", [8192, 100])
def test_a_wrong_head_in_the_middle_is_caught(
    kind: str, shape: dict[str, int], gradients: bool, sample_above: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When everything is compared, and when only a sample is."""
    monkeypatch.setattr(sys.modules["harness.gate.check"], "SAMPLE_ABOVE", sample_above)
    bench = Bench(problem_of("causal", 256, head_dim=32, **shape))
    right = Lossy(bench.mask, bench.scale, bench.classes, bench.classes)
    assert max(bench.judge().values()) <= 1
    with pytest.raises(Incorrect):
        check(wrong_heads(kind, right), "bshd", bench.mask, bench.inputs, Answers(bench.oracle), gradients=gradients)


# -- several heads at once ------------------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(
    mask=random_masks(max_rows=300, max_columns=300, heads=(1, 2, 6), block_masks=True),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    together=st.sampled_from([1, 200_000, 1 << 26]),
)
def test_all_heads_at_once_are_what_each_of_them_is(mask: ColumnMask, dtype: torch.dtype, together: int) -> None:
    """LSE, out and gradients of whole heads against those of single blocks, grouped heads and masks of their own included."""
    generator = torch.Generator().manual_seed(0)
    batch = mask.batch if mask.batch > 1 else 2
    shapes = ((mask.seqlen_q, 6), (mask.seqlen_k, 2), (mask.seqlen_k, 2), (mask.seqlen_q, 6))
    q, k, v, dout = (torch.randn((batch, length, heads, 16), generator=generator).to(dtype) for length, heads in shapes)
    oracle = Oracle(mask, Inputs(q, k, v, dout), 0.25)
    found: dict[tuple[str, int, int], tuple[torch.Tensor, torch.Tensor]] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("harness.gate.whole.CHUNK", together)
        for part in whole(oracle, True):
            for number, head in enumerate(part.heads):
                if isinstance(part, Lse):
                    torch.testing.assert_close(part.exact[number], oracle.head_rows(part.item, head)[1])
                else:
                    assert (part.tensor, part.item, head) not in found
                    found[part.tensor, part.item, head] = part.exact[number], part.plain[number]
    assert len(found) == batch * (6 + 6 + 2 + 2)
    rows, columns = (list(range(tile_count(length))) for length in (mask.seqlen_q, mask.seqlen_k))
    for item in range(batch):
        single = [one for head in range(6) for one in oracle.row_blocks(item, head, rows, True)]
        single += [one for head in range(2) for one in oracle.column_blocks(item, head, columns)]
        for one in single:
            first = int(one.index[0, 0]) // BLOCK
            exact, plain = (x[first : first + len(one.index)] for x in found[one.tensor, item, one.heads[0]])
            rounded = 1e-5 if dtype == torch.float32 else 0.05
            for here, there, close in ((exact, one.exact[0], 1e-5), (plain, one.plain[0], rounded)):
                torch.testing.assert_close(here, there, rtol=close, atol=close)


def test_answers_are_found_once_where_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    mask = ColumnMask(causal=True, seqlen_q=200, seqlen_k=200)
    q, dout = (torch.randn((2, 200, 4, 16)) for _ in range(2))
    k, v = (torch.randn((2, 200, 2, 16)) for _ in range(2))
    found: list[bool] = []

    def counted(oracle: Oracle, gradients: bool) -> Iterator[Part]:
        found.append(gradients)
        yield from whole(oracle, gradients)

    monkeypatch.setattr("harness.gate.whole.whole", counted)
    answers = Answers(Oracle(mask, Inputs(q, k, v, dout), 0.25))
    first, again, forward = (list(answers.parts(gradients)) for gradients in (True, True, False))
    assert found == [True, False]
    assert all(one is other for one, other in zip(first, again, strict=True))
    assert {part.tensor for part in forward if isinstance(part, Blocks)} == {"out"}
    kept = [x for part in first if isinstance(part, Blocks) for x in (part.exact, part.plain)]
    # But for the padding of the last block of 128 rows.
    assert answers.bytes(True) == sum(x.nbytes for x in kept) * 200 // 256
    monkeypatch.setattr("harness.gate.whole._KEPT_ON_A_HOST", answers.bytes(True) - 1)
    without_room = Answers(answers.oracle)
    for _ in range(2):
        assert len(list(without_room.parts(True))) == len(first)
    assert found == [True, False, True, True]


def test_an_infinite_lse_is_incorrect_with_figures_that_a_row_can_hold() -> None:
    errors: dict[str, float] = {}
    with pytest.raises(Incorrect, match=r"LSE is off by inf \(batch 0, head 3\)"):
        sys.modules["harness.gate.check"]._judge_lse(torch.tensor([[torch.inf, 1.0]]), torch.ones(1, 2), 0, (3,), errors)
    assert errors == {"lse_max": 1e9}
